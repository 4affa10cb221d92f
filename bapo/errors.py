"""The errors that the command line reports without a traceback."""

from __future__ import annotations

import difflib
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

#: errors of a disk: no space, a quota, a file in place of a folder, a name that is too long, links in a circle
_NO_PLACE = {errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
#: errors of a file, a folder or a file system that this user may not write
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}
#: messages of torch, the loader of libraries and Python's threads when the machine or `ulimit` gives no more memory
_NO_MORE = re.compile(r"allocate memory|failed to map segment|can't start new thread")
#: message of torch when a GPU has no more memory
_CARD_FULL = re.compile(r"(?:CUDA|HIP)(?: error:)? out of memory|_ALLOC_FAILED")


class UserError(Exception):
    """Reports wrong input or a broken file in one sentence: file, field and cure. The command line exits with 2."""


class Interrupted(Exception):
    """Raised when Ctrl-C or SIGTERM ends a run, after a checkpoint if a step was done. The exit status is 130."""


class JobFailed(RuntimeError):
    """Raised when a verl job fails, with the worker's text, or when code calls sys.exit. The exit status is 1."""


def first_line(error: BaseException) -> str:
    """Return the first line that an error says, or its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def require_extra(extra: str, *packages: str) -> None:
    """Raise UserError where one of the packages that an extra of this distribution installs is missing."""
    if missing := [package for package in packages if find_spec(package) is None]:
        cure = f"pip install 'bapo-reproduction[{extra}]', or in a checkout pip install -e '.[{extra}]'"
        raise UserError(f"{' and '.join(missing)}: not installed; install the extra `{extra}`: {cure}")


def unknown(where: str, what: str, value: str, allowed: Sequence[str]) -> str:
    """Return a sentence that ``value`` does not exist, with the closest allowed name and all of them.

    where: file and field; what: the fault in a few words, such as "no such key".
    """
    close = difflib.get_close_matches(value, allowed, 1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"{where}: {what}{hint}; allowed: {', '.join(allowed)}"


def exit_status(work: Callable[[], int]) -> int:
    """Run ``work`` and return its exit status, or 1 for a failure, 2 for wrong input and 130 for an interruption.

    An error that the user can remedy is printed on stderr in one sentence.
    """
    try:
        status = work()
        print(end="", flush=True)  # unlike sys.stdout.flush(), it works in a job without stdout
        return status
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        return 128 + signal.SIGPIPE
    except UserError as error:
        status, sentence = 2, f"error: {error}"
    except KeyboardInterrupt:
        status, sentence = 130, "interrupted; run the same command again to resume from the last checkpoint"
    except (Interrupted, JobFailed) as error:
        status, sentence = 130 if isinstance(error, Interrupted) else 1, str(error)
    except Exception as error:
        if not (cure := _cure(error)):
            raise
        status, sentence = 1, f"error: {error}: {cure}, and run the same command again"
    print(sentence, file=sys.stderr)
    return status


def _cure(error: Exception) -> str | None:
    """Return the cure of an error of the machine, or None for an error of the code.

    Libraries have their own error classes, so the number or the reason is searched for in the text.
    """
    number = re.search(r"\b(?:os error|errno) (\d+)", str(error), re.IGNORECASE)
    in_proc = isinstance(error, FileNotFoundError) and str(error.filename).startswith("/proc/")  # no file can be made
    if number and int(number[1]) in _NO_RIGHT:
        return "ask for access to it or name another place"
    if in_proc or (number and int(number[1]) in _NO_PLACE):
        return "make room or name another place"
    if lacks_memory(error):
        full = _CARD_FULL.search(str(error))
        machine = "let the job have more memory and threads (ulimit -a shows its limits)"
        return "lower train.micro_batch_size, end what else uses the GPU or take a larger card" if full else machine
    return None


def lacks_memory(error: Exception) -> bool:
    """Return whether an error says that the machine, its limits or a GPU have no more memory or threads."""
    return isinstance(error, MemoryError) or any(says.search(str(error)) for says in (_NO_MORE, _CARD_FULL))
