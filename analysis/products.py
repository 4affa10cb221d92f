"""The products: what a table or figure is called, which function makes it, and what a target of the workflow makes.

To add one, write its function in ``analysis/tables`` or ``analysis/figures``, add a line to TABLES or FIGURES, and name
it under ``tables`` or ``figures`` in a file of ``experiments/study/``. The rules stand in workflows/products.smk. A
study's file is read as it stands: whoever runs the study checks the rest of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bapo import project
from bapo.errors import UserError, unknown
from bapo.experiments import places
from bapo.experiments.places import options
from bapo.experiments.studies import study_file
from bapo.store.files import SUMMARY, Json
from bapo.validate import parse_yaml, wrong

CLAIMS = Path(__file__).resolve().parent / "claims"
#: the study whose runs the paper's tables show, and its first table
MAIN = "table1"
#: what a claim reads that names no study: those runs, and the main rows' further seeds where they were made
CLAIMED = (MAIN, "table1_seeds")
#: tables that every study may have, each in files of its own
COMPARISON, GATES, SOLVE_RATE = "comparison", "gates", "solve_rate"
SPECIFICATIONS, ASYMPTOTE, COVERAGE = "specifications", "asymptote", "coverage"
PER_STUDY = (COMPARISON, GATES, SOLVE_RATE, SPECIFICATIONS, ASYMPTOTE, COVERAGE)
#: what a reader sees minutes after the start: four rows of Table 1, with one seed
FIRST_LOOK = "first_look"
#: the study whose runs choose hyper-parameters; its table reads what training has recorded, no evaluation
TUNING = "tuning"
#: where `bapo import` puts other people's results, beside the scales' folders
IMPORTED = "imported"
#: the name of the ledger's files
LEDGER = "claims"
PAGE = "report.html"
#: suffixes of the files that are made of a table, a figure, the ledger and a sweep
TABLE, FIGURE = ("md", "csv", "tex"), ("svg", "csv", "pdf", "png")
CLAIM, SWEEP = ("md", "csv", "json"), ("md", *FIGURE)


@dataclass(frozen=True)
class Product:
    """A table or a figure.

    made_by: a module of the analysis, whose ``write`` makes a table; the function of a figure has the figure's name.
    curves: it reads the evaluations of kept checkpoints.
    """

    name: str
    title: str
    made_by: str
    curves: bool = False

    @property
    def number(self) -> str:
        """Return the paper's number: "Table 2", "Figure 12", or "" where the paper has no such thing."""
        match = re.fullmatch(r"(table|figure)(\d+)(_\w+)?", self.name)
        return f"{match[1].capitalize()} {match[2]}" if match else ""

    @property
    def heading(self) -> str:
        """Return the number, where there is one, and the title."""
        return f"{self.number}: {self.title}" if self.number else self.title


def _named(*products: Product) -> dict[str, Product]:
    return {product.name: product for product in products}


def _with(stem: str, suffixes: Sequence[str]) -> list[str]:
    return [f"{stem}.{suffix}" for suffix in suffixes]


#: a table's name is also its command of ``python -m analysis``
TABLES = _named(
    Product(MAIN, "accuracy on every benchmark", "tables.table1"),
    Product("table2", "computational overhead", "tables.table2"),
    Product("table3", "hyper-parameters as used", "tables.table3"),
    Product("table4", "data sets as loaded", "tables.table4"),
    Product("checkpoint_choice", "Which checkpoint to report", "beyond.checkpoints", curves=True),
    Product("variance", "Variance: problems, seeds and samples", "beyond.variance"),
    Product("theory_monitor", "Theory monitor: the bound of Theorem 3.2", "beyond.theory"),
    Product("regimes", "Difficulty regimes", "beyond.regimes"),
    Product(TUNING, "Hyper-parameters on held-out problems", "beyond.tuning"),
)
#: tables that no study names: every study's comparison, and one of MAIN's runs with files of other names
OTHERS = _named(
    Product(COMPARISON, "Every method of a study beside its reference", "tables.comparison"),
    Product(GATES, "Positive controls and decision, written down before the runs", "beyond.gates"),
    Product(SOLVE_RATE, "Training prompts by the base model's solve rate", "beyond.solve_rate"),
    Product(COVERAGE, "Test problems by the base model's solve rate", "beyond.coverage"),
    Product(SPECIFICATIONS, "Every difference by each standard test", "beyond.specifications"),
    Product(ASYMPTOTE, "Where training would end, by sigmoid fits", "beyond.asymptote", curves=True),
    Product(FIRST_LOOK, "First look", "tables.first_look"),
)
#: figures, the paper's in its order
FIGURES = _named(
    Product("figure1_accuracy_groups", "Accuracy groups before and after GRPO", "figures.bins"),
    Product("figure4_training_curves", "Training curves", "figures.curves"),
    Product("figure5_test_curves", "Test curves of BAPO and its mini test", "figures.curves", curves=True),
    Product("figure6_ablations", "Ablations of BAPO", "figures.ablations"),
    Product("figure7_tracking", "Tracking of accuracy bins, mathematics", "figures.bins"),
    Product("figure8_batch_composition", "Batch composition, mathematics", "figures.batch"),
    Product("figure9_cumulative_rollouts", "Cumulative rollouts", "figures.curves"),
    Product("figure10_online_filters", "Online filters", "figures.ablations"),
    Product("figure11_dynamics", "Reward, entropy and response length", "figures.curves"),
    Product("figure12_test_curves", "Test curves", "figures.curves", curves=True),
    Product("figure13_tracking", "Tracking of accuracy bins, Countdown and geometry", "figures.bins"),
    Product("figure14_batch_composition", "Batch composition, all tasks", "figures.batch"),
    Product("figure15_migration", "Migration between accuracy bins", "figures.bins"),
    Product("figure16_ppo", "PPO against BA-PPO", "figures.curves", curves=True),
    Product("training_curves", "Training curves", "figures.curves"),
    Product("unsolved_share", "Training prompts that are never solved, minus the reference", "figures.bins"),
    Product("pass_at_k", "At least one of k samples correct, minus the reference", "figures.curves"),
    Product("off_policy_signal", "What off-policy responses are worth", "figures.batch"),
    Product("x2_admission", "X2's admission against sampling alone", "beyond.admission"),
    Product("drift", "Accuracy against drift from the rollout policy", "beyond.drift"),
)


# ------------------------------------------------------------------------------------------------ what a study draws


def tables_of(study: str) -> list[str]:
    """Return the tables that a study names, by default its comparison. Raises UserError for an unknown one."""
    return _names(study, "tables", [*TABLES, *PER_STUDY], [COMPARISON])


def _figures(study: str) -> list[str]:
    return _names(study, "figures", list(FIGURES)) if study in options("study") else []


def _names(study: str, key: str, allowed: Sequence[str], default: Sequence[str] = ()) -> list[str]:
    names = _study(study).get(key)
    if not isinstance(names, list | None):
        raise wrong(places.file_of("study", study), key, names, "must be a list of names")
    for name in names or ():
        if name not in allowed and not (key == "figures" and project.is_place(name)):
            sentence = unknown(key, f"no {key[:-1]} '{name}'", name, allowed)
            raise UserError(f"{places.file_of('study', study)}: {sentence}")
    return list(default if names is None else names)


def figures_of(study: str) -> list[str]:
    """Return the paper's figures that a study names. Raises UserError for an unknown one."""
    return [name for name in _figures(study) if name in FIGURES and FIGURES[name].number]


def compared_with(study: str) -> list[str]:
    """Return the other figures that a study names, which stand with its comparison; a project's are FILE.py:NAME.

    Raises UserError for an unknown one, and where the study names such figures but no comparison.
    """
    others = [name for name in _figures(study) if name not in FIGURES or not FIGURES[name].number]
    if others and COMPARISON not in tables_of(study):
        path = places.file_of("study", study)
        raise UserError(f"{path}: figures: {others[0]} stands with the comparison; add {COMPARISON} to tables")
    return others


def at_scale(studies: Iterable[str], scale: str) -> list[str]:
    """Return those of the studies that have runs at ``scale``. Raises UserError for an unknown study."""
    return [name for name in studies if scale in (_study(name).get("scales") or {})]


def _study(name: str) -> dict[str, Any]:
    path = places.file_of("study", name)
    if not path.exists():
        raise UserError(unknown("study", f"no file {path}", name, options("study")))
    return parse_yaml(path)


def drawn_by(names_of: Callable[[str], list[str]], scale: str) -> dict[str, str]:
    """Return product -> the study at ``scale`` that names it. names_of: tables_of or figures_of.

    Raises UserError where two studies name one, or a study one that does not exist.
    """
    study_of: dict[str, str] = {}
    for study in at_scale(options("study"), scale):
        for name in names_of(study):
            if name not in PER_STUDY and study_of.setdefault(name, study) != study:
                path = places.file_of("study", study)
                raise UserError(f"{path}: {name} is drawn for {study_of[name]} already; name it once")
    return {name: study_of[name] for name in (*TABLES, *FIGURES) if name in study_of}


def beyond(scale: str) -> list[str]:
    """Return the studies at ``scale`` from which nothing of the paper is drawn. Raises UserError as figures_of."""
    return [name for name in at_scale(options("study"), scale) if name != MAIN and not figures_of(name)]


# ------------------------------------------------------------------------------------------------ the files


def compared_file(study: str) -> str:
    """Return the name, without a suffix, of the comparison of a study; "" is a study file without a name."""
    return f"{COMPARISON}_{study}" if study else COMPARISON


def _tables(study: str) -> list[str]:
    names = [f"{name}_{study}" if name in PER_STUDY else name for name in tables_of(study)]
    return [file for name in names for file in _with(f"tables/{name}", TABLE)]


def imported(home: Path) -> list[Path]:
    """Return the summaries of imported runs and evaluations, which the page shows beside those in ``home``."""
    folder = home.parent / IMPORTED
    return sorted(p for pattern in ("", "eval/") for p in folder.glob(f"*/*/*/seed*/{pattern}{SUMMARY}"))


def robustness_reports(results: Path) -> list[list[Path]]:
    """Return .md, .svg and .csv of every sweep's finished robustness report; the .csv is written last."""
    reports = [[p.with_suffix(s) for s in (".md", ".svg", ".csv")] for p in results.glob("sweeps/*/robustness.md")]
    return sorted(files for files in reports if all(p.exists() for p in files))


# ------------------------------------------------------------------------------------------------ the targets


def own_studies(scale: str) -> list[str]:
    """Return the studies at ``scale`` of the project in the working directory. Raises UserError for a wrong file."""
    return at_scale([study_file(name).name for name in places.own("study")], scale)


def targets(scale: str, sweeps: Iterable[str]) -> dict[str, list[str]]:
    """Return target of the workflow -> the files in the scale's folder that it asks for.

    A project with studies of its own draws, compares and shows these alone where all are asked for. sweeps: those with
    runs at the scale. Raises UserError as :func:`drawn_by` and :func:`compared_with`.
    """
    studies, look = own_studies(scale), []
    figures = {name: _with(f"figures/{name}", FIGURE) for name in drawn_by(figures_of, scale)}
    target_files = {name: _with(f"tables/{name}", TABLE) for name in drawn_by(tables_of, scale)} | figures
    for study in at_scale(options("study"), scale):
        target_files[study] = [*_tables(study), *(file for name in figures_of(study) for file in figures[name])]
    target_files["tables"] = target_files.get(MAIN, [])
    if MAIN in target_files:  # it draws those figures of its runs that take seconds
        look = [f"{FIRST_LOOK}.md", f"{FIRST_LOOK}.png"]
        quick = [file for name in figures_of(MAIN) if not FIGURES[name].curves for file in figures[name]]
        target_files[MAIN] = [*look, *_with(f"tables/{MAIN}", TABLE), *quick]
        target_files["tables"], target_files["theory"] = [*look, *_tables(MAIN)], target_files.get("theory_monitor", [])
    drawn = [_tables(study) for study in studies if compared_with(study)] if studies else figures.values()
    target_files["figures"] = [file for files in drawn for file in files]
    target_files["comparisons"] = [file for study in studies or beyond(scale) for file in _tables(study)]
    reports = {f"sweep_{sweep}": _with(f"sweeps/{sweep}/robustness", SWEEP) for sweep in sweeps}
    target_files["sweep"] = [file for files in reports.values() for file in files]
    target_files["all"] = [*(target_files["comparisons"] if studies else look), PAGE]
    return target_files | reports


def shown_on_page(scale: str) -> list[str]:
    """Return the files that are made before the page: all of the paper's, or of a project its own studies'."""
    if studies := own_studies(scale):
        return [file for study in studies for file in _tables(study)]
    tables = _tables(MAIN) if at_scale([MAIN], scale) else []
    figures = [file for name in drawn_by(figures_of, scale) for file in _with(f"figures/{name}", FIGURE)]
    return [*tables, *figures, *_with(LEDGER, CLAIM)]


def shown_where_it_exists(home: Path, scale: str) -> list[Path]:
    """Return the files in ``home`` that the page shows where they exist, but does not ask for."""
    compared = [home / file for study in beyond(scale) for file in _tables(study)]
    reports = [p for files in robustness_reports(home) for p in files]
    return [p for p in compared if p.exists()] + reports + imported(home)


def to_open(home: Path, files: Iterable[Path], sweeps: Iterable[str]) -> list[str]:
    """Return "NAME: PLACE" of three of the files, which a reader opens first. home: the scale's results."""
    shown = {f"Comparison of {study}": f"tables/{compared_file(study)}.md" for study in options("study")}
    shown |= {f"Sweep {sweep}": f"sweeps/{sweep}/robustness.md" for sweep in sweeps}
    shown |= {"Report": PAGE, "Table 1": f"tables/{MAIN}.md", "Figures": "figures", "Claims": f"{LEDGER}.md"}
    shown |= {"First look": f"{FIRST_LOOK}.md", "Picture": f"{FIRST_LOOK}.png"}
    there = {place for file in files for place in (file, file.parent)}
    return [f"{name}: {home / place}" for name, place in shown.items() if home / place in there][:3]


# ------------------------------------------------------------------------------------------------ the ledger


def studies_of_claims(scale: str, home: Path) -> list[str]:
    """Return the studies that the claims in analysis/claims read.

    A study beyond the paper takes hours: the ledger reads it where its comparison is in ``home``, and does not ask.
    """
    further = set(beyond(scale))
    return [s for s in at_scale(claimed(), scale) if s not in further or (home / _tables(s)[0]).exists()]


def claims_of(place: Path = CLAIMS) -> Iterator[tuple[Path, Json]]:
    """Give each claim of a folder, with its file. Raises UserError naming a file that holds anything else."""
    for path in sorted(place.glob("*.yaml")):
        for claim in parse_yaml(path, kind=list):
            if not isinstance(claim, dict):
                raise UserError(f"{path}: each entry must be a mapping; one is {claim!r}")
            yield path, claim


def claimed() -> list[str]:
    """Return the studies that the claims ask for, each once. Raises UserError as :func:`claims_of`."""
    return list(dict.fromkeys(study for _, claim in claims_of() for study in claim.get("studies") or CLAIMED))
