"""Tables 2 to 4 of the paper and the tables of the other studies, from run directories: csv, Markdown and LaTeX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.study import Study

#: command of ``python -m analysis`` -> what it writes
NAMES = {
    "table2": "Table 2, computational overhead: table2.csv, table2.md and table2.tex",
    "table3": "Table 3, hyper-parameters as used: table3.csv, table3_options.csv, table3.md and table3.tex",
    "table4": "Table 4, data sets as loaded: table4.csv, table4_overlap.csv, table4.md and table4.tex",
    "comparison": "every method of a study beside its reference: comparison_STUDY.csv, .md and .tex; of the study "
    "regimes also regimes.csv, .md, .tex and a figure",
}


def write(name: str, study: Study, out: Path) -> list[Path]:
    """Write one of NAMES into the folder ``out``; returns the files. Raises UserError naming missing runs."""
    from analysis.reading import require_runs
    from analysis.tables import comparison, data_sets, hyperparameters, overhead
    from analysis.tables.regimes import files as regimes

    require_runs(study)
    if name != "comparison":
        return {"table2": overhead, "table3": hyperparameters, "table4": data_sets}[name].write(study, out)
    paths = comparison.write(study, out)
    return paths + (regimes.write(study, out) if study.name == "regimes" else [])
