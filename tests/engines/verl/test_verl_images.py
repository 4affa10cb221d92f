"""Images through verl without Ray: tokens, positions and forward pass against the torch engine."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch

from bapo.engines.shared import models
from bapo.engines.shared.models.images import scratch_processor
from bapo.engines.shared.prompts import read_prompts
from bapo.engines.verl import images
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.tasks.job import make_data

SETTINGS = [
    "scale=smoke",
    "task=geometry",
    "device=cpu",
    "tracking=none",
    "data.split_sizes={base: 20, train: 6, probe: 2, diagrams_val: 2, diagrams_test: 2}",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):
    """(configuration, folder of an untrained model with its processor)."""

    results = tmp_path_factory.mktemp("results")
    config = compose_config([*SETTINGS, f"paths.results={results}"])
    make_data(config)
    model, tokenizer = models.build_scratch(config)
    models.save(model, scratch_processor(config, tokenizer), results / "model")
    return config, results / "model"


@pytest.fixture(scope="module")
def parts(world):
    """(verl's tokenizer, verl's processor), as every process of verl loads them."""
    from verl.utils import hf_processor, hf_tokenizer

    return hf_tokenizer(str(world[1])), hf_processor(str(world[1]))


def dataset(world, parts):
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from bapo.experiments.places import data_directory

    tokenizer, processor = parts
    file = data_directory(world[0]) / "train.parquet"
    options = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": str(world[1].parent / "cache")})
    return file, RLHFDataset(str(file), tokenizer, options, processor)


def test_prompts_and_pictures_are_those_of_the_torch_engine(world, parts) -> None:
    tokenizer, processor = parts
    file, rows = dataset(world, parts)
    expected = read_prompts(file, tokenizer, 100, processor)
    assert len(rows) == len(expected) == 6
    for i, prompt in enumerate(expected):
        tokens, pictures = images.encode(tokenizer, processor, rows[i]["raw_prompt"])
        assert tuple(tokens) == prompt.row.tokens
        assert len(pictures) == 1
        ids = torch.tensor(tokens)
        vision = images.vision_inputs(tokenizer, processor, pictures, ids)
        np.testing.assert_array_equal(vision["pixel_values"].numpy(), prompt.row.images.pixel_values)
        np.testing.assert_array_equal(vision["image_grid_thw"].numpy(), prompt.row.images.image_grid_thw)


def test_a_prompt_is_measured_with_its_picture_before_the_first_step(world, parts) -> None:
    tokenizer, processor = parts
    _, rows = dataset(world, parts)
    tokens = [len(images.encode(tokenizer, processor, rows[i]["raw_prompt"])[0]) for i in range(len(rows))]
    longest = rows[int(np.argmax(tokens))]["extra_info"]["id"]
    images.require_lengths(rows, tokenizer, processor, max(tokens))
    with pytest.raises(UserError, match=rf"problem {longest} .*sampling.max_prompt_tokens"):
        images.require_lengths(rows, tokenizer, processor, max(tokens) - 1)


def test_a_row_that_is_put_again_scores_like_in_the_torch_engine(world, parts, monkeypatch) -> None:
    """verl's forward pass (which its worker patches in) with the rebuilt row, against the torch engine's scoring."""
    from verl.models.transformers import monkey_patch
    from verl.utils.model import extract_multi_modal_inputs

    monkeypatch.setattr(monkey_patch, "is_trl_available", lambda: False)  # as verl's worker does
    tokenizer, processor = parts
    config, folder = world
    file, rows = dataset(world, parts)
    prompts = read_prompts(file, tokenizer, 100, processor)[:2]
    response = tokenizer.convert_tokens_to_ids(["<eos>"] if "<eos>" in tokenizer.get_vocab() else ["<|im_end|>"])
    model, _ = models.load(folder, config, torch.device("cpu"))
    ids = torch.tensor([[*p.row.tokens, 20, 21, *response] for p in prompts])
    starts = torch.tensor([len(p.row.tokens) for p in prompts])
    expected = models.score(model, ids, starts, 3, pictures=[p.row.images for p in prompts]).logprobs

    original = type(model).forward, type(model.model).forward
    try:
        monkey_patch.apply_monkey_patch(model, use_remove_padding=False, ulysses_sp_size=1, use_fused_kernels=False)
        images.mend_rows_without_images()
        rebuilt = []
        for i, row in enumerate(ids):
            tokens, pictures = images.encode(tokenizer, processor, rows[i]["raw_prompt"])
            vision = images.vision_inputs(tokenizer, processor, pictures, torch.tensor(tokens))
            rebuilt.append(images.row_inputs(processor, vision, row))
        positions = torch.stack([r["position_ids"] for r in rebuilt]).transpose(0, 1)  # [4, N, L]
        inputs = extract_multi_modal_inputs([r["multi_modal_inputs"] for r in rebuilt])
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=positions, **inputs).logits
            # a micro-batch of padding rows only: no picture at all
            words = {"input_ids": ids[:, -3:], "attention_mask": torch.ones(2, 3)}
            bare = model(**words, position_ids=positions[:, :, :3]).logits
    finally:
        type(model).forward, type(model.model).forward = original
    begin = int(starts[0])
    found = torch.log_softmax(logits[:, begin - 1 : -1], -1).gather(2, ids[:, begin:, None])[:, :, 0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.isfinite(bare).all()


def test_a_text_row_of_a_text_model_has_plain_positions() -> None:
    ids = torch.tensor([5, 6, 7])
    found = images.row_inputs(None, images.vision_inputs(None, None, [], ids), ids)
    assert found["multi_modal_inputs"] == {}
    torch.testing.assert_close(found["position_ids"], torch.arange(3))


def test_a_response_ends_where_it_draws_a_placeholder(parts) -> None:
    tokenizer, processor = parts
    mark, end = processor.image_token_id, tokenizer.eos_token_id
    assert images.end_at_mark([20, 21, end], processor, tokenizer) == [20, 21, end]
    assert images.end_at_mark([20, mark, 21, mark], processor, tokenizer) == [20, end]
    assert images.end_at_mark([mark], processor, tokenizer) == [end]
    assert images.end_at_mark([20, mark], None, tokenizer) == [20, mark]  # a text model has no such tokens
