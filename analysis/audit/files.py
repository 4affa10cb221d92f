"""The findings as Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.audit import beside
from analysis.audit.beside import Pair
from analysis.audit.published import Finding
from bapo.store.files import write_text

#: files that ``write`` makes
FILES = ("audit.md", "audit.json")


def markdown(
    findings: Sequence[Finding], title: str = "", source: str = "", pairs: Sequence[Pair] | None = None
) -> str:
    """Return the findings by check, and the printed numbers beside one's own where ``pairs`` are given."""
    parts = [f"# Audit{f' of {title}' if title else ''}: {len(findings)} findings", ""]
    parts += [f"{source}.", ""] if source else []
    for check in dict.fromkeys(f.check for f in findings):
        of_check = [f for f in findings if f.check == check]
        parts += [f"## {check} ({len(of_check)})", "", *(f"- {f.where}: {f.text}." for f in of_check), ""]
    return "\n".join([*parts, beside.markdown(pairs)] if pairs is not None else parts)


def write(out: Path, text: str, findings: Sequence[Finding], pairs: Sequence[Pair] | None) -> list[Path]:
    """Write audit.md and audit.json into ``out``: the findings, and the pairs where there are any."""
    paths = [out / name for name in FILES]
    write_text(paths[0], text)
    listed = [asdict(f) for f in findings]
    content: Any = listed if pairs is None else {"findings": listed, "beside": [_finite(p) for p in pairs]}
    write_text(paths[1], json.dumps(content, indent=1) + "\n")
    return paths


def _finite(pair: Pair) -> dict[str, Any]:
    """Without an interval (one problem) its ends are null."""
    numbers = beside.as_dictionary(pair).items()
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in numbers}
