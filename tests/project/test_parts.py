"""Parts of a project's own: models and a figure, each one file as docs/project.md shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.configs import edit, forget
from support.late import LATE
from support.pages import write_examples
from support.runs import place, write_run, write_study

from analysis import figures, products, report
from analysis.__main__ import main as analysis
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.experiments import studies
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import base_identity, evaluation_identity
from bapo.store.files import read_json, read_table

if LATE:
    import torch

    from bapo.engines.shared import models

MODELS = ("experiments/model/gpt-neox-tiny.yaml", "experiments/model/mine.yaml", "experiments/model/gru-tiny.yaml")
MEASURED = """
from bapo.algorithm import losses
from bapo.methods import Method


class Measured(Method):
    summary = "GRPO, which says how surprised the policy is"

    def loss(self, inputs):
        value, metrics = super().loss(inputs)
        surprise = -losses.aggregate(inputs.logprobs.detach(), inputs.recorded_mask, "token-mean")
        return value, metrics | {"surprise": surprise}
"""
GRU, LENGTHS = "models/gru.py", "figures/lengths.py"
STUDY = """\
name: lengths
title: Lengths
figures: [{figure}]
scales:
  laptop:
    - {{task: countdown, models: [qwen2-112k], methods: [grpo, bapo], seeds: [1, 2]}}
"""


@pytest.fixture
def own_models(empty: Path) -> Path:
    write_examples(empty, *MODELS, GRU)
    return empty


def test_a_family_from_scratch_and_the_same_from_a_folder(own_models: Path) -> None:
    config = compose_config(["task=countdown", "model=gpt-neox-tiny"])
    built, tokenizer = models.build_scratch(config)
    assert type(built).__name__ == "GPTNeoXForCausalLM" and built.config.vocab_size == len(tokenizer)
    folder = own_models / "models" / "mine"
    built.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded, words = models.load_start(compose_config(["task=countdown", "model=mine"]), torch.device("cpu"))
    tokens = torch.tensor([words("1 + 2 =")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, built.eval()(tokens).logits)


def test_a_family_of_the_users_own_code_is_trained_and_evaluated(own_models: Path) -> None:
    """GRPO on the page's GRU, whose untrained responses have right ones by chance only: steps and samples count."""
    small = ["scale=smoke", "task=countdown", "model=gru-tiny", "method=grpo"]
    brief = ["base.iterations=4", "train.steps=2", "probe.points=2", "data.split_sizes.base=64"]
    for job in ("data", "base", "train", "evaluate"):
        assert main([job, *small, *brief]) == 0
    run = own_models / "results/smoke/countdown/gru-tiny/grpo/seed1"
    assert read_json(run / "checkpoints/step_000002/config.json")["model_type"] == "gru"
    assert set(read_json(run / "eval/summary.json")["benchmarks"]) == {"cd34", "cd4"}


def test_the_code_of_a_family_belongs_to_the_identity_and_comments_do_not(own_models: Path) -> None:
    def identities() -> tuple[str, str]:
        forget()
        config = compose_config(["task=countdown", "model=gru-tiny"])
        return base_identity(config), evaluation_identity(config)

    code, before = own_models / GRU, identities()
    code.write_text(code.read_text() + "# a comment\n")
    assert identities() == before
    edit(code, "batch_first=True", "batch_first=True, dropout=0.1")
    assert all(new != old for new, old in zip(identities(), before, strict=True))


@pytest.mark.parametrize(("name", "engine", "message"), [("gru", "verl", "verl"), ("gpt2", "torch", "gpt2")])
def test_a_family_that_cannot_be_is_refused(own_models: Path, name: str, engine: str, message: str) -> None:
    edit(own_models / GRU, 'model_type = "gru"', f'model_type = "{name}"')
    with pytest.raises(UserError, match=message):
        models.build_scratch(compose_config(["task=countdown", "model=gru-tiny", f"engine={engine}"]))


def test_what_a_loss_measures_stands_in_steps_parquet(own_models: Path) -> None:
    code = own_models / "methods" / "measured.py"
    code.parent.mkdir(exist_ok=True)
    code.write_text(MEASURED)
    small = ["scale=smoke", "task=countdown", "method=measured"]
    brief = ["base.iterations=4", "train.steps=2", "probe.prompts=0", "data.split_sizes.base=64"]
    for job in ("data", "base", "train"):
        assert main([job, *small, *brief]) == 0
    table = read_table(own_models / "results/smoke/countdown/qwen2-112k/measured/seed1/steps.parquet")
    assert table.surprise.tolist() == pytest.approx(table.entropy.tolist(), rel=0.2)  # of the policy's own responses


def test_a_figure_is_drawn_beside_its_studys_comparison_and_shown_in_the_report(empty: Path) -> None:
    write_examples(empty, LENGTHS)
    file = empty / "experiments" / "study" / "lengths.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(STUDY.format(figure=f"{LENGTHS}:response_lengths"))
    cells = [("tiny", method, seed) for method in ("grpo", "bapo") for seed in (1, 2)]
    for _, method, seed in cells:
        steps = [{"response_length": 10.0 * seed + i} for i in range(3)]
        write_run(place(empty, method, seed), {"a": [[0, 1]] * 4, "b": [[1, 0]] * 4}, steps=steps)
    study, out = write_study(empty, cells, name="lengths", reference="grpo"), empty / "tables"
    assert analysis(["comparison", "--study", str(study), "--out", str(out)]) == 0
    data = (out / "comparison_lengths_response_lengths.csv").read_text().splitlines()
    assert data[0].startswith("step,response_length") and len(data) == 1 + 4 * 3
    (table,) = (part for part in report._parts(out, out) if part["key"] == "comparison_lengths")
    assert list(table["pictures"]) == ["comparison_lengths_response_lengths.svg"]
    assert products.compared_with("lengths") == [f"{LENGTHS}:response_lengths"]
    assert products.compared_with("table1") == []
    assert products.own_studies("laptop") == ["lengths"] and products.own_studies("smoke") == []
    for old, new, field in (
        ("scales:", "scale:", "scale: no such key"),
        ("laptop:", "laptopp:", "scales.laptopp: unknown scale"),
        (f"[{LENGTHS}:response_lengths]", "3", "figures"),
    ):
        file.write_text(STUDY.format(figure=f"{LENGTHS}:response_lengths").replace(old, new))
        with pytest.raises(UserError, match=f"lengths.yaml: {re.escape(field)}"):
            products.targets("laptop", ())
    file.write_text(STUDY.format(figure="figures/none.py:draw"))
    with pytest.raises(UserError, match=r"figures=figures/none\.py:draw: no file"):
        studies.load_study("lengths", "laptop")
    with pytest.raises(UserError, match=r"lengths\.py has no other"):
        figures.function(f"{LENGTHS}:other")
