"""Images in the torch engine: the library's numbers and gradients, the tower once a prompt, no torchvision."""

from __future__ import annotations

import numpy as np
import pytest
from support.late import LATE
from support.vision import SIZES, TEXTS, build, picture, prepared, rows

from bapo.errors import UserError

if LATE:
    import torch
    import transformers as hf

    from bapo.engines.fast import sampler as sampler_qwen2
    from bapo.engines.fast import scoring as scoring_qwen2
    from bapo.engines.fast import vision as vision_qwen2_5
    from bapo.engines.shared import models
    from bapo.engines.shared.models import images
    from bapo.engines.shared.sampling import SamplingParameters, sample

    SETTINGS = SamplingParameters(max_tokens=7, eos_ids=(1,))


def librarys_logprobs(model, tokens: list[int], start: int, own, temperature: float = 1.0) -> torch.Tensor:
    """Of the tokens from ``start`` on, by the library's own forward with pixels, one sequence at a time."""
    ids = torch.tensor([tokens])
    given = {}
    if own is not None:
        given = {
            "pixel_values": torch.from_numpy(own.pixel_values),
            "image_grid_thw": torch.from_numpy(own.image_grid_thw),
            "mm_token_type_ids": (ids == model.config.image_token_id).int(),
        }
    model.model.rope_deltas = None
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False, **given).logits[0, start - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, ids[0, start:, None])[:, 0]


@pytest.mark.parametrize("sizes", [SIZES[:1], SIZES], ids=["equal sizes", "different sizes"])
@pytest.mark.parametrize("fullatt", [[0, 1], [1]], ids=str)
@pytest.mark.parametrize("window", [48, 16], ids=str)
def test_the_tower_gives_the_librarys_features(tokenizer, processor, window, fullatt, sizes):
    model = build(tokenizer, vision={"window_size": window, "fullatt_block_indexes": fullatt})
    _, own = prepared(processor, "mixed lengths", sizes)
    pixels = torch.from_numpy(np.concatenate([i.pixel_values for i in own]))
    grids = torch.from_numpy(np.concatenate([i.image_grid_thw for i in own]))
    with torch.no_grad():
        expected = model.model.visual(pixels, grid_thw=grids).pooler_output
        visual = model.model.visual
        assert vision_qwen2_5.supports(visual)
        assert vision_qwen2_5.fits(visual, grids) == (len(sizes) == 1 and (window == 48 or fullatt == [0, 1]))
        found = images.tower(model, own)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-5
    visual.blocks[0].register_forward_hook(lambda *_: None)
    assert not vision_qwen2_5.supports(visual)


@pytest.mark.parametrize("name", [n for n in TEXTS if n != "text alone"])
def test_positions_are_the_librarys(tokenizer, processor, name):
    model = build(tokenizer)
    for tokens, own in zip(*prepared(processor, name, SIZES), strict=True):
        if own is None:
            continue
        ids = torch.tensor([tokens])
        kinds = (ids == model.config.image_token_id).int()
        expected, _ = model.model.get_rope_index(ids, kinds, torch.from_numpy(own.image_grid_thw))
        found = images.positions(np.array(tokens), own.image_grid_thw, model.config.image_token_id, 2)
        assert found.tolist() == expected[:, 0].tolist()


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", TEXTS)
def test_log_probabilities_of_samples_are_the_librarys(tokenizer, processor, name, fast):
    """What the sampler notes of each token is what the library's forward with the pixels says of it."""
    model = build(tokenizer)
    assert sampler_qwen2.supports(model)
    prompts, own = prepared(processor, name, SIZES)
    keys = np.arange(len(prompts), dtype=np.uint64)
    drawn = sample(model, prompts, 5, keys, 7, SETTINGS, images=own, fast=fast)
    checked = 0
    for prompt, pictures, samples in zip(prompts, own, drawn, strict=True):
        for tokens, length, noted in zip(samples.tokens, samples.lengths, samples.logprobs, strict=True):
            response = tokens[:length].tolist()
            if model.config.image_token_id in response:  # the library would take it for an image
                continue
            expected = librarys_logprobs(model, [*prompt, *response], len(prompt), pictures)
            assert np.abs(noted[:length] - expected.numpy()).max() < 1e-5
            checked += 1
    assert checked > 2 * len(prompts)


@pytest.mark.parametrize("fast", [True, False])
def test_responses_that_have_begun_still_see_the_image(tokenizer, processor, fast):
    """Also behind a sampled placeholder, which is text. Two responses of one prompt have begun differently."""
    model = build(tokenizer)
    prompts, own = prepared(processor, "mixed lengths", SIZES)
    picked, begun = [0, 0, 1, 2], [[5, 6], [7], [], [8, 9, 10]]
    chosen, pictures = [prompts[i] for i in picked], [own[i] for i in picked]
    keys = np.arange(4, dtype=np.uint64)
    found = sample(model, chosen, 1, keys, 7, SETTINGS, images=pictures, beginnings=begun, fast=fast)
    for prompt, beginning, picture_, samples in zip(chosen, begun, pictures, found, strict=True):
        response = samples.tokens[0, : samples.lengths[0]].tolist()
        assert model.config.image_token_id not in response
        start = len(prompt) + len(beginning)
        expected = librarys_logprobs(model, [*prompt, *beginning, *response], start, picture_)
        assert np.abs(samples.logprobs[0, : len(response)] - expected.numpy()).max() < 1e-5
    begun[0][1] = model.config.image_token_id
    again = sample(model, chosen, 1, keys, 7, SETTINGS, images=pictures, beginnings=begun, fast=fast)
    for one, other in zip(found[1:], again[1:], strict=True):
        assert np.array_equal(one.tokens, other.tokens)


PICKS = {
    "one image": ([0, 0, 0, 1, 1, 0], [4, 7, 1, 2, 7, 3]),
    "mixed lengths": ([2, 0, 1, 1, 2, 0, 0], [3, 5, 5, 1, 2, 6, 6]),
    "two images, and none": ([0, 1, 2, 1, 0], [4, 4, 1, 6, 2]),
}


@pytest.mark.parametrize("name", PICKS)
def test_scores_and_gradients_are_the_librarys(tokenizer, processor, name):
    model = build(tokenizer)
    assert scoring_qwen2.supports(model)
    prompts, own = prepared(processor, name)
    ids, starts, lengths, width, pictures, mask = rows(prompts, own, *PICKS[name])
    weights = torch.randn(2, *mask.shape, generator=torch.Generator().manual_seed(1)) * mask

    def run(**how):
        model.zero_grad()
        scored = models.score(model, ids, starts, width, 0.8, True, pictures=pictures, **how)
        ((scored.logprobs * weights[0]).sum() + (scored.entropy * weights[1]).sum()).backward()
        return scored, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    for row, (pick, n) in enumerate(zip(*PICKS[name], strict=True)):
        start = len(prompts[pick])
        expected = librarys_logprobs(model, ids[row, : start + n].tolist(), start, own[pick], 0.8)
        with torch.no_grad():
            found = models.score(model, ids, starts, width, 0.8, pictures=pictures).logprobs[row, :n]
        assert (found - expected).abs().max() < 1e-5

    slow, expected = run()
    fast, found = run(lengths=lengths)
    assert ((fast.logprobs - slow.logprobs) * mask).abs().max() < 1e-5
    assert ((fast.entropy - slow.entropy) * mask).abs().max() < 1e-5
    assert found.keys() == expected.keys()
    assert float(found["model.visual.patch_embed.proj.weight"].abs().max()) > 0
    for n in found:
        torch.testing.assert_close(found[n], expected[n], rtol=1e-4, atol=2e-5 * float(expected[n].abs().max()))


def test_a_sampled_image_token_is_text(tokenizer, processor):
    """A policy may sample the placeholder; scoring takes it for one more token, on both ways."""
    model = build(tokenizer)
    prompts, own = prepared(processor, "one image")
    ids, starts, lengths, width, pictures, _ = rows(prompts, own, [0, 1], [3, 4])
    ids[0, starts[0] + 1] = model.config.image_token_id
    with torch.no_grad():
        slow = models.score(model, ids, starts, width, pictures=pictures).logprobs
        fast = models.score(model, ids, starts, width, lengths=lengths, pictures=pictures).logprobs
    assert (slow - fast)[0, :3].abs().max() < 1e-5 and (slow - fast)[1].abs().max() < 1e-5


def test_a_frozen_tower_sees_an_image_once_until_it_is_loaded_again(tokenizer, processor, monkeypatch):
    model, seen, tower = build(tokenizer), [], images.tower
    prompts, own = prepared(processor, "mixed lengths", SIZES[:1])
    monkeypatch.setattr(images, "tower", lambda model, new: seen.append(len(new)) or tower(model, new))
    for frozen, expected in ((False, [1, 3]), (True, [1, 2]), (True, [1, 2])):
        model.requires_grad_(not frozen)
        model.load_state_dict({name: value * 1.1 for name, value in model.state_dict().items()})
        seen.clear()
        images.look(model, prompts[:1], own[:1])
        views = images.look(model, prompts, own)
        assert seen == expected
        assert torch.allclose(torch.cat([view.features for view in views]), tower(model, own), atol=1e-5)


def test_another_family_is_refused(tokenizer, processor):
    model = build(tokenizer)
    model.config.model_type = "other_vl"
    with pytest.raises(UserError, match="other_vl"):
        images.look(model, *prepared(processor, "one image"))


def test_auto_processor_loads_a_checkpoint_without_torchvision(tokenizer, processor, tmp_path):
    images.register_processor()
    build(tokenizer).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = hf.AutoProcessor.from_pretrained(tmp_path)
    assert type(loaded).__name__ == "Qwen2_5_VLProcessor" and isinstance(loaded, hf.Qwen2_5_VLProcessor)
    text = loaded.apply_chat_template(
        images.to_messages([{"role": "user", "content": "<image>triangle third :"}]), add_generation_prompt=True
    )
    assert text == TEXTS["one image"][0]
    ((tokens, own),) = images.prepare(loaded, [text], [[picture(0)]])
    assert tokens.count(loaded.image_token_id) == 9
    assert own.pixel_values.shape == (36, 192) and own.image_grid_thw.tolist() == [[1, 6, 6]]
    assert own.pixel_values.min() >= -2 and own.pixel_values.max() <= 0
    with pytest.raises(UserError, match="image processor"):
        tokenizer.save_pretrained(tmp_path / "text")
        hf.Qwen2Config(vocab_size=8).save_pretrained(tmp_path / "text")
        images.load_processor(tmp_path / "text")
