"""The errors that the command line reports without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class UserError(Exception):
    """Wrong input or a broken file, in one sentence: file, field and cure. The command line exits with 2."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM ended a run, after a checkpoint if a step was done. The command line exits with 130."""


class JobFailed(RuntimeError):
    """A verl job ended with an error; the text is the worker's. The command line exits with 1."""


def unknown(where: str, what: str, value: str, allowed: Sequence[str]) -> str:
    """Say that ``value`` does not exist, with the closest allowed name and all of them. where: file and field."""
    close = difflib.get_close_matches(value, allowed, 1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"{where}: {what}{hint}; allowed: {', '.join(allowed)}"
