"""The ledger of claims from synthetic runs whose truth is known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.runs import place, probe_rows, rewrite, write_claims, write_curve, write_evaluation, write_run, write_study

from analysis import claims
from analysis.__main__ import main
from analysis.claims import entries, ledger
from analysis.study import load_studies
from bapo.store.files import read_json, read_table, write_json

SEEDS = (1, 2, 3)
N, K, G = 40, 8, 8
PROBLEMS, ABOVE = np.arange(N), {"above": 0}
#: correct answers of K, in every seed: BAPO has 2 or 3 of 8 more than GRPO on each problem, 31.25 points
COUNTS = {
    "grpo": PROBLEMS % 4,
    "dapo": PROBLEMS % 4 + np.where(PROBLEMS < N // 2, 1, -1) * (PROBLEMS % 4 > 0),  # better and worse alike
    "repo": PROBLEMS % 4 + np.where(PROBLEMS % 2, 3, -3) * (PROBLEMS % 4 > 2),  # better at some, no worse elsewhere
    "bapo_without_x2": PROBLEMS % 4,
    "bapo": PROBLEMS % 4 + 2 + PROBLEMS % 2,
}


def bits(counts: np.ndarray) -> np.ndarray:
    """0/1 [n][K] of the counts [n] of correct answers."""
    return (np.arange(K) < counts[:, None]).astype(int)


def write_world(root: Path, methods: Sequence[str], tasks: Sequence[str] = ("countdown",)) -> None:
    """Three seeds of each method, the same answers in each seed, and their study file."""
    studies = []
    for task in tasks:
        for method in methods:
            for seed in SEEDS:
                steps = [{"reward_mean": 0.1 + 0.01 * seed + i / 100} for i in range(20)]
                totals = {"rollouts": 1000, "seconds": 1.0}
                run = write_run(place(root, method, seed, task), {"cd34": bits(COUNTS[method])}, totals, steps)
                if method in ("grpo", "bapo"):
                    write_curve(run / "curve", (0, 20), {"cd34": [[1] * N, [seed + (method == "bapo")] * N]}, K)
        cells = [("tiny", method, seed) for method in methods for seed in SEEDS]
        studies.append(read_json(write_study(root, cells, ("cd34",), task, name="table1")))
    cells = [cell for study in studies for cell in study["cells"]]
    benchmarks = {task: found for study in studies for task, found in study["benchmarks"].items()}
    write_json(root / "study.json", studies[0] | {"cells": cells, "benchmarks": benchmarks})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("claims")
    write_world(root, list(COUNTS))
    return root


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(made / "results", tmp_path / "results")
    content = (made / "study.json").read_text().replace(str(made), str(tmp_path))
    (tmp_path / "study.json").write_text(content)
    return tmp_path


def lines(root: Path, *given: dict) -> list[ledger.LedgerLine]:
    return ledger.ledger(write_claims(root / "entries", *given), load_studies([root / "study.json"]))


def difference(of: str, over: str | list[str], rule: dict, **more: object) -> dict:
    return {"query": {"name": "accuracy_difference", "of": of, "over": over}, "rule": rule, "paper": "x", **more}


def test_accuracy_claims_are_judged_and_corrected(study: Path) -> None:
    pairs = {"up": ("bapo", "grpo"), "down": ("grpo", "bapo"), "flat": ("dapo", "grpo")}
    up, down, flat = lines(study, *(difference(*pair, ABOVE, id=name) for name, pair in pairs.items()))
    e = up.measure.estimate
    # d_i alternates between 2/8 and 3/8, the same in each seed: mean 5/16, sd^2 = 1/256 * 40/39, t(39) = 2.0227
    assert e.mean == pytest.approx(31.25)
    assert e.high - e.mean == pytest.approx(2.0227 * 6.25 / np.sqrt(39), rel=1e-4)
    verdicts = [line.verdict.verdict for line in (up, down, flat)]
    assert verdicts == [claims.REPRODUCED, claims.CONTRADICTED, claims.UNDERPOWERED]
    assert up.measure.seeds == 3
    assert up.runs == tuple(sorted(str(place(study, m, s)) for m in ("bapo", "grpo") for s in SEEDS))
    # Holm: the three p values in order, times 3, 2, 1
    ps = [line.verdict.p for line in (up, down, flat)]
    assert up.adjusted == pytest.approx(3 * min(ps)) or up.adjusted == pytest.approx(2 * max(ps[:2]))
    assert flat.adjusted == pytest.approx(max(ps))
    assert up.holds_corrected
    assert not flat.holds_corrected


def test_only_seeds_that_both_methods_have_are_compared(study: Path) -> None:
    """GRPO without its first seed: the two that both have are compared, and no other."""
    shutil.rmtree(place(study, "grpo", 1))
    both, alone = lines(study, difference("bapo", "grpo", ABOVE), difference("bapo", "dapo", ABOVE, id="b"))
    assert (both.measure.seeds, alone.measure.seeds) == (2, 3) and both.measure.freedom == 1.0
    assert both.measure.estimate.mean == pytest.approx(31.25)
    assert ledger.as_dictionary(both)["varies"] == "problems, seeds"


def test_equal_is_judged_by_the_margin(study: Path) -> None:
    """The base solves no problem and GRPO 3/16 of them: the margin is half of the paper's 22.3% of that."""
    asked = [difference("dapo", "grpo", rule, id=name) for name, rule in (("equal", {"equal": True}), ("up", ABOVE))]
    (without, _) = lines(study, *asked)
    assert without.verdict.verdict == claims.NOT_TESTABLE and "margin" in without.verdict.reason
    base = study / "base"
    write_evaluation(base / "eval", {"cd34": bits(COUNTS["grpo"] * 0)})
    content = read_json(study / "study.json")
    bases = [{"task": "countdown", "model": "tiny", "run": str(base)}]
    write_json(study / "study.json", content | {"bases": bases})
    equal, up = lines(study, *asked)
    margin = 0.5 * 10.84 / 48.66 * 100 * 1.5 / 8
    assert equal.measure.margin == up.measure.margin == pytest.approx(margin)
    # d = 1/8 and -1/8 at 15 problems each, else 0: SE sqrt(30 / 64 / 39 / 40), t(0.95, 39) = 1.6849, in points 2.92
    e = equal.measure.estimate
    assert e.mean == 0 and 1.6849 * e.se == pytest.approx(100 * 1.6849 * np.sqrt(30 / 64 / 39 / 40), rel=1e-6)
    assert (1.6849 * e.se < margin) == (equal.verdict.verdict == claims.REPRODUCED)
    assert (equal.verdict.verdict, up.verdict.verdict) == (claims.UNDERPOWERED, claims.UNDERPOWERED)


def test_methods_on_different_problems_are_not_compared(study: Path) -> None:
    for seed in SEEDS:
        folder = place(study, "grpo", seed) / "eval"
        frame = read_table(folder / "cd34.parquet")
        frame["problem_id"] = "other-" + frame["problem_id"]
        rewrite(folder, cd34=frame)
    line, alone = lines(study, difference("bapo", ["grpo", "repo"], ABOVE), difference("bapo", "grpo", ABOVE, id="b"))
    assert list(line.parts) == ["BAPO against REPO"] and line.verdict.verdict == claims.UNDERPOWERED
    assert line.unknown == ("BAPO against GRPO (the runs of GRPO have other problems of cd34 than those beside them)",)
    assert alone.verdict.verdict == claims.NOT_TESTABLE


def test_missing_runs_do_not_crash(study: Path) -> None:
    for seed in SEEDS[:2]:
        (place(study, "dapo", seed) / "summary.json").unlink()
    shutil.rmtree(place(study, "repo", 1).parent)
    some, none, absent, unknown = lines(
        study,
        {"id": "some"},
        difference("repo", "grpo", {"below": 0}, id="none"),
        difference("bapo+mini", "grpo", ABOVE, id="absent", studies=["figure5", "bases"]),
        difference("bapo+v20", "grpo", ABOVE, id="unknown"),
    )
    assert "unfinished seeds of dapo" in some.verdict.reason
    assert (some.verdict.verdict, some.measure.seeds) == (claims.UNDERPOWERED, 1)  # one seed gives no interval
    assert "tiny/repo" in none.verdict.reason and none.command == "bapo run runs_table1"
    assert "figure5, bases" in absent.verdict.reason and absent.command == "bapo run runs_figure5 runs_bases"
    for line in (none, absent, unknown):
        assert line.missing and line.verdict.verdict == claims.NOT_TESTABLE


def set_probes(root: Path, method: str, end: object) -> None:
    """60 prompts with a chance of 5% to 20% an answer under the base; end(seed, start, chance): counts at step 20."""
    chance = np.linspace(0.05, 0.2, 60)
    for seed in SEEDS:
        start = np.random.default_rng([seed, 7]).binomial(G, chance)
        rewrite(place(root, method, seed), probe=probe_rows({0: start, 20: end(seed, start, chance)}))


def asked_of_probes(name: str, over: object, rule: dict) -> dict:
    return {"id": name, "query": {"name": name, "of": "bapo", "over": over}, "rule": rule, "paper": "x"}


def test_unlocking_is_judged_against_chance(study: Path) -> None:
    above = [asked_of_probes(n, "chance", ABOVE) for n in ("hard_improved", "consistent_failures")]
    below = asked_of_probes("degraded_prompts", None, {"below": 5})

    def again(seed: int, start: np.ndarray, chance: np.ndarray) -> np.ndarray:  # the same model sampled anew
        return np.random.default_rng([seed, 8]).binomial(G, chance)

    set_probes(study, "bapo", again)
    unchanged = lines(study, *above, below)
    assert [line.verdict.verdict for line in unchanged[:2]] == [claims.UNDERPOWERED] * 2
    shown = unchanged[0].measure.note  # a third to two thirds of the "hard" prompts get solved by luck alone
    assert 33 < float(shown.split("the unchanged base ")[1]) < 67

    (few,) = lines(study, asked_of_probes("solved_stay", None, {"above": 50}))  # of so few at 8/8 there is no share
    assert few.verdict.verdict == claims.NOT_TESTABLE and "8/8" in few.verdict.reason

    # shared random numbers: an unchanged model answers alike, so within a run nothing improves and nothing is lost
    set_probes(study, "bapo", lambda seed, start, chance: start)
    alike = lines(study, *above, below)
    assert [line.measure.estimate.mean for line in alike] == [0, 0, 0]
    assert all(line.verdict.verdict == claims.CONTRADICTED for line in alike[:2])

    set_probes(study, "bapo", lambda seed, start, chance: np.random.default_rng([seed, 9]).binomial(G, 0.8, 60))
    learnt = lines(study, *above, below)
    assert [line.verdict.verdict for line in learnt] == [claims.REPRODUCED] * 3

    set_probes(study, "bapo", lambda seed, start, chance: start * 0)
    forgot = lines(study, *above, below)
    assert [line.verdict.verdict for line in forgot] == [claims.CONTRADICTED] * 3
    # below the diagonal within a run: every prompt that had an answer
    share = np.mean([np.random.default_rng([s, 7]).binomial(G, np.linspace(0.05, 0.2, 60)) > 0 for s in SEEDS])
    assert forgot[2].measure.estimate.mean == pytest.approx(100 * share)


def test_forgetting_cannot_hide_behind_improvement(study: Path) -> None:
    """A third of the prompts is forgotten and the rest improves: less falls by chance, which must not be subtracted."""

    def some(seed: int, start: np.ndarray, chance: np.ndarray) -> np.ndarray:
        return np.where(np.arange(60) % 3 == 0, 0, 8)

    set_probes(study, "bapo", some)
    asked = asked_of_probes("degraded_prompts", None, {"below": 5})
    (line,) = lines(study, asked)
    start = np.stack([np.random.default_rng([s, 7]).binomial(G, np.linspace(0.05, 0.2, 60)) for s in SEEDS])
    assert line.measure.estimate.mean == pytest.approx(100 * (start[:, ::3] > 0).sum() / 180)
    assert line.verdict.verdict == claims.CONTRADICTED
    chance = float(np.mean([[y < x for x in np.delete(start, s, 0)] for s, y in enumerate(start)]))
    # where sampling alone shows that much, the count has no verdict
    (silent,) = lines(study, {**asked, "query": {**asked["query"], "bins": 1, "noise": 100 * chance - 1}})
    assert silent.verdict.verdict == claims.NOT_TESTABLE
    assert f"{100 * chance:.1f}% of the unchanged base's" in silent.verdict.reason
    (loud,) = lines(study, {**asked, "query": {**asked["query"], "noise": 100 * chance + 1}})
    assert loud.verdict == line.verdict


def test_the_whole_ledger_is_written(study: Path, capsys: pytest.CaptureFixture) -> None:
    out = study / "out"
    assert main(["claims", "--study", str(study / "study.json"), "--out", str(out)]) == 0
    assert "claims.md" in capsys.readouterr().out
    content = json.loads((out / "claims.json").read_text())
    rows, counts = content["claims"], content["counts"]
    assert {row["id"] for row in rows} == {c.id for c in entries.read()}
    assert sum(counts["lines"].values()) == len(rows) == len(pd.read_csv(out / "claims.csv"))
    marked = [c.id for c in entries.read() if c.by_definition]
    assert sum(counts["by_definition"].values()) == len(marked)
    assert sum(counts["overall"].values()) == counts["claims"] - len(marked)
    figure6 = next(row for row in rows if row["id"] == "extreme_delay")
    assert (figure6["verdict"], figure6["missing"]) == (claims.NOT_TESTABLE, True)


def test_several_tasks_make_one_more_line(tmp_path: Path) -> None:
    write_world(tmp_path, ("grpo", "bapo"), ("countdown", "geometry"))
    for seed in SEEDS:  # geometry shows nothing
        answers = np.random.default_rng(seed).integers(0, 9, N)
        write_evaluation(place(tmp_path, "bapo", seed, "geometry") / "eval", {"cd34": bits(answers)})
    asked = (
        difference("bapo", "grpo", ABOVE, id="mean", paper={"countdown": 1, "overall": 7}),
        difference("bapo", "grpo", ABOVE, id="each", overall="all"),
    )
    first, second, both, *each = lines(tmp_path, *asked)
    assert [line.task for line in (first, second, both)] == ["countdown", "geometry", "overall"]
    expected = (first.measure.estimate.mean + second.measure.estimate.mean) / 2
    assert both.measure.estimate.mean == pytest.approx(expected)
    assert (first.paper, second.paper, both.paper) == (1, None, 7)
    assert each[2].verdict.verdict == each[1].verdict.verdict  # the weaker of the two: countdown is reproduced
    assert first.verdict.verdict == claims.REPRODUCED
    rows = [ledger.as_dictionary(line) for line in (first, second, both)]
    assert ledger.headline(rows)["task"] == "overall"

    # geometry is not run: what holds in countdown holds so far only, whichever way the tasks make one line
    for folder in tmp_path.glob("results/laptop/geometry/*/bapo"):
        shutil.rmtree(folder)
    _, _, mean, _, _, everywhere = lines(tmp_path, *asked)
    for line in (mean, everywhere):
        assert (line.task, line.verdict.verdict) == ("overall", claims.UNDERPOWERED)
        assert line.unknown == ("geometry/tiny",)
        assert ledger.headline([ledger.as_dictionary(line)])["verdict"] == claims.UNDERPOWERED
    # a task that the claim is about and the study does not have
    *_, last = lines(tmp_path, {**asked[0], "tasks": ["countdown", "mathematics"]})
    assert last.unknown == ("mathematics",)
