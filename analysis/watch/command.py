"""The command: a frame every few seconds until Ctrl-C, or one frame."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from analysis.watch import page
from analysis.watch.curves import Reader
from analysis.watch.frame import Frame, look
from bapo.errors import UserError


def watch(folder: Path, once: bool = False, out: Path | None = None, every: float = 5.0) -> None:
    """Show a scale's results, again every ``every`` seconds until Ctrl-C; once: one frame, all of it.

    out: a page with the same facts, written at each frame. Raises UserError where the folder is no scale's results.
    """
    from rich.console import Console
    from rich.live import Live

    from analysis.watch import terminal

    if not every > 0:
        raise UserError(f"--every {every:g}: must be more than 0 seconds")
    reader = Reader()
    frame = look(folder, reader, time.time())
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 140))
    if once:
        console.print(terminal.view(frame))
        _write(frame, out, None)
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` ends it as Ctrl-C does
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                rows = max(6, console.height - 12) if console.is_terminal else None
                live.update(terminal.view(frame, rows), refresh=True)
                _write(frame, out, every)
                time.sleep(every)
                frame = look(folder, reader, time.time())
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        _write(frame, out, None)  # a page that nobody writes any more does not load itself again
    console.print(terminal.view(frame))


def _write(frame: Frame, out: Path | None, every: float | None) -> None:
    if out is not None:
        page.write(frame, out, every)
