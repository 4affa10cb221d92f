"""Which checkpoint to report, which tuned value to take, and the bound that the theory monitor shows, by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT
from support.runs import write_study
from support.simulated import MODEL, write_simulated

from analysis import statistics
from analysis.__main__ import main
from analysis.beyond import checkpoints as choice
from analysis.beyond import tuning
from analysis.beyond.theory import step_terms, worst_k2
from analysis.exchange import evidence
from analysis.study import load, merged
from bapo.errors import UserError
from bapo.experiments.studies import study_file
from bapo.store.files import read_json, write_json

STEPS = (25, 50, 75)


def test_the_best_is_the_latest_of_equal_ones() -> None:
    assert choice.best(np.array([[0.1, 0.3, 0.3], [0.5, 0.2, 0.1], [0.2, 0.2, 0.2]])).tolist() == [2, 0, 2]


def test_every_rule_by_hand() -> None:
    """One seed, three checkpoints, one benchmark of two problems: means 0.5, 0.6 and 0.4."""
    accuracy = np.array([[[0.9, 0.1], [0.4, 0.8], [0.5, 0.3]]])
    found = choice.measure({"a": accuracy}, np.array([[0.7, 0.2, 0.3]]), STEPS)
    tables = {rule: tables[0].tolist() for rule, (tables, _) in found.items()}
    assert tables[choice.LAST] == [[0.5, 0.3]]
    assert tables[choice.VALIDATION] == [[0.9, 0.1]]  # validation prefers the first
    assert tables[choice.TEST] == [[0.4, 0.8]]
    # the first problem chooses step 25 (0.9), where the second has 0.1; the second step 50 (0.8): the first has 0.4
    assert tables[choice.HALVES] == [pytest.approx([0.4, 0.1])]
    assert [steps for _, steps in found.values()] == [(75,), (25,), (50,), ()]
    gains = {rule: round(choice.gain(found, rule).mean, 9) for rule in found}
    assert gains == {choice.LAST: 0, choice.VALIDATION: 0.1, choice.TEST: 0.2, choice.HALVES: -0.15}


def test_each_seed_chooses_for_itself_and_benchmarks_count_alike() -> None:
    """Two seeds, two checkpoints. Benchmark b has three problems, but its mean counts like that of a's two."""
    a = np.array([[[0.6, 0.6], [0.4, 0.4]], [[0.1, 0.1], [0.2, 0.2]]])
    b = np.array([[[0.1, 0.1, 0.1], [0.25, 0.25, 0.25]], [[0.5, 0.5, 0.5], [0.3, 0.3, 0.3]]])
    found = choice.measure({"a": a, "b": b}, None, (10, 20))
    assert list(found) == [choice.LAST, choice.TEST, choice.HALVES]  # no validation problems, no such rule
    # averages: 0.35 and 0.325 of the first seed (over all five problems 0.30 and 0.31), 0.30 and 0.25 of the second
    assert found[choice.TEST][1] == (10, 10)
    assert statistics.mean_over_seeds(*found[choice.TEST][0]).mean == pytest.approx((0.35 + 0.30) / 2)
    assert choice.gain(found, choice.TEST).mean == pytest.approx(0.0375)
    assert choice.gain(found, choice.TEST).seed_means == pytest.approx((0.025, 0.05))
    only = choice.measure({"b": b}, None, (10, 20))
    assert only[choice.TEST][1] == (20, 10)


def simulated(better: float, generator: np.random.Generator, problems: int = 60, samples: int = 8) -> np.ndarray:
    """[1, 6, n]: six checkpoints that solve each problem alike, but the third by ``better`` more often."""
    chance = np.tile(generator.beta(1, 2, problems) * (1 - better), (6, 1))
    chance[2] += better
    return generator.binomial(samples, chance)[None] / samples


@pytest.mark.parametrize("better", [0.0, 0.2])
def test_the_best_on_test_gains_by_luck_and_the_halves_do_not(better: float) -> None:
    generator = np.random.default_rng(5)
    draws = [choice.measure({"a": simulated(better, generator)}, None, range(1, 7), splits=10) for _ in range(150)]
    test, halves = (np.array([choice.gain(draw, rule).mean for draw in draws]) for rule in (choice.TEST, choice.HALVES))
    error = halves.std() / len(halves) ** 0.5
    assert halves.mean() == pytest.approx(better, abs=0.01) and (test >= 0).all()
    if not better:
        assert abs(halves.mean()) < 3 * error < 0.006
        # p ~ Beta(1, 2): E p (1 - p) = 1/6, so a checkpoint's mean over 60 x 8 samples has sd 0.0186; the expected
        # highest of 6 standard normal numbers is 1.267, that of any one of them 0
        assert test.mean() == pytest.approx(1.267 * 0.0186, abs=0.005)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = {("countdown", MODEL): ("grpo", "repo", "bapo")}
    return write_simulated(tmp_path_factory.mktemp("study"), "table1", parts, curves=("grpo", "bapo"))


def test_what_is_missing_is_named_with_the_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    content = json.loads(file.read_text())
    file_without = tmp_path / "study.json"
    file_without.write_text(json.dumps({**content, "name": "table1", "curves": ["grpo", "repo"]}))
    assert main(["checkpoint_choice", "--study", str(file_without), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "repo/seed1/curve: not finished" in said and "`bapo run runs_table1`" in said
    file_without.write_text(json.dumps({**content, "curves": []}))
    with pytest.raises(UserError, match="'curves'"):
        choice.write(load(file_without), tmp_path)


def one_seed(*solved: float) -> np.ndarray:
    return np.array([solved])


def test_the_error_of_a_difference_by_hand() -> None:
    """One seed, four prompts: differences 1/2, 1/2, 0, 0, so mean 1/4 and SE sqrt(4 (1/4)^2 / 3 / 4) = 1 / sqrt(48)."""
    difference, se = tuning.behind(one_seed(1, 1, 0.5, 0.5), one_seed(0.5, 0.5, 0.5, 0.5))
    assert (difference, se) == pytest.approx((0.25, 1 / math.sqrt(48)))
    # two seeds that disagree widen it
    same = np.array([[1, 1, 0.5, 0.5], [1, 1, 0.5, 0.5]])
    apart = same + np.array([[0.25], [-0.25]])
    flat = np.full((2, 4), 0.5)
    assert tuning.behind(same, flat)[1] == pytest.approx(1 / math.sqrt(48))
    # V_seeds = var(1, 0.5) / 2 = 1/16 is added to 1/48; the seeds differ alike at every prompt, so no interaction
    assert tuning.behind(apart, flat) == pytest.approx((0.25, math.sqrt(1 / 48 + 1 / 16)))


def test_a_value_of_its_own_is_chosen_only_where_the_data_speak_for_it() -> None:
    plain = one_seed(0.5, 0.5, 0.5, 0.5)
    clear = {(): plain, ("rate",): one_seed(0.75, 0.75, 0.75, 0.5)}  # +3/16, SE 1/16
    assert tuning.choose(clear) == ("rate",)
    unclear = {(): plain, ("rate",): one_seed(1, 0.25, 0.5, 0.5)}  # +1/16, SE sqrt(0.0911) / 2 = 0.157
    assert tuning.near(unclear) == [("rate",), ()] and tuning.choose(unclear) == ()
    assert tuning.choose({(): plain, ("rate",): plain}) == ()  # a tie


def test_of_two_that_are_near_the_one_with_fewer_changes() -> None:
    scores = {
        (): one_seed(0, 0, 0, 0),
        ("v2", "rate"): one_seed(1, 0.75, 0.5, 0.75),  # mean 3/4
        ("v2",): one_seed(0.75, 1, 0.5, 0.5),  # 1/16 behind: differences 1/4, -1/4, 0, 1/4 with SE 0.12
        ("rate",): one_seed(0.5, 0.75, 0.75, 0.5),  # 1/8 behind: 1/2, 0, -1/4, 1/4 with SE 0.16
    }
    assert tuning.near(scores) == [("v2", "rate"), ("v2",), ("rate",)]
    assert tuning.choose(scores) == ("v2",)  # the higher of the two with one change


def test_table_1_has_the_choices_of_the_published_tuning(tmp_path: Path) -> None:
    """Ablations have their method's, and the study of more seeds the same."""
    study = load(evidence.unpack(ROOT / "evidence" / "laptop" / "tuning.zip", tmp_path))
    chosen: dict[str, dict[str, str]] = {}
    for block in study.blocks:
        rows = [next(row for row in of if row["chosen"]) for of in tuning.candidates(block, study)]
        pairs = dict(str(row["candidate"]).partition("+")[::2] for row in rows)
        pairs |= dict.fromkeys(("bapo_without_x2", "bapo_without_x3"), pairs["bapo"])
        chosen[block.task] = {method: variants for method, variants in pairs.items() if variants}
    for name in ("table1", "table1_seeds"):
        for part in study_file(name).scales["laptop"]:
            assert part.tuned == {m: v for m, v in chosen[part.task].items() if m in part.methods}, (name, part.task)


def test_the_ledger_does_not_mix_tuned_and_other_runs_of_a_method(tmp_path: Path) -> None:
    studies = []
    for name, seeds, tuned in (("first", (1, 2), []), ("second", (2, 3), ["rate 4e-4"]), ("third", (3,), [])):
        content = read_json(write_study(tmp_path, [("tiny", "bapo", seed) for seed in seeds], name=name))
        content["cells"] = [cell | {"tuned": tuned} for cell in content["cells"]]
        write_json(tmp_path / f"{name}.json", content)
        studies.append(load(tmp_path / f"{name}.json"))
    (block,) = merged(studies).blocks
    assert [(cell.seed, cell.tuned) for cell in block.methods["bapo"]] == [(1, ()), (2, ()), (3, ())]
    (block,) = merged(studies[1:]).blocks
    assert [cell.seed for cell in block.methods["bapo"]] == [2, 3]


NAN, K2 = math.nan, 3.0


def step(**values: float) -> dict[str, float]:
    """A row of steps.parquet: X1 of 6 groups and X3 of 2, nothing in X2."""
    row = {"staleness": 0.0, "x1": 6, "x2": 0, "x3": 2, "k1": 2.0, "k2": 2.0, "k3": 1.5}
    return {**row, "tv_x1": 0.10, "tv_x2": NAN, "tv_x3": 0.20, **values}


@pytest.mark.parametrize(
    ("row", "terms"),
    [
        # printed: (1 - 2) 0.1 + (1 - 1.5) 0.2; repaired: 6/8 of 0.1 + 2/8 of 0.2; no L was recorded
        (step(), {"ceiling_printed": -0.2, "ceiling_repaired": 0.125, "bound_printed": NAN, "bound_repaired": NAN}),
        # printed: 0.5 - 2 * 2 * 0.1 + (-0.1 - 2 * 1.5 * 0.2) = 0.1 - 0.7
        # repaired: 6/8 (0.5 - 2 * 0.1) + 2/8 (-0.1 - 1.5 * 0.2) = 0.225 - 0.1
        (step(surrogate_x1=0.5, surrogate_x2=NAN, surrogate_x3=-0.1), {"bound_printed": -0.6, "bound_repaired": 0.125}),
        # X2 takes the worst constant in the repaired form only: 0.5 - 2 * 2 * 0.1 and 0.5 - 3 * 0.1
        (
            step(x1=0, x3=0, x2=1, tv_x1=NAN, tv_x3=NAN, tv_x2=0.1, surrogate_x2=0.5),
            {"bound_printed": 0.1, "bound_repaired": 0.2},
        ),
        *((row, {"ceiling_printed": NAN}) for row in (step(tv_x3=NAN), step(k1=NAN), step(x1=0, x3=0))),
    ],
)
def test_terms_of_a_step_by_hand(row: dict[str, float], terms: dict[str, float]) -> None:
    """A missing term or an empty batch is unknown."""
    found = step_terms(row, K2)
    assert {name: found[name] for name in terms} == pytest.approx(terms, nan_ok=True)


def test_constants_of_a_configuration() -> None:
    found = worst_k2({"method": {"c1": 0.25}, "train": {"group_size": 8}})
    # of k/8 with 1/4 < k/8 < 1 the worst is 7/8: sigma = sqrt(7)/8 = 0.330719
    assert found == pytest.approx(2.023716, abs=1e-6)
    assert worst_k2({"method": {"algorithm": "grpo"}, "train": {"group_size": 8}}) is None
    assert math.isnan(worst_k2({"method": {"c1": 0.9}, "train": {"group_size": 8}}) or 0.0)  # nothing is admitted
