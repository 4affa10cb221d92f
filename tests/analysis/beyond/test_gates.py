"""Gates and decisions that a study wrote down: quantities by hand, rules, and the page, on runs made here."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from support.paths import ROOT
from support.runs import outcomes, place, probe_rows, write_evaluation, write_run, write_study

from analysis import study
from analysis.beyond import gates
from analysis.statistics import Estimate, mean_over_seeds
from bapo.errors import UserError
from bapo.experiments import places
from bapo.experiments.compose import run_config
from bapo.experiments.settings import Settings
from bapo.experiments.studies import study_of
from bapo.validate import parse_yaml

#: accuracy of the base, and of two methods with three seeds
BASE, GRPO, BAPO = 0.25, (0.5, 0.5, 0.75), (0.75, 0.5, 1.0)
LEAD = {"of": "bapo", "minus": "grpo"}
GATE = {"says": "GRPO learns", "measure": "gain", "of": "grpo", "must": ["mean >= 15"]}


def with_rules(root: Path, monkeypatch: pytest.MonkeyPatch, **rules: object) -> study.StudyFile:
    """Write runs and the file of their study "asked", and load it."""
    monkeypatch.setattr(places, "file_of", lambda kind, name: root / f"{name}.yaml")
    root.mkdir(exist_ok=True)
    (root / "asked.yaml").write_text(yaml.safe_dump({"name": "asked", "claim": "it helps", **rules}))
    for method, accuracies in (("grpo", GRPO), ("bapo", BAPO)):
        for seed, accuracy in enumerate(accuracies, start=1):
            # of the probed prompts t0 and t1 start at 0/8; t0 stays there, t1 is solved by all but the first seed
            probe = probe_rows({0: (0, 0, seed), 10: (0, int(seed > 1), 8)})
            held_out = probe_rows({0: (2,), 10: (2 + seed,)}, probed="probe")
            bits = {"a": outcomes([round(8 * accuracy)] * 4)}
            write_run(place(root, method, seed), bits, probe=pd.concat([probe, held_out]))
    base = root / "base"
    write_evaluation(base / "eval", {"a": outcomes([2] * 4)})
    cells = [("tiny", method, seed) for method in ("grpo", "bapo") for seed in (1, 2, 3)]
    bases = [{"task": "countdown", "model": "tiny", "run": str(base)}]
    return study.load(write_study(root, cells, benchmarks=("a",), bases=bases, name="asked"))


def first_estimate(asked: study.StudyFile) -> Estimate:
    return gates.judge(asked.blocks, asked, gates.registered("asked"))[0]["estimate"]


def judged(root: Path, monkeypatch: pytest.MonkeyPatch, **quantity: object) -> Estimate:
    return first_estimate(with_rules(root, monkeypatch, gates=[{**GATE, **quantity}]))


def check(name: str, settings: Settings) -> None:
    """Check the rules of a study as the workflow does."""
    planned = study_of(name, settings)
    benchmarks = {
        c.task: run_config(settings.scale, c.task, c.model, "", 0).evaluation.benchmarks for c in planned.cells
    }
    gates.check(planned, [*benchmarks.values()], chosen=bool(settings.methods))


@pytest.mark.parametrize("path", sorted((ROOT / "experiments" / "study").glob("*.yaml")), ids=lambda path: path.stem)
def test_rules_of_every_study_fit_its_runs_at_every_scale(path: Path) -> None:
    """Before its first run, not after the last one."""
    if "gates" in (content := parse_yaml(path)):
        for scale in content["scales"]:
            check(path.stem, Settings(scale=scale))


@pytest.mark.parametrize(
    ("quantity", "mean"),
    [
        ({"measure": "accuracy"}, 100 * np.mean(GRPO)),
        ({"measure": "gain"}, 100 * (np.mean(GRPO) - BASE)),
        ({"measure": "accuracy", "of": "bapo", "minus": "grpo"}, 100 * np.mean([0.25, 0, 0.25])),
        ({"measure": "gain_share", "of": "bapo", "minus": "grpo"}, 100 * (1 / 6) / (7 / 12 - 1 / 4)),
        ({"measure": "gain_share", "of": "grpo", "minus": "bapo", "gain_from": "grpo"}, -100),
        ({"measure": "gain", "problems": "probe"}, 100 * 2 / 8),
        ({"measure": "gain", "problems": "probe", "prompts": "t0"}, 100 * 2 / 8),
        ({"measure": "start"}, 100 * 2 / 3),
        ({"measure": "fall"}, 100 * np.mean([0, 1 / 3, 1 / 3])),
        ({"measure": "fall", "prompts": "t[01]"}, 100 * np.mean([0, 1 / 2, 1 / 2])),
        ({"measure": "unlocked"}, 100 * np.mean([0, 1 / 2, 1 / 2])),
        # t0 and t1 again: no seed's probe of the base solves them
        ({"measure": "never_solved", "of": "bapo"}, 100 * np.mean([0, 1 / 2, 1 / 2])),
        ({"measure": "accuracy", "problems": "a", "minus": "base"}, 100 * (np.mean(GRPO) - BASE)),
    ],
)
def test_a_quantity_is_what_a_hand_works_out(
    quantity: dict[str, object], mean: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimate = judged(tmp_path, monkeypatch, **quantity)
    assert estimate.mean == pytest.approx(mean) and estimate.df == 2


def test_coverage_is_the_chance_of_one_right_answer_in_32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One right answer of 64 is among 32 of them half of the time; the other problem, and the base model, have none."""
    asked = with_rules(tmp_path, monkeypatch, gates=[{**GATE, "measure": "pass@32", "minus": "base"}])
    none = [0] * 64
    for seed in (1, 2, 3):
        write_run(place(tmp_path, "grpo", seed), {"a": [[1, *none[1:]], none]})
        write_run(place(tmp_path, "bapo", seed), {"a": [none, none]})
    write_evaluation(tmp_path / "base" / "eval", {"a": [none, none]})
    found = first_estimate(asked)
    assert (found.mean, found.se) == (pytest.approx(25), 0)


def test_a_benchmark_that_a_study_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="problems: b is no benchmark; there are a"):
        judged(tmp_path, monkeypatch, problems="b")
    with pytest.raises(UserError, match="prompts: no problem of a matches 'p9'"):
        judged(tmp_path, monkeypatch, prompts="p9")


def test_seeds_are_paired_and_a_share_has_the_error_of_a_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paired = judged(tmp_path / "a", monkeypatch, measure="accuracy", of="bapo", minus="grpo")
    assert paired.se == pytest.approx(100 * np.std([0.25, 0, 0.25], ddof=1) / 3**0.5)
    share = judged(tmp_path / "b", monkeypatch, measure="gain_share", of="bapo", minus="grpo")
    difference, gain = np.array([0.25, 0, 0.25]), np.array(GRPO) - BASE
    residuals = (difference - 0.5 * gain) / gain.mean()
    assert share.se == pytest.approx(100 * np.std(residuals, ddof=1) / 3**0.5)


#: solved of 8 samples of two problems, by base model: of the base itself and of its runs
OF_BASES = {
    "base": {"one": (1, 1), "two": (1, 3)},
    "grpo": {"one": (3, 3), "two": (2, 4)},
    "whole": {"one": (2, 2), "two": (2, 4)},
    "bapo": {"one": (5, 3), "two": (3, 7)},
}


@pytest.mark.parametrize(
    ("quantity", "by_base"),
    [
        # eighths of a problem's samples, in one and in two
        ({"measure": "accuracy", "of": "grpo", "minus": "base"}, [[2, 2], [1, 1]]),
        ({"measure": "accuracy", "problems": "a", **LEAD}, [[2, 0], [1, 3]]),
        ({"measure": "accuracy", **LEAD}, [[2, 0], [1, 3]]),
        ({"measure": "gain", "of": "grpo"}, [[2, 2], [1, 1]]),
        ({"measure": "accuracy", **LEAD, "less": {"of": "grpo", "minus": "whole"}}, [[1, -1], [1, 3]]),
    ],
)
def test_where_the_base_is_the_unit_bases_and_problems_are_both_random(
    quantity: dict[str, Any], by_base: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = mean_over_seeds(np.array(by_base) / 8).tested
    found = first_estimate(of_bases(tmp_path, monkeypatch, **quantity))
    assert (found.mean, found.se, found.df) == pytest.approx((100 * expected.mean, 100 * expected.se, expected.df))
    assert found.mean == pytest.approx(100 * np.mean(by_base) / 8)


def test_a_gain_is_measured_from_the_method_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BAPO leads GRPO by 6/32; GRPO leads the whole batch by 2/32 and the base model by 6/32."""
    for name, share in (("whole", 300), ("base", 100)):
        asked = of_bases(tmp_path / name, monkeypatch, measure="gain_share", **LEAD, gain_from=name)
        assert first_estimate(asked).mean == pytest.approx(share)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"grpo": {"one": (3, 3)}}, "grpo lacks a finished run"),
        ({"bapo": {"one": (5, 3), "two": (3, 7, 8)}}, "other"),
        ({"base": {"one": (1, 1)}}, "Two is not evaluated"),
    ],
)
def test_bases_that_cannot_be_compared_are_named(
    change: dict[str, dict[str, tuple[int, ...]]], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OF_BASES, *next(iter(change.items())))
    asked = of_bases(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=named):
        gates.write(asked, tmp_path / "out")


def test_where_a_data_set_is_the_unit_its_problems_are_its_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second base answers three problems and the first two: leads of 1/8 and 5/24, whatever the problems."""
    asked = of_bases(tmp_path / "same", monkeypatch, unit="data")
    with pytest.raises(UserError, match="Two: evaluated on the same problems as"):
        gates.write(asked, tmp_path / "out")
    for method, (_, two) in {m: tuple(solved.values()) for m, solved in OF_BASES.items()}.items():
        monkeypatch.setitem(OF_BASES[method], "two", (*two, 5 if method == "bapo" else 4))
    found = first_estimate(of_bases(tmp_path, monkeypatch, unit="data", measure="accuracy", **LEAD))
    assert (found.mean, found.df) == pytest.approx((100 * (1 / 8 + 5 / 24) / 2, 1))
    assert found.se == pytest.approx(100 * (5 / 24 - 1 / 8) / 2)
    second = of_bases(tmp_path, monkeypatch, unit="data", measure="accuracy", prompts="1$", **LEAD)
    assert first_estimate(second).mean == pytest.approx(100 * (0 + 3 / 8) / 2)
    csv, *_ = gates.write(second, tmp_path / "out")
    models = list(OF_BASES["bapo"])
    assert {*pd.read_csv(csv)["model"]} == {f"{models[0]} over {len(models)} bases"}


def of_bases(root: Path, monkeypatch: pytest.MonkeyPatch, unit: str = "base", **quantity: object) -> study.StudyFile:
    """Write the runs of OF_BASES, each base with a seed of its own, and the file of their study, and load it."""
    monkeypatch.setattr(places, "file_of", lambda kind, name: root / f"{name}.yaml")
    root.mkdir(exist_ok=True)
    rules = {"claim": "it helps", "unit": unit, "gates": [{**GATE, **quantity}]}
    (root / "asked.yaml").write_text(yaml.safe_dump({"name": "asked", **rules}))
    bases = []
    for method, solved in OF_BASES.items():
        for seed, (model, counts) in enumerate(solved.items(), start=1):
            bits = {"a": outcomes(counts)}
            if method == "base":
                write_evaluation(root / model / "eval", bits)
                bases.append({"task": "countdown", "model": model, "run": str(root / model)})
            else:
                write_run(place(root, method, seed, model=model), bits)
    cells = [(m, method, n) for method in ("grpo", "whole", "bapo") for n, m in enumerate(OF_BASES[method], start=1)]
    return study.load(write_study(root, cells, benchmarks=("a",), bases=bases, name="asked"))


@pytest.mark.parametrize(
    ("rules", "met"),
    [
        (["mean >= 5"], True),
        (["mean > 5"], False),
        (["low > 0"], True),
        (["low > 2", "mean < 9"], False),
        (["high <= 10"], True),
        (["p < 0.05"], True),
        (["p < 0.01"], False),
    ],
)
def test_a_rule_is_about_the_mean_an_end_of_the_interval_or_p(rules: list[str], met: bool) -> None:
    estimate = Estimate(5.0, 2.0, 10.0)  # 95% of t with 10 degrees of freedom: 0.54 to 9.46
    assert gates.meets(estimate, rules, 0.03) == met
    assert not gates.meets(Estimate(5.0, float("nan"), 0.0), ["low > 0"], float("nan"))


DECISION = {"asks": "Is BAPO better?", "measure": "accuracy", **LEAD}


@pytest.mark.parametrize(
    ("must", "support", "contradiction", "verdicts"),
    [
        ("mean >= 15", "mean > 10", "high < 10", ["passed", "support"]),
        ("mean >= 15", "low > 0", "high < 10", ["passed", "undecided"]),
        ("mean >= 15", "low > 0", "mean > 10", ["passed", "contradiction"]),
        ("mean >= 90", "mean > 10", "high < 10", ["failed", "support"]),
    ],
)
def test_the_page_says_first_what_the_study_can_say(
    must: str, support: str, contradiction: str, verdicts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = {**DECISION, "support": [support], "contradiction": [contradiction]}
    asked = with_rules(tmp_path, monkeypatch, gates=[{**GATE, "must": [must]}], decisions=[decision])
    csv, page, _ = gates.write(asked, tmp_path / "out")
    assert pd.read_csv(csv)["verdict"].tolist() == verdicts
    first = {"passed": "Every positive control passed", "failed": "This setup cannot test the claim that it helps"}
    assert page.read_text().splitlines()[2].startswith(f"- {first[verdicts[0]]}")


def test_questions_of_one_family_share_holms_correction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bapo minus grpo: 1/4, 0, 1/4, so p = 0.18; alone it is below 0.2, twice in a family it is not."""
    decision = {**DECISION, "support": ["p < 0.2"], "contradiction": ["high < 0"]}
    family = [{**decision, "family": "mechanism"}] * 2
    asked = with_rules(tmp_path, monkeypatch, gates=[GATE], decisions=[decision, *family])
    rules = gates.registered("asked")
    found = gates.judge(asked.blocks, asked, rules)[1:]
    assert [each["verdict"] for each in found] == ["support", "undecided", "undecided"]


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        *(
            ({"gates": [{**GATE, "must": [rule]}]}, "gates.0.must.0=.*: must be one of mean, low, high and p")
            for rule in ("mean about 3", "low > -50 and mean > 1", "xlow > -50", "low > -50%", "low > 1\n")
        ),
        ({"gates": [{**GATE, "measure": "luck"}]}, "gates.0.measure"),
        ({"gates": [{**GATE, "of": "dapo"}]}, "dapo"),
        ({"gates": [{**GATE, "less": {"of": "bapo", "minus": "grpo"}}]}, "less"),
        ({"gates": [{**GATE, "measure": "gain_share", "minus": "bapo", "less": {"of": "a", "minus": "b"}}]}, "less"),
        ({"gates": [{**GATE, "gain_from": "bapo"}]}, "gain_from"),
        ({"gates": [{**GATE, "measure": "gain_share"}]}, "minus"),
        ({"gates": [{**GATE, "measure": "gain", "minus": "base"}]}, "minus: base belongs to measure"),
        ({"gates": [{**GATE, "measure": "start", "prompts": "("}]}, "prompts: bad regular expression"),
        ({"gates": [{**GATE, "measure": "asymptote", "prompts": "t"}]}, "prompts chooses problems"),
        ({"gates": [GATE], "unit": "base"}, "two base models"),
        ({"gates": [{**GATE, "measure": "unlocked"}], "unit": "data"}, "gates.0: with unit: data"),
        ({"gates": [{**GATE, **LEAD, "less": {"of": "bapo", "minus": "grpo"}}]}, "gates.0.less: needs unit"),
        ({}, "gates"),
    ],
)
def test_what_cannot_be_judged_is_named(
    rules: dict[str, object], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=named):
        gates.write(with_rules(tmp_path, monkeypatch, **rules), tmp_path)


#: a study of two methods that no one has run
PLANNED = "[{task: countdown, models: [qwen2-112k], methods: [grpo, bapo+rollouts], seeds: [1, 2]}]"
OF_SEEDS = "[{task: countdown, models: [qwen2-112k], methods: [grpo], seeds: [1]}, "
OF_SEEDS += "{task: countdown, models: [qwen2-112k], methods: [bapo], seeds: [2]}]"
SHARE = {**GATE, "measure": "gain_share"}
LESS = {**GATE, "minus": "grpo", "less": {"of": "grpo", "minus": "dapo"}}
OF_MODELS = PLANNED.replace("qwen2-112k", "qwen2-112k+base_2, qwen2-112k+base_3")


@pytest.mark.parametrize(
    ("rules", "runs", "named"),
    [
        ({"gates": [{**GATE, "minus": "bapo+rollouts"}]}, PLANNED, ""),
        ({"gates": [GATE], "unit": "base"}, OF_MODELS, ""),
        ({"gates": [{**GATE, "measure": "unlocked"}]}, PLANNED, ""),
        ({"gates": [{**GATE, "measure": "accuracy", "problems": "cd34", "minus": "base"}]}, PLANNED, ""),
        ({"gates": [{**GATE, "mesure": "gain"}]}, PLANNED, r"gates\.0\.mesure: no such key"),
        ({"claim": None, "gates": [GATE]}, PLANNED, "claim"),
        ({"gates": [{**GATE, "of": "dapo"}]}, PLANNED, r"gates\.0\.of: .*dapo.*allowed: grpo, bapo\+rollouts"),
        ({"gates": [{**GATE, "of": "base"}]}, PLANNED, r"gates\.0\.of: "),
        ({"gates": [GATE, {**GATE, "minus": "bapo"}]}, PLANNED, r"gates\.1\.minus: .*allowed: grpo, bapo\+rollouts"),
        ({"gates": [{**SHARE, "minus": "grpo", "gain_from": "repo"}]}, PLANNED, r"gates\.0\.gain_from: .*repo"),
        ({"gates": [LESS], "unit": "base"}, OF_MODELS, r"gates\.0\.less\.minus: .*dapo"),
        ({"gates": [{**GATE, "problems": "cd5"}]}, PLANNED, r"gates\.0\.problems: no set 'cd5'.*cd34"),
        ({"gates": [{**GATE, "measure": "pass@32", "problems": "probe"}]}, PLANNED, r"gates\.0\.problems"),
        ({"gates": [GATE], "unit": "data"}, PLANNED, "unit=data: .*two base models of countdown at scale smoke"),
        ({"gates": [{**GATE, "measure": "asymptote"}]}, PLANNED, "add it to curves"),
        ({"gates": [GATE], "evaluated": False}, PLANNED, "needs evaluations"),
        ({"gates": [{**GATE, "measure": "never_solved"}], "reference": "dapo"}, PLANNED, "dapo"),
        ({"gates": [{**GATE, "measure": "accuracy", **LEAD}]}, OF_SEEDS, "share no seed"),
        ({"gates": [{**GATE, "measure": "unlocked"}]}, OF_SEEDS.replace("bapo", "grpo+v1"), "two seeds"),
        ({"gates": [GATE], "unit": "base"}, OF_SEEDS.replace("112k", "112k, qwen2-25m"), "have different seeds"),
    ],
)
def test_rules_are_checked_against_the_runs_before_the_first(
    rules: dict[str, Any], runs: str, named: str, experiments: Path
) -> None:
    scales = {"smoke": yaml.safe_load(runs)}
    content = {"name": "asked", "title": "Asked", "claim": "it helps", **rules, "scales": scales}
    given = {key: value for key, value in content.items() if value is not None}
    (experiments / "study" / "asked.yaml").write_text(yaml.safe_dump(given))
    refused = pytest.raises(UserError, match=rf"study/asked\.yaml: .*{named}")
    with refused if named else contextlib.nullcontext():
        check("asked", Settings(scale="smoke"))


def test_methods_that_leave_a_rule_without_its_runs_are_refused() -> None:
    with pytest.raises(UserError, match=r"stale\.yaml: gates\.0\.of=grpo_stale\+rollouts: .*leave methods=\.\.\. out"):
        check("stale", Settings(scale="smoke", methods=("grpo",)))
