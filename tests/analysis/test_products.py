"""The table of products, and what a target of the workflow asks for."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support.configs import edit

from analysis import figures, products
from bapo.errors import UserError
from bapo.experiments.places import options
from bapo.experiments.studies import study_file
from bapo.validate import parse_yaml


def test_every_study_draws_something_and_every_product_is_drawn() -> None:
    for study in options("study"):
        scale = next(iter(study_file(study).scales))
        assert products.targets(scale, ())[study], study
    assert products.beyond("single_gpu") == ["single_gpu"]
    compared = products.targets("laptop", ())["comparisons"]
    assert {"tables/comparison_bases.md", "tables/gates_unlock.md", "tables/regimes.md"} < set(compared)
    assert set(products.drawn_by(products.tables_of, "laptop")) == set(products.TABLES)
    papers = {name for name, figure in products.FIGURES.items() if figure.number}
    assert set(products.drawn_by(products.figures_of, "laptop")) == papers


def test_every_product_has_a_function() -> None:
    for table in (products.TABLES | products.OTHERS).values():
        assert callable(importlib.import_module(f"analysis.{table.made_by}").write)
    assert all(callable(figures.function(name)) for name in products.FIGURES)


def test_a_target_is_made_of_its_products() -> None:
    asked = products.targets("laptop", ["thresholds_countdown"])
    assert asked["theory"] == ["tables/theory_monitor.md", "tables/theory_monitor.csv", "tables/theory_monitor.tex"]
    assert asked["table1"][:3] == ["first_look.md", "first_look.png", "tables/table1.md"]
    assert "figures/figure1_accuracy_groups.svg" in asked["table1"]
    assert "figures/figure12_test_curves.svg" not in asked["table1"]  # it takes evaluations of kept checkpoints
    assert "sweeps/thresholds_countdown/robustness.md" in asked["sweep_thresholds_countdown"] == asked["sweep"]
    assert "figure6" not in products.targets("gpu", ())  # the study has no runs at this scale
    assert products.targets("paper", ())["all"] == ["first_look.md", "first_look.png", "report.html"]
    shown = products.shown_on_page("paper")
    assert {"tables/table1.md", "figures/figure16_ppo.svg", "claims.json"} <= set(shown)


def test_the_ledger_asks_the_studies_that_its_entries_name(tmp_path: Path) -> None:
    from analysis.claims import entries

    named = list(dict.fromkeys(study for claim in entries.read() for study in claim.studies))
    assert products.claimed() == named
    asked = products.studies_of_claims("laptop", tmp_path)
    assert "table1" in asked and "regimes" not in asked  # hours, which the ledger does not ask for
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "comparison_regimes.md").write_text("")
    assert "regimes" in products.studies_of_claims("laptop", tmp_path)


@pytest.mark.parametrize(("old", "new"), [("[figure6_ablations]", "[figure6_ablation]"), ("tables: []", "tables: [t]")])
def test_a_name_that_does_not_exist(old: str, new: str, experiments: Path) -> None:
    edit(experiments / "study" / "figure6.yaml", old, new)
    with pytest.raises(UserError, match=rf"figure6.yaml: {new.partition(':')[0] if ':' in new else 'figures'}: no "):
        products.targets("laptop", ())


def test_every_sentence_is_used():
    folder = Path(products.__file__).parent
    code = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    assert [key for key in parse_yaml(folder / "words.yaml") if f'"{key}"' not in code] == []


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["report.html", "sweeps/free_countdown/robustness.md"], {"Sweep free_countdown": 1, "Report": 0}),
        (["report.html", "tables/comparison_regimes.md", "x/summary.json"], {"Comparison of regimes": 1, "Report": 0}),
        (["first_look.png", "first_look.md", "report.html"], {"Report": 2, "First look": 1, "Picture": 0}),
        (["first_look.md", "tables/table1.md", "report.html", "claims.md"], {"Report": 2, "Table 1": 1, "Claims": 3}),
        (["countdown/data/summary.json"], {}),
    ],
)
def test_a_run_ends_by_naming_what_it_has_made(files: list[str], named: dict[str, int]) -> None:
    """named: the words of each line and the number of its file, in the order of the lines."""
    home = Path("results/smoke")
    said = products.to_open(home, [home / file for file in files], ["free_countdown", "free_geometry"])
    assert said == [f"{name}: {home / files[number]}" for name, number in named.items()]
