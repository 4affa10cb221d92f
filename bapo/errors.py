"""The errors that the command line reports without a traceback."""

from __future__ import annotations

import difflib
import errno
import re
import sys
from collections.abc import Callable, Sequence

#: what a disk may refuse -> what to do
_REFUSED = {errno.ENOSPC: "free space on the disk", errno.EDQUOT: "free space, as your quota is used up"}
_REFUSED |= dict.fromkeys((errno.EROFS, errno.EACCES, errno.ENOTDIR), "choose a folder that you may write to")


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


def exit_status(work: Callable[[], int]) -> int:
    """Do the work of a command and return its exit status: its own, or 1 failed, 2 wrong input, 130 interrupted.

    What users can mend is told in one sentence on stderr.
    """
    try:
        return work()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command again to resume from the last checkpoint", file=sys.stderr)
        return 130
    except (Interrupted, JobFailed) as error:
        print(error, file=sys.stderr)
        return 130 if isinstance(error, Interrupted) else 1
    except Exception as error:
        # safetensors and pyarrow name the number in their text
        said = re.search(r"\b(?:os error|errno) (\d+)", str(error), re.IGNORECASE)
        number = getattr(error, "errno", None) or (int(said[1]) if said else None)
        if number not in _REFUSED:
            raise
        print(f"error: {error}; {_REFUSED[number]} and run the same command again", file=sys.stderr)
        return 1
