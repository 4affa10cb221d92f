"""The table of products, and the identity of the code that makes them."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from bapo.errors import UserError
from bapo.experiments import identity, places, products, targets
from bapo.experiments.places import options


def names(found: list[products.Product]) -> list[str]:
    return [product.name for product in found]


def test_every_study_is_drawn_or_compared() -> None:
    shown: set[str] = set()
    for scale in ("laptop", "single_gpu"):  # one study needs pretrained models
        drawn = set(products.figure_studies(scale).values())
        assert drawn.isdisjoint(products.beyond(scale))
        shown |= drawn | {*products.beyond(scale)}
    assert sorted(shown) == options("study")
    assert products.beyond("single_gpu") == ["single_gpu"]
    assert names(targets.of_target("comparisons", "laptop")) == [
        "comparison_bases",
        "comparison_controls",
        "comparison_deciding",
        "comparison_drift",
        "comparison_fidelity",
        "comparison_matched",
        "comparison_offpolicy",
        "comparison_parts",
        "regimes",
        "tuning",
        "comparison_untuned",
    ]


def test_every_caption_exists_and_every_command_is_known() -> None:
    from analysis.__main__ import parser

    every = [*targets.page("laptop").shown, targets.page("laptop"), products.robustness("a_sweep")]
    every += [products.comparison(study) for study in products.beyond("laptop")]
    files = [file for product in every for file in product.files]
    assert len(set(files)) == len(files) and len(set(names(every))) == len(every)
    for product in every:
        for caption in filter(None, product.files.values()):
            assert (ROOT / "workflows" / caption).is_file(), caption
        parser().parse_args(product.call(Path("results/laptop")))


def test_the_ledger_asks_the_studies_that_its_entries_name() -> None:
    from analysis.claims import entries

    assert products.claimed() == list(dict.fromkeys(study for claim in entries.read() for study in claim.studies))


def test_a_target_is_made_of_its_products() -> None:
    assert names(targets.of_target("theory", "smoke")) == ["theory_monitor"]
    assert names(targets.of_target("table1", "gpu"))[:3] == ["first_look", "table1", "figure1_accuracy_groups"]
    assert not any(product.curves for product in targets.of_target("table1", "laptop"))
    assert targets.of_target("runs_figure6", "laptop") == []
    assert targets.of_target("figure6", "gpu") == []  # the study has no runs at this scale
    look, page = targets.of_target("all", "paper")
    assert look is products.FIRST_LOOK
    assert {"tables/table1.md", "figures/figure16_ppo.svg", "claims.json"} <= set(page.inputs)


def test_a_figure_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(places.EXPERIMENTS / "study", tmp_path / "study")
    monkeypatch.setattr(places, "EXPERIMENTS", tmp_path)
    path = tmp_path / "study" / "figure6.yaml"
    path.write_text(path.read_text().replace("[figure6_ablations]", "[figure6_ablation]"))
    with pytest.raises(UserError, match=r"figure6.yaml: figures: no figure .* \(did you mean 'figure6_ablations'\?\)"):
        products.figure_studies("laptop")


def test_the_identity_of_code_covers_all_that_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("bapo/experiments/identity.py", "bapo/errors.py", "bapo/seeds.py", "tool/__init__.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    (tmp_path / "tool" / "main.py").write_text("def f():\n    from bapo import errors\n")
    monkeypatch.setattr(identity, "__file__", str(tmp_path / "bapo" / "experiments" / "identity.py"))

    def now() -> str:
        identity.code_identity.cache_clear()
        return identity.code_identity("tool")

    before = now()
    (tmp_path / "bapo" / "seeds.py").write_text("a = 1\n")
    assert now() == before  # not imported
    (tmp_path / "bapo" / "errors.py").write_text("from bapo.seeds import a\n")
    after = now()
    assert after != before
    (tmp_path / "bapo" / "seeds.py").write_text("a = 2\n")  # imported by what is imported
    assert now() != after
    monkeypatch.undo()
    identity.code_identity.cache_clear()


def test_the_table_imports_nothing_slow() -> None:
    code = "import sys, bapo.experiments.products; print({'torch', 'pandas', 'matplotlib', 'hydra'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_every_table_has_a_module_that_writes_it() -> None:
    from analysis import tables

    made = [products.FIRST_LOOK, *products.TABLES.values()]
    commands = {*(product.command[0] for product in made), "comparison", products.TUNING, "table1-so-far"}
    assert set(tables.MODULES) == commands
    for name in tables.MODULES.values():
        assert callable(importlib.import_module(f"analysis.tables.{name}").write)
