"""``python -m analysis.audit``: what does not follow in a published table, with the numbers behind each finding."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from analysis.audit import SETUP, Finding, audit, load
from bapo.errors import UserError
from bapo.store.files import write_text


def markdown(findings: list[Finding]) -> str:
    """Return the findings by check."""
    parts = [f"# Audit: {len(findings)} findings", ""]
    for check in dict.fromkeys(f.check for f in findings):
        of_check = [f for f in findings if f.check == check]
        parts += [f"## {check} ({len(of_check)})", "", *(f"- {f.where}: {f.text}." for f in of_check), ""]
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.audit", description=__doc__)
    parser.add_argument("--setup", type=Path, default=SETUP, help="YAML with the table's file and what is said of it")
    parser.add_argument("--out", type=Path, help="write audit.md and audit.json into this folder")
    options = parser.parse_args(arguments)
    try:
        findings = audit(load(options.setup))
        text = markdown(findings)
        if options.out:
            write_text(options.out / "audit.md", text)
            write_text(options.out / "audit.json", json.dumps([asdict(f) for f in findings], indent=1) + "\n")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
