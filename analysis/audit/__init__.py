"""What a paper's published numbers say about themselves, by arithmetic alone: ``python -m bapo audit``.

No training is needed, and nothing is known beforehand: each check computes from a table as it is printed
(``analysis/paper/table1.yaml``) and from the paper's statements about it (``analysis/paper/setup.yaml``). Another
paper's table in the same format is audited with ``bapo audit PAPER.yaml`` (``analysis/paper/simplerl_zoo.yaml`` is
one); beside.py puts its numbers next to those of one's own runs.
"""

from __future__ import annotations

from analysis.audit.published import Finding, Published, load
from analysis.paper import FOLDER

SETUP = FOLDER / "setup.yaml"

__all__ = ["SETUP", "Finding", "Published", "audit", "load"]


def audit(published: Published) -> list[Finding]:
    """Return every finding, check by check, in the order of the table."""
    from analysis.audit import cells, statements, theorem

    checks = (
        cells.averages,
        cells.granularity,
        cells.marks,
        cells.best,
        statements.gains,
        statements.gain_ranges,
        statements.ratios,
        statements.budgets,
        statements.same,
        statements.sums,
        theorem.constants,
    )
    return [finding for check in checks for finding in check(published)]
