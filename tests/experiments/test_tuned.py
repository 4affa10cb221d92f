"""What a setting names under ``tuned``: which runs a tuned study has, and how readers see them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from analysis import products
from bapo.errors import UserError
from bapo.experiments import compose as configuration
from bapo.experiments import places, tuned
from bapo.experiments.identity import evaluation_identity, train_identity
from bapo.experiments.settings import Settings
from bapo.experiments.studies import load_study, study_content, study_of

CHOICES = {"bapo": ["v2", "rate_4e-4"], "grpo": ["rate_1e-4"], "bapo_without_x3": []}
SETTING = "setting/laptop_countdown.yaml"


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of experiments/ whose Countdown setting names choices."""
    copy = tmp_path / "experiments"
    shutil.copytree(places.EXPERIMENTS, copy)
    path = copy / SETTING
    for other in (copy / "setting").glob("laptop_*.yaml"):  # what tuning chose there
        kept = [line for line in other.read_text(encoding="utf-8").splitlines() if not line.startswith("tuned:")]
        other.write_text("\n".join(kept) + "\n", encoding="utf-8")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("tuned:")]
    lines += ["tuned:", *(f"  {method}: [{', '.join(variants)}]" for method, variants in CHOICES.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setattr(places, "EXPERIMENTS", copy)
    configuration.forget()
    yield copy
    configuration.forget()


@pytest.mark.parametrize(
    ("method", "applied"),
    [
        ("grpo", "grpo+rate_1e-4"),
        ("dapo", "dapo"),  # not named
        ("bapo_without_x2", "bapo_without_x2+v2+rate_4e-4"),  # an ablation takes its parent's
        ("bapo_without_x3", "bapo_without_x3"),  # unless it is named itself
        ("bapo+v10", "bapo+v10+rate_4e-4"),  # v is what it is there for
        ("bapo+corrected", "bapo+corrected+v2+rate_4e-4"),
        ("bapo+rollouts", "bapo+v2+rate_4e-4+rollouts"),
        ("bapo+v1", "bapo+rate_4e-4+v1"),
    ],
)
def test_what_tuning_adds_to_a_method(method: str, applied: str) -> None:
    assert tuned.applied(CHOICES, method) == applied


def test_a_tuned_study_runs_the_choice_under_the_methods_own_names(experiments: Path) -> None:
    settings = Settings()
    study = study_of("table1", settings)
    countdown = [c.method for c in study.cells if c.task == "countdown" and c.seed == 1]
    assert countdown[:2] == ["grpo+rate_1e-4", "dapo"] and countdown[-1] == "bapo+v2+rate_4e-4"
    assert all("+" not in c.method for c in study.cells if c.task != "countdown")
    content = study_content(study, settings)
    shown = {(c["task"], c["method"]): c for c in content["cells"]}
    bapo = shown["countdown", "bapo"]
    assert (bapo["method_title"], bapo["tuned"]) == ("+BAPO", ["v = 2", "rate 4e-4"])
    assert Path(bapo["run"]).parent.name == "bapo+v2+rate_4e-4"
    assert "tuned" not in shown["countdown", "dapo"] and "tuned" not in shown["mathematics", "bapo"]
    assert content["curves"] == ["grpo", "dapo", "bapo"] and len(study.curved) == 3 * 3 * 3
    config = settings.run(next(c for c in study.cells if c.method == "bapo+v2+rate_4e-4"))
    assert (config.method.v, config.train.learning_rate) == (2, 4e-4)


def test_other_studies_and_scales_run_the_methods_as_they_are(experiments: Path) -> None:
    for name, scale in (("untuned", "laptop"), ("figure6", "laptop"), ("table1", "smoke"), ("table1", "paper")):
        study = study_of(name, Settings(scale=scale))
        assert study.plain == {} and all("+" not in cell.method for cell in study.cells), (name, scale)


def test_a_choice_belongs_to_no_identity(experiments: Path) -> None:
    settings = Settings()
    cell = load_study("untuned", "laptop").cells[-1]
    before = [f(settings.run(cell)) for f in (train_identity, evaluation_identity)]
    path = experiments / SETTING
    path.write_text(path.read_text().replace("v2, rate_4e-4", "v1"))
    configuration.forget()
    assert [f(settings.run(cell)) for f in (train_identity, evaluation_identity)] == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("v2,", "v3,", r"laptop_countdown.yaml: tuned.bapo: unknown variant 'v3'; allowed: .*v1, v10, v2"),
        ("  grpo:", "  gpro:", r"laptop_countdown.yaml: tuned.gpro: unknown method 'gpro' \(did you mean"),
    ],
)
def test_a_wrong_choice_is_named_with_its_setting(experiments: Path, old: str, new: str, message: str) -> None:
    path = experiments / SETTING
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    configuration.forget()
    with pytest.raises(UserError, match=message):
        study_of("table1", Settings())


# ------------------------------------------------------------------------------------------------ the candidates


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_the_candidates_have_seeds_of_their_own_and_no_evaluation(scale: str) -> None:
    study = load_study(products.TUNING, scale)
    seeds = {cell.seed for cell in study.cells}
    others = {
        cell.seed
        for name in products.at_scale(places.options("study"), scale)
        if name != products.TUNING
        for cell in load_study(name, scale).cells
    }
    assert len(seeds) > 1 and not seeds & others
    files = study.summaries(Path("home"), curves=True)
    assert len(files) == len(study.cells) and not any("/eval/" in file or "/base/" in file for file in files)


def test_every_row_of_table_1_has_candidates_with_the_same_learning_rates() -> None:
    settings = Settings()
    cells = study_of(products.TUNING, settings).cells
    rates: dict[tuple[str, str], set[float]] = {}
    for cell in {c.method + c.task: c for c in cells}.values():
        config = settings.run(cell)
        rates.setdefault((cell.task, cell.method.split("+")[0]), set()).add(config.train.learning_rate)
    assert set(map(frozenset, rates.values())) == {frozenset({1e-4, 2e-4, 4e-4})}
    rows = {(c.task, c.method.partition("+")[0]) for c in load_study("table1", "laptop").cells}
    parents = {"bapo_without_x2": "bapo", "bapo_without_x3": "bapo"}
    assert {(task, parents.get(method, method)) for task, method in rows} == set(rates)


def test_chosen_methods_replace_those_of_every_block() -> None:
    study = load_study(products.TUNING, "laptop", methods=["grpo"], seeds=[103])
    assert [c.method for c in study.cells if c.task == "countdown"] == ["grpo", "grpo+rate_1e-4", "grpo+rate_4e-4"]
