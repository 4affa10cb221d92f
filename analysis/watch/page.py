"""The same frame as a page that loads itself again while it is watched: one template that escapes everything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from analysis import html
from analysis.left import duration
from analysis.watch.folder import DONE, KINDS, RUNNING, STOPPED
from analysis.watch.frame import Frame, percent, time_left
from bapo.store.files import write_text

FOLDER = Path(__file__).resolve().parent / "templates"
#: units of a curve's drawing
WIDTH, HEIGHT = 120, 24


def polyline(curve: Sequence[float], top: float) -> str:
    """Return the points of a curve, 0 to ``top``, in units of the drawing."""
    step = WIDTH / max(1, len(curve) - 1)
    scale = (HEIGHT - 2) / top if top > 0 else 0.0
    return " ".join(f"{i * step:.1f},{HEIGHT - 1 - max(0.0, min(v, top)) * scale:.1f}" for i, v in enumerate(curve))


def render(frame: Frame, every: float | None) -> str:
    """Return the page's text. every: seconds until it loads itself again; None: it stays as it is."""
    style = (FOLDER / "watch.css").read_text(encoding="utf-8")
    return html.template(FOLDER, "watch.html", duration=duration, percent=percent).render(
        frame=frame,
        every=None if every is None else max(1, round(every)),
        left=time_left(frame),
        when=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(frame.time)),
        kinds=KINDS,
        states={"done": DONE, "running": RUNNING, "stopped": STOPPED},
        polyline=polyline,
        width=WIDTH,
        height=HEIGHT,
        style=Markup(style),
        policy=f"default-src 'none'; style-src {html.source(style)}; base-uri 'none'; form-action 'none'",
    )


def write(frame: Frame, path: Path, every: float | None) -> None:
    """Write the page, whole or not at all. Raises UserError where it cannot be written."""
    write_text(path, render(frame, every))
