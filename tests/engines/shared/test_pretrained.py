"""Models: what one says of itself is read and refused where it does not fit; the hub is asked once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from omegaconf import DictConfig
from support import hub_server
from support.late import LATE

from bapo import tasks
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.evaluation.checkpoints import revision_of
from bapo.experiments import identity
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory, run_directory
from bapo.store.files import read_json
from bapo.validate import plain

if LATE:
    import torch
    from gguf import GGUFWriter

    from bapo.engines.shared import models
    from bapo.engines.shared.models import gguf, pretrained
    from bapo.engines.torch.base_model import train_base


#: a run of seconds on a CPU
RUN = [
    "scale=smoke", "task=countdown", "tracking=none", "train.steps=2", "train.batch_size=4", "train.mini_batch_size=2",
    "train.group_size=2", "probe.prompts=0", "checkpoint.every=2", "evaluation.samples=2",
    "data.split_sizes={train: 8, probe: 4, cd34: 4, cd4: 4}",
]  # fmt: skip
HF = ["model=hf", "model.name=tiny", "model.dtype=float32"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with the laptop's tokenizer, in files as the hub has them, an untied head among its 5,000 weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = tasks.get("countdown").build_tokenizer(compose_config(RUN))
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
    LlamaForCausalLM(LlamaConfig(max_position_embeddings=96, **ids, **shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def changed(tiny: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copy the model with another file: ``changed("config.json", key=value)``; None removes a key."""

    def change(file: str, **values: Any) -> Path:
        folder = tmp_path / "changed"
        folder.mkdir()
        for path in tiny.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        content = json.loads((folder / file).read_text(encoding="utf-8"))
        content = {key: value for key, value in {**content, **values}.items() if value is not None}
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
        return folder

    return change


def config_of(folder: Path | str, results: Path, *more: str) -> DictConfig:
    return compose_config([*RUN, *HF, f"model.path={folder}", f"paths.results={results}", *more])


def test_what_its_files_say_is_read(tiny: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = config_of(tiny, tmp_path)
    count = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(tiny).parameters())
    assert (config.model.parameters, config.model.context_length) == (count, 96)
    assert plain(config.model.sizes) == {"vocabulary": 53, "width": 32, "layers": 1, "mlp": 64}
    assert (config.model.title, config.model.revision) == ("tiny", None)
    stated = config_of(tiny, tmp_path, "model.parameters=7", "model.context_length=80")
    assert (stated.model.parameters, stated.model.context_length) == (7, 80)
    for of in (identity.base_identity, identity.train_identity, identity.evaluation_identity):
        assert of(stated) == of(config)  # facts about a model change no run


def test_it_trains_and_is_evaluated_on_a_cpu(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*RUN, *HF, f"model.path={tiny}", f"paths.results={tmp_path}", "method=bapo", "device=cpu"]
    for command in (["data"], ["base"], ["train"], ["evaluate"], ["evaluate", "--base"]):
        assert main([*command, *words]) == 0, capsys.readouterr().err
    config = compose_config(words)
    facts = read_json(base_directory(config) / "summary.json")["facts"]
    assert facts["positions"] == 96 and facts["template"]
    assert len(pd.read_parquet(run_directory(config) / "steps.parquet")) == 2
    assert (run_directory(config) / "eval" / "summary.json").is_file()


@pytest.mark.parametrize(
    ("file", "values", "field"),
    [
        ("tokenizer_config.json", {"chat_template": None}, "chat_template"),
        ("config.json", {"max_position_embeddings": 32}, "32 positions"),
        ("config.json", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_what_does_not_fit_is_refused(
    file: str, values: dict[str, Any], field: str, changed: Callable[..., Path], tmp_path: Path
) -> None:
    folder = changed(file, **values)
    if file == "tokenizer_config.json":
        (folder / "chat_template.jinja").unlink()  # where transformers 5 writes it
    with pytest.raises(UserError, match=field) as error:
        train_base(config_of(folder, tmp_path))
    assert file in str(error.value)


def test_broken_folders_are_named(tiny: Path, changed: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json: missing"):
        config_of(tmp_path, tmp_path)
    folder = changed("config.json")
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(UserError, match=r"model\.safetensors"):
        config_of(folder, tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("model.safetensors", {"lm_head.weight": None}, "the weight lm_head.weight is missing"),
        ("model.safetensors", {"model.norm.weight": [3, 3]}, "the weight model.norm.weight .*another shape"),
        ("tokenizer.json", None, "its tokenizer has no words without .*tokenizer.json"),
        ("tokenizer.json", "{}", "its tokenizer cannot be loaded: 'added_tokens'"),
    ],
)
def test_what_a_model_lacks_is_not_made_up(
    file: str, content: Any, named: str, changed: Callable[..., Path], tmp_path: Path
) -> None:
    """transformers initialises missing weights at random, and gives a tokenizer without files no words."""
    from safetensors.torch import load_file, save_file

    folder = changed("config.json")
    config = config_of(folder, tmp_path)
    if isinstance(content, dict):
        weights = load_file(folder / file)
        for name, shape in content.items():
            weights.pop(name)
            weights |= {name: torch.zeros(shape)} if shape else {}
        save_file(weights, folder / file, {"format": "pt"})
    elif content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(UserError, match=f"{folder}: {named}.*get or train the model again"):
        models.load(folder, config, torch.device("cpu"))


def test_a_checkpoint_has_the_words_that_its_model_has_in_other_files(
    changed: Callable[..., Path], tmp_path: Path
) -> None:
    """GPT-2's tokenizer is in vocab.json and merges.txt, and transformers writes it to tokenizer.json."""
    folder = changed("config.json")
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    config, cpu = config_of(folder, tmp_path), torch.device("cpu")
    model, tokenizer = models.load(folder, config, cpu)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint" / "vocab.json").exists()
    assert models.load(tmp_path / "checkpoint", config, cpu)[1].get_vocab() == tokenizer.get_vocab()


def test_a_model_of_the_hub_is_described_by_its_base_job(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {path.name: path.read_bytes() for path in tiny.iterdir()}
    hub_server.serve(monkeypatch, tmp_path / "cache", {"owner/tiny": content})
    before = config_of("owner/tiny", tmp_path / "results")
    assert before.model.context_length is None
    summary = train_base(before)
    assert summary["revision"] == hub_server.COMMIT
    after = config_of("owner/tiny", tmp_path / "results")
    assert (after.model.context_length, after.model.parameters) == (96, summary["facts"]["parameters"])
    assert identity.base_identity(after) == summary["identity"]
    with pytest.raises(UserError, match=r"has 96 positions \(owner/tiny: config\.json\); lower either"):
        config_of("owner/tiny", tmp_path / "results", "sampling.max_response_tokens=96")


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
def test_other_files_in_the_same_folder_are_noticed(file: str, changed: Callable[..., Path], tmp_path: Path) -> None:
    folder = changed("config.json")
    config = config_of(folder, tmp_path / "results")
    train_base(config)
    assert models.start_path(config) == folder == pretrained.start_of(config)
    (folder / "README.md").write_text("A file that was not there before.")
    (folder / "nohup.out").write_text("Nor was this.")
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[:-1] + b" ")
    for job in (models.start_path, pretrained.start_of, train_base):
        with pytest.raises(UserError, match=f"{folder / file} is missing or damaged, or has changed since `bapo base`"):
            job(config)
    (folder / file).write_bytes(content)
    assert models.start_path(config) == folder


NAME = "owner/tiny"
FILES = {"config.json": b'{"model_type": "qwen2"}', "model.safetensors": b"weights", "tokenizer.json": b"{}"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hub_server.Hub:
    return hub_server.serve(monkeypatch, tmp_path / "cache", {NAME: FILES})


def fetched_config(tmp_path: Path, *more: str) -> DictConfig:
    words = ["scale=paper", "task=countdown", f"model.path={NAME}", f"paths.results={tmp_path / 'results'}", *more]
    return compose_config(words)


def test_every_job_reads_the_folder_that_the_base_job_fetched(hub: hub_server.Hub, tmp_path: Path) -> None:
    config = fetched_config(tmp_path, f"model.revision={hub_server.COMMIT}")
    with pytest.raises(UserError, match="`bapo base"):
        models.start_path(config)
    assert pretrained.at_hand(config, NAME) == NAME

    summary = train_base(config)
    assert summary["revision"] == hub_server.COMMIT
    asked = len(hub.paths)
    folder = models.start_path(config)
    assert folder.name == hub_server.COMMIT and (folder / "model.safetensors").read_bytes() == b"weights"
    assert pretrained.at_hand(config, NAME) == folder
    assert len(hub.paths) == asked  # nobody asks the hub again

    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"incomplete: 1 file.*`bapo base"):
        models.start_path(config)


def test_a_model_without_a_pin_gets_the_commit_that_the_hub_has(hub: hub_server.Hub, tmp_path: Path) -> None:
    config = fetched_config(tmp_path, "model.revision=null")
    assert train_base(config)["revision"] == hub_server.COMMIT
    assert models.start_path(config).name == hub_server.COMMIT
    assert revision_of(config, config.model.path) == hub_server.COMMIT  # evaluations name it so
    assert revision_of(config, "owner/another") is None
    noted = base_directory(config) / "summary.json"
    noted.write_text(json.dumps({**json.loads(noted.read_text()), "identity": "another"}))
    with pytest.raises(UserError, match="does not say that it was fetched"):
        models.start_path(config)
    with pytest.raises(UserError, match=r"model\.path=owner/tiny at ffff"):
        train_base(fetched_config(tmp_path, f"model.revision={'f' * 40}"))


@pytest.mark.parametrize(("model", "pre"), [("gpt2", "default"), ("llama", "smollm")])
def test_a_file_with_another_tokenizer_is_refused(tmp_path: Path, model: str, pre: str) -> None:
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_tensor("output.weight", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match=rf"x\.gguf: .*{model}/{pre}"):
        gguf.convert(tmp_path / "x.gguf", tmp_path)


VISION = ["task=geometry", "model=qwen2.5-vl-325k"]


@pytest.mark.parametrize(("words", "key"), [([], "hiden_size"), (VISION, "text_config.num_hiden_layers")])
def test_a_key_that_the_family_does_not_have_is_refused(words: list[str], key: str) -> None:
    config = compose_config(["scale=smoke", *words, f"model.architecture.{key}=2"])
    with pytest.raises(UserError, match=rf"model\.architecture\.{key}"):
        models.build_scratch(config)
