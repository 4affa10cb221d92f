"""What the page opens with: five sentences written from the numbers of one study, and which claims hold.

Of a difference that is not significant (analysis/report/gains.py) they say just that, never that there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis import text
from analysis.claims import CONTRADICTED, REPRODUCED, UNDERPOWERED, VERDICTS
from analysis.claims.writers import headline
from analysis.products import MAIN
from analysis.report import gains
from analysis.report.claims import anchor
from analysis.report.gains import COSTS, Gain, Panel, Row
from analysis.study import StudyFile
from bapo.errors import UserError
from bapo.experiments import places

#: the method whose gain has a sentence of its own
PROPOSED = "bapo"
#: cases that a sentence lists by name before it counts the rest
NAMED = 6


@dataclass(frozen=True)
class Opening:
    """sentences: five; claims: verdict -> (id, anchor) of each claim; problems: what could not be read, in words."""

    sentences: tuple[str, ...] = ()
    panels: tuple[Panel, ...] = ()
    claims: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    study: str = ""
    reference: str = ""


def collect(folder: Path, studies: Sequence[StudyFile], claims: Sequence[Mapping[str, Any]] | None) -> Opening:
    """Read the table of a project's study, else Table 1, else that of the first study that has one.

    studies: of the folder; claims: the ledger's lines, None where there is no paper to judge. What cannot be read is
    said; the page has more to show.
    """
    problems: list[str] = []
    own = places.own("study")
    for study in sorted(studies, key=lambda s: (s.name not in own, s.name != MAIN, s.name)):
        table = gains.table_of(study, folder / "tables")
        if table is None:
            continue
        try:
            panels = gains.panels(study, table)
        except UserError as error:
            problems.append(str(error))
            continue
        if any(p.rows for p in panels):
            title = next((p.reference for p in panels if p.reference), study.reference)
            words = sentences(panels, title, study.reference, claims)
            return Opening(
                words, tuple(panels), by_verdict(claims or ()), tuple(problems), study.title or study.name, title
            )
    return Opening(sentences((), "", "", claims), claims=by_verdict(claims or ()), problems=tuple(problems))


def by_verdict(claims: Sequence[Mapping[str, Any]]) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return verdict -> (id, anchor) of each claim, judged by the line that stands for it."""
    known = {"verdict": "", "task": "", "parts": ()}
    lines = [{**known, **line, "anchor": anchor(i)} for i, line in enumerate(claims)]
    found: dict[str, list[tuple[str, str]]] = {}
    for name in dict.fromkeys(line["id"] for line in lines):
        line = headline(lines, name)
        found.setdefault(line["verdict"], []).append((str(name), line["anchor"]))
    return {v: tuple(found[v]) for v in (*VERDICTS, *sorted(set(found) - set(VERDICTS))) if v in found}


# ------------------------------------------------------------------------------------------------ in words


def sentences(
    panels: Sequence[Panel], title: str, reference: str, claims: Sequence[Mapping[str, Any]] | None
) -> tuple[str, ...]:
    """Write the five sentences; two where there is no table. title: of the method called ``reference``.

    claims: as in :func:`collect`; None takes the last sentence away.
    """
    judged = () if claims is None else (on_claims(claims),)
    if not panels:
        return ("No table of accuracies has been made yet, so nothing can be said of any method.", *judged)
    return (
        over_the_base(panels),
        of_the_proposed(panels, title) or of_the_best(panels),
        of_the_others(panels, title, reference),
        of_costs(panels, title, reference),
        *judged,
    )


def over_the_base(panels: Sequence[Panel]) -> str:
    """Say what training gained: the least and the most of each task, and how many gains are significant."""
    parts, differences = [], []
    for p in panels:
        known = sorted((r for r in p.rows if r.over_base), key=lambda r: r.over_base.points)
        differences += [r.over_base for r in known]
        ends = [f"{r.over_base} with {r.title}" for r in (known if len(known) < 2 else (known[0], known[-1]))]
        parts += [f"on {p.title} {' up to '.join(ends)}"] if ends else []
    if not differences:
        return "What training gained cannot be said: the base model has not been evaluated."
    return (
        f"In points over the model before training, the methods gained {_listed(parts, '; ')}: {_tally(differences)}."
    )


def of_the_proposed(panels: Sequence[Panel], title: str) -> str:
    """Say how the proposed method stands to the reference, task by task; "" where it has not been run beside it."""
    found = [(p, r) for p in panels for r in p.rows if r.method == PROPOSED and r.over_reference]
    if not found:
        return ""
    parts = [f"{r.over_reference} on {p.title}" for p, r in found]
    return f"{found[0][1].title} minus {title}, in points, is {_listed(parts)}: {_verdicts(found)}."


def of_the_best(panels: Sequence[Panel]) -> str:
    """Say which method has the highest average on each task, and how it stands to the reference."""
    parts = []
    for p in panels:
        top = max(r.accuracy for r in p.rows)
        first = [r for r in p.rows if text.number(r.accuracy) == text.number(top)]
        gain = first[0].over_reference
        if len(first) > 1:
            tail = "level to a tenth of a point"
        elif gain is None:
            tail = "the method that the others are compared with" if p.reference else "with nothing to compare it with"
        else:
            tail = f"{gain} against {p.reference}" + ("" if gain.significant else f", {_open(gain)}")
        parts.append(f"{_listed([r.title for r in first])} on {p.title} with {text.number(top)}% ({tail})")
    return f"The highest average accuracy is that of {_listed(parts, '; ')}."


def of_the_others(panels: Sequence[Panel], title: str, reference: str) -> str:
    """Say which of the other methods stand above or below the reference."""
    if not any(p.reference for p in panels):
        return f"Nothing can be said against {title}: no run of it has been evaluated."
    found = [(p, r) for p in panels for r in p.rows if r.over_reference and r.method not in (PROPOSED, reference)]
    if not found:
        return f"No other method has been compared with {title}."
    parts = []
    for side in ("above", "below"):
        those = [case for case in found if case[1].over_reference.side == side]
        those.sort(key=lambda case: -abs(case[1].over_reference.points))
        if those:
            named = [f"{r.title} on {p.title}, {r.over_reference}" for p, r in those[:NAMED]]
            named += [f"{len(those) - NAMED} more"] if len(those) > NAMED else []
            parts.append(f"{len(those)} {'is' if len(those) == 1 else 'are'} {side} it ({_listed(named, '; ')})")
    unsure = [r.over_reference for _, r in found if not r.over_reference.significant]
    if len(unsure) == len(found):
        many = "both" if len(found) == 2 else f"all {len(found)}"
        of = "the one comparison of another method" if len(found) == 1 else f"{many} comparisons of other methods"
        return f"In {of} with {title}, {_open(*unsure)}."
    if unsure:
        parts.append(f"for {len(unsure)} {_open(*unsure)}")
    return f"Of {len(found)} comparison{_s(len(found))} of other methods with {title}, {_listed(parts)}."


def of_costs(panels: Sequence[Panel], title: str, reference: str) -> str:
    """Say what a run cost relative to the reference's: geometric means over the tasks where both were run."""
    known: dict[str, dict[str, float]] = {}
    names: dict[str, str] = {}
    for method in dict.fromkeys(r.method for p in panels for r in p.rows if r.method != reference):
        rows = [r for p in panels for r in p.rows if r.method == method]
        ratios = {key: _geometric(r.costs[key] for r in rows) for key in COSTS}
        if math.isfinite(ratios["rollouts"]):
            known[method], names[method] = ratios, rows[0].title
    if not known:
        return f"What a run cost cannot be compared: no other method has finished runs beside those of {title}."

    def cost(method: str) -> str:
        shown = [(value, COSTS[key]) for key, value in known[method].items() if math.isfinite(value)]
        return f"{names[method]} {_listed([f'{value:.2f} times the {words}' for value, words in shown])}"

    order = sorted(known, key=lambda m: known[m]["rollouts"])
    shown = list(dict.fromkeys(m for m in (PROPOSED, order[0], order[-1]) if m in known))
    over = ", as the mean over the tasks" if len(panels) > 1 else ""
    between = "" if len(known) == len(shown) else "; in rollouts the other methods lie between the last two"
    return f"Relative to {title}, a run took{over}: {_listed(map(cost, shown), '; ')}{between}."


def on_claims(claims: Sequence[Mapping[str, Any]]) -> str:
    """Say how many claims of the paper hold, are contradicted, or remain open."""
    found = {verdict: len(those) for verdict, those in by_verdict(claims).items()}
    total = sum(found.values())
    if not total:
        return "No claim of the paper has been judged yet."
    hold, against, unsure = (found.get(v, 0) for v in (REPRODUCED, CONTRADICTED, UNDERPOWERED))
    parts = [
        f"{hold} {'holds' if hold == 1 else 'hold'} here",
        f"{against} {'is' if against == 1 else 'are'} contradicted",
        f"{unsure} {'is' if unsure == 1 else 'are'} undecided",
    ]
    rest = total - hold - against - unsure
    parts += [f"{rest} cannot be tested at this scale"] if rest else []
    return f"Of {total} claim{_s(total)} of the paper, {_listed(parts)}."


def _verdicts(found: Sequence[tuple[Panel, Row]]) -> str:
    sides: dict[str, list[tuple[Panel, Row]]] = {}
    for case in found:
        sides.setdefault(case[1].over_reference.side, []).append(case)
    where = {side: _listed([p.title for p, _ in cases]) for side, cases in sides.items()}
    parts = [f"{side} it on {where[side]}" for side in ("above", "below") if side in sides]
    if "open" in sides:
        words = _open(*(r.over_reference for _, r in sides["open"]))
        every = "" if len(found) == 1 else " on any task"
        parts.append(f"{words} on {where['open']}" if parts else f"{words}{every}")
    return _listed(parts)


def _open(*unsure: Gain) -> str:
    """Say that nothing is significant, or that one seed is not enough to judge."""
    if any(g.seeds for g in unsure):
        return "no difference is significant"
    return "with one training seed no difference between methods can be judged"


def _tally(differences: Sequence[Gain]) -> str:
    """Say how many differences to the base are significant gains, significant losses, and neither."""
    count = len(differences)
    up, down = (sum(g.side == side for g in differences) for side in ("above", "below"))
    unsure = [g for g in differences if not g.significant]
    if up == count:
        return "every gain is significant" if count > 1 else "this gain is significant"
    parts = [f"{up} of these {count} {'is a significant gain' if up == 1 else 'are significant gains'}"] if up else []
    parts += (
        [f"{down} of these {count} {'is a significant loss' if down == 1 else 'are significant losses'}"]
        if down
        else []
    )
    if unsure:
        parts.append(f"for {len(unsure)} of them {_open(*unsure)}" if count > 1 else _open(*unsure))
    return _listed(parts)


def _geometric(values: Iterable[float]) -> float:
    known = [v for v in values if math.isfinite(v)]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan


def _listed(parts: Iterable[str], mark: str = "") -> str:
    """Join parts: by ``mark`` where they are long, else as a sentence does."""
    words = list(parts)
    if mark or len(words) == 1:
        return mark.join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
