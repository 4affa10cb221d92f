"""A frame in the terminal, by rich. All text is shown as it is: nothing in it is markup."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich import box
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from analysis.left import duration
from analysis.watch.folder import DONE, KINDS, RUNNING, STOPPED
from analysis.watch.frame import Active, Frame, Group, percent, plain, time_left

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 72


def spark(curve: Sequence[float], top: float) -> str:
    """Return a curve as blocks, 0 to ``top``."""
    if top <= 0:
        return BARS[0] * len(curve)
    return "".join(BARS[min(len(BARS) - 1, max(0, int(len(BARS) * v / top)))] for v in curve)


def view(frame: Frame, rows: int | None = None) -> RenderableType:
    """Lay out a frame. rows: lines that the tables may take together; None: all of them."""
    shown = [a for a in frame.active if a.state == RUNNING]
    stopped = [a for a in frame.active if a.state != RUNNING]
    few = stopped if rows is None else stopped[: max(3, rows // 4)]
    parts: list[RenderableType] = [_head(frame), _bar(frame)]
    if shown or few:
        parts.append(_active([*shown, *few], rows is None))
    if len(few) < len(stopped):
        parts.append(Text(f"and {len(stopped) - len(few)} more that have stopped", style="dim"))
    groups = _urgent(frame.groups)
    room = len(groups) if rows is None else max(3, rows - len(shown) - len(few))
    if groups:
        kept = set(map(id, groups[:room]))
        parts.append(_groups([g for g in frame.groups if id(g) in kept], rows is None))
    if len(groups) > room:
        parts.append(Text(f"and {len(groups) - room} more methods; --once shows all", style="dim"))
    parts += [Text(words, style="dim") for words in frame.sweeps]
    parts += [Text(plain(problem), style="red") for problem in frame.problems]
    return Stack(*parts)


def _head(frame: Frame) -> Text:
    counts = [f"{states[DONE]} of {sum(states.values())} {KINDS[kind]}" for kind, states in frame.counts.items()]
    running, stopped = frame.having(RUNNING), frame.having(STOPPED)
    text = Text(f"{plain(frame.name)}  ", style="bold")
    text.append(f"{frame.having(DONE)} of {frame.jobs} jobs done", style="bold green" if frame.finished else "bold")
    text.append(f", {running} running" + (f", {stopped} stopped" if stopped else ""), style="not bold")
    text.append(f"  {time_left(frame)}", style="not bold cyan")
    text.append(
        f"\n{', '.join(counts)}  at {time.strftime('%H:%M:%S', time.localtime(frame.time))}", style="not bold dim"
    )
    return text


def _bar(frame: Frame) -> Text:
    filled = WIDTH * frame.having(DONE) // max(1, frame.jobs)
    bar = Text("━" * filled, style="green")
    bar.append("━" * (WIDTH - filled), style="dim")
    return bar


def _active(listed: Sequence[Active], wrap: bool) -> Table:
    """wrap: whether a long title takes several lines; on a screen it is cut."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("Now", ratio=3, no_wrap=not wrap)
    for name in ("Job", "Steps", "Left", "Reward"):
        table.add_column(name, no_wrap=name != "Reward", justify="right" if name in ("Steps", "Left") else "left")
    for a in listed:
        steps = f"{a.done}/{a.total}" if a.total else ""
        left = duration(a.left) if a.left is not None else ""
        state = Text(a.state, style="red") if a.state == STOPPED else Text(left)
        words = Text(a.said[:60], style="dim") if a.said else Text(_curve(a.curve, max(a.curve, default=1.0)))
        table.add_row(Text(a.title), Text(a.kind), Text(steps), state, words)
    return table


def _groups(listed: Sequence[Group], wrap: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("Task", "Method", "Runs", "Evaluated", "Reward so far", "Probe %", "Accuracy %"):
        left = name in ("Task", "Method", "Reward so far")
        most = None if wrap or name not in ("Task", "Method") else 28
        table.add_column(
            name,
            no_wrap=not wrap or name not in ("Task", "Method"),
            justify="left" if left else "right",
            max_width=most,
        )
    before = ""
    for g in listed:
        runs = f"{g.done}/{g.runs}" + (f" +{g.running}" if g.running else "")
        probe = f"{percent(g.probe[0])} → {percent(g.probe[1])}" if g.probe else ""
        accuracy = percent(g.accuracy) if g.accuracy is not None else ""
        cells = [g.task if g.task != before else "", g.method, runs, f"{g.evaluated}/{g.asked}" if g.asked else ""]
        table.add_row(*map(Text, [*cells, _curve(g.curve, g.top), probe, accuracy]))
        before = g.task
    return table


def _curve(curve: Sequence[float], top: float) -> str:
    return f"{spark(curve, top)} {curve[-1]:.2f}" if curve else ""


def _urgent(groups: Sequence[Group]) -> list[Group]:
    """Order groups for a short screen: those with a run at work, then the begun, the others last."""
    return sorted(groups, key=lambda g: (not g.running, not (0 < g.done < g.runs), g.done == 0))
