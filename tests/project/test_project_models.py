"""A model of a project's own is one file: the families of docs/project.md are built, written and read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.late import LATE
from support.pages import example

from bapo.__main__ import main
from bapo.errors import UserError
from bapo.experiments.compose import compose_config, forget
from bapo.experiments.identity import base_identity, evaluation_identity
from bapo.store.files import read_json

if LATE:
    import torch

    from bapo.engines.shared import models


SCRATCH, PRETRAINED = "experiments/model/gpt-neox-tiny.yaml", "experiments/model/mine.yaml"
FAMILY, CODE = "experiments/model/gru-tiny.yaml", "models/gru.py"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bapo.yaml").write_text("scale: laptop\n")
    for file in (SCRATCH, PRETRAINED, FAMILY, CODE):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(example("python" if file == CODE else "yaml", file))
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


def test_a_family_of_the_users_own_code_is_trained_and_evaluated(project: Path) -> None:
    """GRPO on the page's GRU, whose untrained responses have right ones by chance only: steps and samples count."""
    small = ["scale=smoke", "task=countdown", "model=gru-tiny", "method=grpo"]
    brief = ["base.iterations=4", "train.steps=2", "probe.points=2", "data.split_sizes.base=64"]
    for job in ("data", "base", "train", "evaluate"):
        assert main([job, *small, *brief]) == 0
    run = project / "results/smoke/countdown/gru-tiny/grpo/seed1"
    assert read_json(run / "checkpoints/step_000002/config.json")["model_type"] == "gru"
    assert read_json(run / "summary.json")["steps"] == 2
    assert set(read_json(run / "eval/summary.json")["benchmarks"]) == {"cd34", "cd4"}


def test_the_code_of_a_family_belongs_to_the_identity_and_comments_do_not(project: Path) -> None:
    def identities() -> tuple[str, str]:
        forget()
        config = compose_config(["task=countdown", "model=gru-tiny"])
        return base_identity(config), evaluation_identity(config)

    code = project / CODE
    before = identities()
    code.write_text(code.read_text() + "# a comment\n")
    assert identities() == before
    code.write_text(code.read_text().replace("batch_first=True", "batch_first=True, dropout=0.1"))
    assert all(new != old for new, old in zip(identities(), before, strict=True))


@pytest.mark.parametrize(
    "code, override, message",
    [
        ("class Gru: ...", "seed=1", "models/gru.py:Gru: must be a class derived from transformers.PreTrainedModel"),
        ("Net = 1", "seed=1", "has no Gru"),
        (None, "engine=verl", "vLLM and verl know transformers' families only"),
        ('model_type = "gpt2"', "seed=1", "needs a model_type that transformers has not, got gpt2"),
    ],
)
def test_a_family_that_cannot_be_is_refused(project: Path, code: str | None, override: str, message: str) -> None:
    text = (project / CODE).read_text()
    if code is not None:
        (project / CODE).write_text(text.replace('model_type = "gru"', code) if "model_type" in code else code)
    with pytest.raises(UserError, match=message):
        models.build_scratch(compose_config(["task=countdown", "model=gru-tiny", override]))
