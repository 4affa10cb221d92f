"""One self-contained HTML page of a scale's results: ``python -m analysis report``.

The page holds what lies in the results folder (tables, figures, sweeps, the claims ledger, configurations, manifests)
and the audit of the paper, which needs no runs. It is one file that opens from disk and asks no network for anything.
"""

from __future__ import annotations

from analysis.report.page import Report, write

__all__ = ["Report", "write"]
