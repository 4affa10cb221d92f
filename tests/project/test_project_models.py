"""A model of a project's own is one file: the families of docs/project.md are built, written and read again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.pages import example

from bapo.engines.shared import models
from bapo.experiments.compose import compose_config, forget

SCRATCH, PRETRAINED = "experiments/model/gpt-neox-tiny.yaml", "experiments/model/mine.yaml"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bapo.yaml").write_text("scale: laptop\n")
    for file in (SCRATCH, PRETRAINED):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(example("yaml", file))
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()


def test_a_family_from_scratch_and_the_same_from_a_folder(project: Path) -> None:
    config = compose_config(["task=countdown", "model=gpt-neox-tiny"])
    built, tokenizer = models.build_scratch(config)
    assert type(built).__name__ == "GPTNeoXForCausalLM" and built.config.vocab_size == len(tokenizer)
    folder = project / "models" / "mine"
    built.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = compose_config(["task=countdown", "model=mine"])
    loaded, words = models.load_start(config, torch.device("cpu"))
    tokens = torch.tensor([words("1 + 2 =")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, built.eval()(tokens).logits)
