"""Errors that a user can act on: one sentence that names the file, the field and the cure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class UserError(Exception):
    """Wrong input or a broken file. The command line prints its text alone, without a traceback, and exits with 2."""


def unknown(where: str, what: str, value: str, allowed: Sequence[str]) -> str:
    """Say that ``value`` does not exist, with the closest allowed name and all of them. where: file and field."""
    close = difflib.get_close_matches(value, allowed, 1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"{where}: {what}{hint}; allowed: {', '.join(allowed)}"
