"""The products: each table, figure, ledger, page and robustness report, with what makes it and what it shows.

The rules (workflows/products.smk), ``bapo plan``, ``python -m analysis`` and its report page read this table;
targets.py says which of them a target asks for. Which study a figure shows is said by ``figures`` in
experiments/study/, which studies the ledger asks, by the claims in analysis/claims/. Both are read here as they stand;
whoever runs a study or the ledger checks the rest of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from bapo.errors import UserError, unknown
from bapo.experiments import places
from bapo.experiments.places import options
from bapo.project import is_place
from bapo.store.files import SUMMARY
from bapo.store.memory import KEPT
from bapo.validate import parse_yaml

CLAIMS = Path(__file__).resolve().parents[2] / "analysis" / "claims"
#: a sweep as one file, which its robustness report reads
TRIALS = "trials.json"
#: the study whose runs the tables show
MAIN = "table1"
#: the rows of its table while the others are being made
SO_FAR = f"tables/{MAIN}_so_far.md"
#: where `bapo import` puts other people's results, beside the scales' folders
IMPORTED = "imported"
#: the study whose comparison has a page of its own
REGIMES = "regimes"
#: the study whose runs choose hyper-parameters; its table reads what training has recorded, no evaluation
TUNING = "tuning"


@dataclass(frozen=True)
class Product:
    """What one call of ``python -m analysis`` makes.

    files: path in the scale's folder -> its caption in workflows/, "" where Snakemake's own report leaves it out; the
    first file stands for all. untracked: names of files that are written too, which no rule asks for. studies: whose
    runs it shows, with every kept checkpoint's evaluation where ``curves``. sweep, shown: what it shows instead.
    first: only the runs of the first look (order.py).
    sources: files of a project that it is made from too.
    """

    name: str
    title: str
    command: tuple[str, ...]
    files: Mapping[str, str]
    category: str
    untracked: tuple[str, ...] = ()
    studies: tuple[str, ...] = ()
    curves: bool = False
    first: bool = False
    sweep: str = ""
    shown: tuple[Product, ...] = ()
    sources: tuple[Path, ...] = ()

    @property
    def number(self) -> str:
        """Return the paper's number: "Table 2", "Figure 12", or "" where the paper has no such thing."""
        match = re.match(r"(table|figure)(\d+)", self.name)
        return f"{match[1].capitalize()} {match[2]}" if match else ""

    @property
    def message(self) -> str:
        """Return what Snakemake calls the job."""
        return f"Figure: {self.name}" if self.category == "Figures" else self.number or self.title

    @property
    def inputs(self) -> list[str]:
        """Return the files in the scale's folder that it is made from, beside the runs."""
        trials = [f"sweeps/{self.sweep}/{TRIALS}"] if self.sweep else []
        return [*map(study_file, self.studies), *trials, *(file for product in self.shown for file in product.files)]

    def call(self, home: Path) -> list[str]:
        """Return the words after ``python -m analysis`` that make it from the results in ``home``."""
        first = home / next(iter(self.files))
        if self.shown:
            return [*self.command, str(home), "--out", str(first)]
        read = [str(home / file) for file in self.inputs]
        return [*self.command, "--trials" if self.sweep else "--study", *read, "--out", str(first.parent)]


def study_file(study: str) -> str:
    """Return where the runs of a study are listed, in the scale's folder."""
    return f"studies/{study}.json"


def _files(stem: str, suffixes: str, caption: str, shown: str) -> dict[str, str]:
    """Return STEM.suffix for each suffix, with the caption for those that are ``shown``."""
    return {f"{stem}.{s}": f"report/{caption}.rst" if s in shown.split() else "" for s in suffixes.split()}


# ------------------------------------------------------------------------------------------------ the paper's


def _table(
    name: str, title: str, suffixes: str = "md csv tex", shown: str = "md csv", caption: str = "", **more: Any
) -> Product:
    files = _files(f"tables/{name}", suffixes, caption or name, shown) | more.pop("files", {})
    command, category = more.pop("command", name), more.pop("category", "Tables")
    return Product(name, title, (command,), files, category, studies=(MAIN,), **more)


#: the paper's tables, and three about how far they can be trusted
TABLES = {
    table.name: table
    for table in (
        _table(
            MAIN,
            "accuracy on every benchmark",
            files={"tables/table1_differences.csv": "report/differences.rst"}
            | _files("tables/table1_forest", "csv pdf png svg", "forest", "svg"),
        ),
        _table("table2", "computational overhead", caption="table"),
        _table("table3", "hyper-parameters as used", caption="table", untracked=("table3_options.csv",)),
        _table("table4", "data sets as loaded", caption="table", untracked=("table4_overlap.csv",)),
        _table(
            "checkpoint_choice",
            "Checkpoint choice: last, best on validation, best on test",
            shown="md",
            command="checkpoint-choice",
            curves=True,
        ),
        _table("variance", "Variance: problems, seeds, samples and checkpoints", shown="md", curves=True),
        _table(
            "theory_monitor",
            "Theory monitor: the bound of Theorem 3.2",
            "md csv tex pdf png svg",
            "csv",
            "theory",
            command="theory",
            category="Theory",
        ),
    )
}

#: what a reader sees minutes after the start: four rows of Table 1, with one seed
FIRST_LOOK = Product(
    "first_look",
    "First look",
    ("first-look",),
    {"first_look.md": "", "first_look.png": ""},
    "Tables",
    studies=(MAIN,),
    first=True,
)


def _figure(name: str, title: str, curves: bool = False) -> Product:
    files = _files(f"figures/{name}", "csv pdf png svg", "figure", "svg")
    return Product(name, title, ("figure", name), files, "Figures", curves=curves)


#: the paper's figures in its order; a figure's name is also that of the function that draws it
FIGURES = {
    figure.name: figure
    for figure in (
        _figure("figure1_accuracy_groups", "Accuracy groups before and after GRPO"),
        _figure("figure4_training_curves", "Training curves"),
        _figure("figure5_test_curves", "Test curves of BAPO and its mini test", curves=True),
        _figure("figure6_ablations", "Ablations of BAPO"),
        _figure("figure7_tracking", "Tracking of accuracy bins, mathematics"),
        _figure("figure8_batch_composition", "Batch composition, mathematics"),
        _figure("figure9_cumulative_rollouts", "Cumulative rollouts"),
        _figure("figure10_online_filters", "Online filters"),
        _figure("figure11_dynamics", "Reward, entropy and response length"),
        _figure("figure12_test_curves", "Test curves", curves=True),
        _figure("figure13_tracking", "Tracking of accuracy bins, Countdown and geometry"),
        _figure("figure14_batch_composition", "Batch composition, all tasks"),
        _figure("figure15_migration", "Migration between accuracy bins"),
        _figure("figure16_ppo", "PPO against BA-PPO", curves=True),
    )
}
#: figures beyond the paper that a study may name under ``also``, beside a project's own: they stand with its comparison
ALSO = {
    "training_curves": "Training curves",
    "x2_admission": "X2's admission against sampling alone",
    "drift": "Accuracy against drift from the rollout policy",
}
_LEDGER = _files("claims", "md csv json", "claims", "md csv")
LEDGER = Product("claims", "Ledger of claims", ("claims",), _LEDGER, "Claims")
#: what a paper of a project's calls its ledger instead of LEDGER's "claims"
PAPERS_LEDGER = "claims_{}"
PAGE = Product("report", "Report", ("report",), {"report.html": "report/page.rst"}, "Report")


def drawn(scale: str) -> list[Product]:
    """Return the figures whose study has runs at ``scale``, in the paper's order."""
    return [replace(FIGURES[name], studies=(study,)) for name, study in figure_studies(scale).items()]


# ------------------------------------------------------------------------------------------------ beyond the paper


def comparison(study: str) -> Product:
    """Return the table of a study beyond the paper's."""
    compared = compared_file(study)
    drawn_too: dict[str, str] = {}
    for name in also(study):
        drawn_too |= _files(f"tables/{also_file(study, name)}", "csv pdf png svg", "", "")
    if study == REGIMES:
        files = _files(f"tables/{study}", "md csv tex", study, "md")
        files |= _files(f"tables/{compared}", "csv md tex", "", "")
        files |= _files(f"tables/{study}_figure", "csv pdf png svg", "", "")
        files |= drawn_too
        return Product(study, "Difficulty regimes", ("comparison",), files, "Comparisons", studies=(study,))
    if study == TUNING:
        files = _files(f"tables/{study}", "md csv tex", study, "md csv")
        return Product(study, "Hyper-parameters on held-out problems", (study,), files, "Comparisons", studies=(study,))
    files = _files(f"tables/{compared}", "md csv tex", "comparison", "md") | drawn_too
    return Product(compared, f"Comparison: {study}", ("comparison",), files, "Comparisons", studies=(study,))


def robustness(sweep: str) -> Product:
    """Return the report of one sweep."""
    files = _files(f"sweeps/{sweep}/robustness", "md svg csv pdf png", "robustness", "md svg")
    return Product(f"robustness_{sweep}", f"Robustness: {sweep}", ("robustness",), files, "Sweeps", sweep=sweep)


def beyond(scale: str) -> list[str]:
    """Return the studies at ``scale`` from which no figure of the paper is drawn; each gets a comparison."""
    return at_scale([name for name in options("study") if not figures_of(name)], scale)


def imported(home: Path) -> list[Path]:
    """Return the summaries of imported runs and evaluations, which the page shows beside those in ``home``."""
    folder = home.parent / IMPORTED
    return sorted(p for pattern in ("", "eval/") for p in folder.glob(f"*/*/*/seed*/{pattern}{SUMMARY}"))


# ------------------------------------------------------------------------------------------------ the files


def figure_studies(scale: str) -> dict[str, str]:
    """Return figure -> the study at ``scale`` that it shows, in the paper's order.

    Raises UserError for a figure that does not exist, or that two studies name.
    """
    studies: dict[str, str] = {}
    for name in at_scale(options("study"), scale):
        for figure in figures_of(name):
            if figure not in FIGURES:
                raise UserError(f"{_path(name)}: " + unknown("figures", f"no figure '{figure}'", figure, list(FIGURES)))
            if figure in studies:
                raise UserError(
                    f"{_path(name)}: figures: {figure} is drawn for {studies[figure]} already; name it once"
                )
            studies[figure] = name
    return {figure: studies[figure] for figure in FIGURES if figure in studies}


def figures_of(study: str) -> list[str]:
    """Return the figures that are drawn from a study's runs."""
    return list(_study(study).get("figures") or [])


def also(study: str) -> list[str]:
    """Return the figures of ALSO that a study names; none for a study that experiments/ does not have."""
    return list(_study(study).get("also") or []) if study in options("study") else []


def compared_file(study: str) -> str:
    """Return the name, without a suffix, of the comparison of a study; "" is a study file without a name."""
    return f"comparison_{study}" if study else "comparison"


def also_file(study: str, figure: str) -> str:
    """Return the name, without a suffix, of a figure beyond the paper, of ALSO or of a project (FILE.py:NAME)."""
    return f"{compared_file(study)}_{figure.rpartition(':')[2]}"


def own_figures(studies: Iterable[str]) -> list[str]:
    """Return the figures of a project (FILE.py:NAME) that stand with the comparisons of studies."""
    return [figure for study in studies for figure in also(study) if is_place(figure)]


def claimed() -> list[str]:
    """Return the studies that the claims ask for, each once. Raises UserError naming a file that is not YAML."""
    claims = [claim for path in sorted(CLAIMS.glob("*.yaml")) for claim in _read(path, list)]
    named = (with_studies(claim).get("studies") or [] for claim in claims if isinstance(claim, dict))
    return list(dict.fromkeys(study for studies in named for study in studies))


def with_studies(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return a claim with its default: a query reads the runs of Table 1 where no studies are named."""
    return {"studies": [MAIN], **claim} if claim.get("query") else dict(claim)


def at_scale(studies: Iterable[str], scale: str) -> list[str]:
    """Return those of the studies that have runs at ``scale``."""
    return [name for name in studies if scale in (_study(name).get("scales") or {})]


def _path(study: str) -> Path:
    return places.file_of("study", study)


def _study(name: str) -> dict[str, Any]:
    if not _path(name).exists():
        raise UserError(unknown("study", f"no file {_path(name)}", name, options("study")))
    return _read(_path(name), dict)


def _read(path: Path, kind: type) -> Any:
    """Return the content of a YAML file; nothing where it is of another kind, as whoever checks the file explains."""
    content = _parsed(path, path.read_text(encoding="utf-8"))
    return content if isinstance(content, kind) else kind()


@lru_cache(maxsize=64)
def _parsed(path: Path, text: str) -> Any:
    return KEPT.get(("yaml", text), lambda: parse_yaml(path, text))


def robustness_reports(results: Path) -> list[list[Path]]:
    """Return .md, .svg and .csv of every sweep's finished robustness report; the .csv is written last."""
    reports = [[p.with_suffix(s) for s in (".md", ".svg", ".csv")] for p in results.glob("sweeps/*/robustness.md")]
    return sorted(files for files in reports if all(p.exists() for p in files))
