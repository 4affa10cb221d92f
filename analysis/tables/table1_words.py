"""What stands below Table 1: BAPO's claims, what the baselines learn, what is replayed, and how to read the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from analysis import reading, results, text
from analysis.results import AVERAGE, Comparison
from analysis.study import Block, Cell, Study, plain
from bapo.store.files import GROUPS

if TYPE_CHECKING:
    from analysis.tables.table1 import Section

#: (a, b): the comparisons that the paper's claims rest on, one sentence each below the table
CLAIMS = (("bapo", "grpo"), ("bapo", "dapo"))
#: methods whose gain over the base is stated
LEARNERS = ("grpo", "dapo")


def sentences(section: Section) -> list[str]:
    """Return everything that is said below a part of the table about one block."""
    rows = {r.method: r for r in section.rows}
    lines = [_claim(section, c) for pair in CLAIMS if (c := results.between(section.comparisons[AVERAGE], *pair))]
    if results.BASE in rows:
        start = rows[results.BASE].mean(AVERAGE).mean
        for row in (rows[m] for m in LEARNERS if m in rows):
            gains = sorted(100 * (v - start) for v in row.mean(AVERAGE).seed_means)
            ends = " to ".join(map(text.signed, gains[:: max(1, len(gains) - 1)]))  # the worst and the best seed
            lines += text.words("learned", title=row.title.lstrip("+"), gains=ends)
    replayed = [
        f"{rows[m].title.lstrip('+')} {100 * r.share:.1f}% ({r.steps:.0f} of {r.of:.0f} steps)"
        for m, r in section.replays.items()
    ]
    return lines + (text.words("replayed", methods=", ".join(replayed)) if replayed else [])


def _interval(c: Comparison) -> str:
    return f"{text.interval(c.difference.tested)}, {text.p_value(c.difference.tested.p)}"


def _verdict(c: Comparison, a: str, b: str) -> str:
    if c.differ and not c.real:
        return "these trained models differ; one training seed does not show that the methods do"
    return f"{a} is significantly {c.verdict} {b}" if c.real else c.verdict


def _claim(section: Section, c: Comparison) -> str:
    """Return one method against another: difference, interval, p, rollouts; and what the paper reports."""
    a, b = plain(c.a.title), plain(c.b.title)
    pairs = {
        title: results.between(section.comparisons[name], c.a.method, c.b.method)
        for name, title in section.block.benchmarks
    }
    each = "; ".join(f"{t} {text.signed(100 * d.difference.mean)} ({_interval(d)})" for t, d in pairs.items() if d)
    told = {"difference": text.signed(100 * c.difference.mean), "interval": _interval(c), "p": text.p_value(c.adjusted)}
    lines = text.words("claim", a=a, b=b, verdict=_verdict(c, a, b), each=each, **told)
    ours, theirs = (x.costs["rollouts"] for x in (c.a, c.b))
    if np.isfinite(ours) and theirs > 0:
        amounts = {"ours": text.thousands(ours), "theirs": text.thousands(theirs)}
        lines += text.words("rollouts", times=ours / theirs, b=b, **amounts)
    first, second = (section.paper.value(x.method, AVERAGE) if section.paper else None for x in (c.a, c.b))
    if section.paper and first is not None and second is not None:
        lines += text.words("paper", points=text.signed(first - second, 2), model=section.paper.title)
    return " ".join(lines)


# ------------------------------------------------------------------------------------------------ what is replayed


class Replay(NamedTuple):
    """Means over seeds. steps: in which some response was brought back; of: all steps; share: of the responses trained
    on, those that were stored before the step or are an expert's.
    """

    steps: float
    of: float
    share: float


def replays(block: Block, study: Study) -> dict[str, Replay]:
    """Return it for every method that is off policy, none replayed included, and for any other that replays.

    A run without recorded groups (imported, or unpacked evidence) says nothing.
    """
    found = {}
    for method, cells in block.methods.items():
        seeds = [seed for cell in cells if (cell.run / GROUPS).exists() and (seed := _of_seed(cell, study))]
        if seeds and (cells[0].kind == "off" or any(seed.share for seed in seeds)):
            found[method] = Replay(*np.mean(seeds, axis=0).tolist())
    return found


def _of_seed(cell: Cell, study: Study) -> Replay | None:
    groups = reading.table(cell, GROUPS, study)
    if groups.empty or "replayed" not in groups:
        return None
    trained = groups[groups["used"]]
    steps = trained.loc[trained["replayed"] > 0, "step"].nunique()
    share = trained["replayed"].sum() / max(1, trained["rewards"].map(len).sum())
    return Replay(steps, reading.summary(cell.run, study)["steps"], float(share))


# ------------------------------------------------------------------------------------------------ how to read it


def _tuned(sections: list[Section]) -> list[str]:
    """Return which rows have hyper-parameters that were chosen on held-out problems, and which."""
    by_block = {
        s.block.title: [
            f"{s.block.plain_title(m)} ({', '.join(cells[0].tuned)})"
            for m, cells in s.block.methods.items()
            if cells[0].tuned
        ]
        for s in sections
    }
    rows = "; ".join(f"{title}: {', '.join(tuned)}" for title, tuned in by_block.items() if tuned)
    return text.words("tuned" if rows else "untuned", rows=rows)


def notes(sections: list[Section]) -> list[str]:
    """Return the lines below the table: the cells, the marks and the paper's part."""
    rows = [r for s in sections for r in s.rows]
    problems = dict.fromkeys(
        f"{len(s.rows[0].outcomes[name].problems)} problems of {title}"
        for s in sections
        for name, title in s.block.benchmarks
    )
    fields = {
        "seeds": text.counted([len(r.seeds) for r in rows if not r.is_base], "training seed"),
        "samples": text.span([o.samples for r in rows for o in r.outcomes.values()]),
        "problems": ", ".join(problems),
        "level": results.LEVEL,
        "models": ", ".join(dict.fromkeys(s.paper.title for s in sections if s.paper)),
    }
    printed = text.words("printed", **fields) if fields["models"] else []
    return [*text.words("table1", "varies", **fields), *_tuned(sections), *printed]
