"""The entries of the ledger of claims and their mistakes, and verdicts worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paths import needs_shared
from support.runs import write_claims

from analysis import claims
from analysis.claims import entries, verdicts
from analysis.claims.entries import Rule
from analysis.claims.measures import Measure, mean_of, of_result
from analysis.claims.queries import share_table
from analysis.statistics import Estimate, Side, difference
from bapo.errors import UserError


def plain(text: str) -> str:
    return " ".join(text.split())


def test_every_quote_is_in_the_paper() -> None:
    paper = plain(needs_shared("paper", "buffer_matters.txt").read_text(encoding="utf-8"))
    absent = [c.id for c in entries.read() if plain(c.quote) not in paper]
    assert not absent


ASKED = {"name": "cost_ratio", "of": "dapo", "over": "bapo"}
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"qoute": "x"}, "qoute"),
    ({"query": {"name": "cost_ration"}}, "query.name"),
    ({"query": {"name": "cost_ratio", "of": "dapo"}}, "query: over"),
    ({"query": {"name": "accuracy_difference", "of": "dapo", "over": "chance"}}, "query.over"),
    ({"query": ASKED | {"of": "dappo"}}, "query.of"),
    *(({"query": ASKED | {"of": of}}, "query.of") for of in (5, ["bapo", 5], {"bapo": 1})),
    ({"rule": {"above": 0, "below": 1}}, "rule"),
    ({"paper": "more", "rule": {"near": 0.2}}, "rule.near"),
    *(({"studies": studies}, "studies") for studies in (["table9"], None, 5)),
    ({"scales": ["paper"]}, "not_testable"),
    ({"paper": {"countdown/tiny": 1.0, "overal": 2.0}}, "paper: no such task (did you mean 'overall'?)"),
]


@pytest.mark.parametrize(("change", "named"), MISTAKES, ids=[named for _, named in MISTAKES])
def test_a_mistake_names_file_entry_and_field(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as error:
        write_claims(tmp_path, change)
    assert named in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'mine.yaml'}: entry 'a_claim': ")


def test_an_id_stands_for_one_entry(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'a_claim': id"):
        write_claims(tmp_path, {}, {})


def measure(mean: float, se: float, df: float = 10, seeds: int = 3, **given: float) -> Measure:
    return Measure(Estimate(mean, se, df), "points", seeds, **given)


ABOVE = Rule(above=0.0)


@pytest.mark.parametrize(
    ("mean", "se", "rule", "verdict"),
    [  # t(10) = 2.228
        (2.3, 1.0, ABOVE, claims.REPRODUCED),
        (2.2, 1.0, ABOVE, claims.UNDERPOWERED),
        (-2.3, 1.0, ABOVE, claims.CONTRADICTED),
        (-2.3, 1.0, Rule(below=0.0), claims.REPRODUCED),
        (70.0, 4.0, Rule(within=(60, 80)), claims.REPRODUCED),  # 61.1 to 78.9
        (70.0, 5.0, Rule(within=(60, 80)), claims.UNDERPOWERED),  # 58.9 to 81.1
        (50.0, 4.0, Rule(within=(60, 80)), claims.CONTRADICTED),  # to 58.9
        (2.5, 0.0, Rule(within=(2.5, 3)), claims.REPRODUCED),  # nothing varies
        (0.0, 0.0, ABOVE, claims.CONTRADICTED),
        (-12.0, 0.5, Rule(near=0.5), claims.REPRODUCED),  # of the paper's -20: -30 to -10
        (-9.0, 0.4, Rule(near=0.5), claims.CONTRADICTED),
        (100.0, 0.0, Rule(always=True), claims.REPRODUCED),
        (99.0, 5.0, Rule(always=True), claims.CONTRADICTED),
        (5.0, np.nan, ABOVE, claims.UNDERPOWERED),
    ],
)
def test_a_verdict_says_where_the_interval_lies(mean: float, se: float, rule: Rule, verdict: str) -> None:
    assert verdicts.judge({"a": measure(mean, se)}, rule, -20.0).verdict == verdict


@pytest.mark.parametrize(
    ("mean", "rule", "verdict"),
    [  # SE 1, t(10): 1.812 (90%) and 2.228 (95%); the margin is 3
        (1.1, ABOVE, claims.NO_EFFECT),  # to 2.91
        (1.2, ABOVE, claims.UNDERPOWERED),  # to 3.01
        (-1.1, Rule(below=0.0), claims.NO_EFFECT),
        (2.3, ABOVE, claims.REPRODUCED),
        (-2.3, ABOVE, claims.CONTRADICTED),
        (1.1, Rule(above=1), claims.UNDERPOWERED),  # a claim of a size is none of a direction
        (1.1, Rule(equal=True), claims.REPRODUCED),
        (1.2, Rule(equal=True), claims.UNDERPOWERED),
        (5.3, Rule(equal=True), claims.CONTRADICTED),  # from 3.07
    ],
)
def test_no_effect_larger_than_the_margin(mean: float, rule: Rule, verdict: str) -> None:
    found = verdicts.judge({"a": measure(mean, 1.0, margin=3.0)}, rule)
    assert found.verdict == verdict
    if verdict == claims.NO_EFFECT:  # one-sided, of the nearer end: 1.9 standard errors
        assert found.p == pytest.approx(Estimate(1.9, 1.0, 10).p / 2)
    assert verdicts.judge({"a": measure(0.1, 1.0, seeds=1, margin=3.0)}, rule).verdict == claims.UNDERPOWERED


def test_every_open_part_must_show_no_effect() -> None:
    none, weak, good = measure(0, 1, margin=3.0), measure(2, 1, margin=3.0), measure(9, 1, margin=3.0)
    assert verdicts.judge({"a": good, "b": none}, ABOVE).verdict == claims.NO_EFFECT
    assert verdicts.judge({"a": none, "b": weak}, ABOVE).verdict == claims.UNDERPOWERED


@pytest.mark.parametrize(("mean", "size"), [(2.0, "smaller"), (10.0, "as stated"), (20.0, "larger")])
def test_size_is_told_apart_from_direction(mean: float, size: str) -> None:
    found = verdicts.judge({"a": measure(mean, 0.1)}, Rule(above=0.0, tolerance=3), 12.5)
    assert (found.verdict, found.size) == (claims.REPRODUCED, size)


def test_every_part_must_hold_and_one_firm_exception_contradicts() -> None:
    good, weak, bad = measure(9, 1), measure(1, 1), measure(-9, 1)
    assert verdicts.judge({"a": good, "b": good}, ABOVE).verdict == claims.REPRODUCED
    assert verdicts.judge({"a": good, "b": weak}, ABOVE).verdict == claims.UNDERPOWERED
    found = verdicts.judge({"a": good, "b": bad, "c": weak}, ABOVE)
    assert (found.verdict, found.part) == (claims.CONTRADICTED, "b")
    assert found.p == pytest.approx(3 * bad.estimate.p)
    # -2.3 is outside by itself (p = 0.044), but not at 5% over two parts
    assert verdicts.judge({"a": good, "b": measure(-2.3, 1)}, ABOVE).verdict == claims.UNDERPOWERED


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        # a difference of 1 with sd 1 between seeds of each side: about 17 seeds (two-sample t test, power 0.8)
        ({"se": 0.9, "df": 4, "seed_variance": 1.0}, "about 17"),
        ({"se": 0.9, "df": 4, "problem_variance": 0.8, "seed_variance": 0.01}, "more than 10000"),
        # paired by seed: half the degrees of freedom. d = 2 sd: the one-sample t test's textbook number is 5
        ({"mean": 2.0, "se": 1.0, "df": 2, "seed_variance": 0.5, "freedom": 1.0}, "about 5"),
        ({"se": np.nan, "df": 0, "seeds": 1}, "one training seed"),
        ({"se": np.nan, "df": 0}, "not known"),
    ],
)
def test_what_would_settle_it(given: dict[str, Any], reason: str) -> None:
    found = verdicts.judge({"a": measure(**{"mean": 1.0, **given})}, ABOVE)
    assert found.verdict == claims.UNDERPOWERED and reason in found.reason


@pytest.mark.parametrize(("mean", "says"), [(9.0, "holds"), (-9.0, "does not hold"), (0.1, "is open")])
def test_one_training_seed_says_nothing_of_methods(mean: float, says: str) -> None:
    found = verdicts.judge({"a": measure(mean, 1, seeds=1)}, ABOVE)
    assert found.verdict == claims.UNDERPOWERED and found.reason.endswith(f"the claim {says}")
    assert np.isnan(found.p)  # no test of a method, so none for Holm either
    # a part with more seeds can still contradict
    assert verdicts.judge({"a": measure(9, 1, seeds=1), "b": measure(-9, 1)}, ABOVE).verdict == claims.CONTRADICTED


def test_what_seeds_lower_and_what_they_do_not() -> None:
    """Two seeds that disagree problem by problem, the same on average: all of the spread is interaction."""
    a = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]])
    b = np.full((2, 4), 0.25)
    found = difference(Side([a], [1, 2]), Side([b], [3, 4]))
    # means over seeds 1/2 1/2 1 0: variance 1/6, / 4 problems; residuals 4 x 1/4 over (n-1)(S-1) = 3, / (n S) = 8
    assert found.problems.se**2 == pytest.approx(1 / 24)
    assert found.falling == pytest.approx(1 / 3 / 8)
    m = of_result(found, "points")
    assert m.problem_variance == pytest.approx(100**2 * (1 / 24 - 1 / 24), abs=1e-9)
    assert m.seed_variance == pytest.approx(100**2 * found.both.se**2)  # x S / 2 = 1
    assert np.isnan(difference(Side([a[:1]], [1]), Side([b], [3, 4])).falling)
    # against one given model only one side has seeds, and their degrees of freedom are S - 1
    assert (m.freedom, of_result(difference(Side([a], [1, 2]), Side([b])), "points").freedom) == (2.0, 1.0)


def test_mean_over_tasks_and_share_tables() -> None:
    both = mean_of([measure(2, 3.0, 8), measure(6, 4.0, 8)])
    assert (both.estimate.mean, both.estimate.se) == (4, 2.5)
    assert both.estimate.df == pytest.approx(25**2 / (9**2 / 8 + 16**2 / 8))
    given = mean_of([measure(2, 3.0, 8), measure(6, 4.0, 9)], independent=False)  # two models of a task
    assert (given.estimate.mean, given.estimate.se, given.estimate.df) == (4, 3.5, 8)
    # of the chosen 3 prompts of 4, 2 hit: 2/3; each row's deviation is weighted by 1 / mean(chosen)
    table = share_table(np.array([[1, 1, 1, 0]]), np.array([[1, 1, 0, 1]]), fewest=1)
    np.testing.assert_allclose(table, 2 / 3 + np.array([[1 / 3, 1 / 3, -2 / 3, 0]]) / 0.75)
    assert table.mean() == pytest.approx(2 / 3)
