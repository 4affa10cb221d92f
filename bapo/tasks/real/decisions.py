"""The decisions of ``data.cleaning`` carried out on a training set, all that was found on the way, and its report.

The report is ``cleaning.json`` and ``cleaning.md`` beside the problems, and a few lines for the terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from bapo.errors import UserError
from bapo.store.files import write_json, write_text
from bapo.tasks.real import cleaning
from bapo.tasks.real.cleaning import Item

#: Every decision and its choices; the first is the default, which is what the paper did wherever that can be done.
CHOICES = {
    "empty_answers": ("drop",),
    "not_available": ("keep", "drop"),
    "long_prompts": ("drop", "keep"),
    "duplicates": ("keep", "first"),
    "figures": ("keep", "drop", "drop-undrawn"),
    "overlap": ("keep", "drop"),
    "shared_diagrams": ("keep", "drop"),
}


def _unusable(items: Sequence[Item], check: Callable[[Sequence[str], str], Any]) -> dict[str, str]:
    """Return by id why no response could ever be right: an empty gold, or one that the grader refuses to read."""
    reasons = {}
    for item in items:
        try:
            check(item.golds, item.gold or f"problem {item.id}")
        except UserError as error:
            reasons[item.id] = str(error)
    return reasons


def clean(
    splits: Mapping[str, Sequence[Item]],
    decisions: Mapping[str, str],
    check: Callable[[Sequence[str], str], Any],
    texts_alone: bool = True,
) -> tuple[list[Item], dict[str, Any]]:
    """Return (training problems that stay, findings). splits: ``train`` and the benchmarks, as they were read.

    check: the grader's check of golds, which raises UserError for an empty or unreadable one. texts_alone: a text is a
    whole problem; False: without its diagram it is not, and short texts are not compared. Raises UserError for such a
    gold in a benchmark.
    """
    train = list(splits.get("train", ()))
    tests = {name: list(items) for name, items in splits.items() if name != "train"}
    for name, items in tests.items():
        for reason in _unusable(items, check).values():
            raise UserError(f"data.hub.{name}: {reason}")
    unusable = _unusable(train, check)
    findings: dict[str, Any] = {
        "rows": {name: len(items) for name, items in splits.items()},
        "empty_answers": [item.id for item in train if cleaning.is_empty(item.golds)],
        "unreadable_answers": [i.id for i in train if i.id in unusable and not cleaning.is_empty(i.golds)],
        "not_available": [item.id for item in train if cleaning.is_not_available(item.golds)],
        "duplicates": {name: _duplicates(cleaning.duplicates(items)) for name, items in splits.items()},
    }
    reasons = {"empty_answers": set(unusable)}
    if "not_available" in decisions:
        reasons["not_available"] = set(findings["not_available"])
    if "long_prompts" in decisions:
        findings["long_prompts"] = [item.id for item in train if cleaning.pieces(item.text) > cleaning.LONGEST]
        reasons["long_prompts"] = set(findings["long_prompts"])
    usable = [item for item in train if item.id not in unusable]  # of a problem's rows one with a gold is kept
    reasons["duplicates"] = _superfluous(cleaning.duplicates(usable), decisions["duplicates"])
    if "figures" in decisions:
        findings["figures"], reasons["figures"] = _figures(train, decisions["figures"])
    findings["overlap"], near = _overlap(splits, texts_alone)
    if "overlap" in decisions:
        reasons["overlap"] = near
    if "shared_diagrams" in decisions:
        findings["shared_diagrams"], reasons["shared_diagrams"] = _shared_diagrams(splits)
    gone: dict[str, str] = {}
    for reason, ids in reasons.items():
        for name in ids if decisions[reason] != "keep" else ():
            gone.setdefault(name, reason)
    findings["dropped"] = dict(Counter(gone.values()))
    return [item for item in train if item.id not in gone], findings


def _duplicates(groups: Sequence[Sequence[Item]]) -> dict[str, Any]:
    differing = [g for g in groups if len({item.golds for item in g}) > 1]
    return {
        "groups": len(groups),
        "rows": sum(map(len, groups)),
        "differing_text": len(differing),  # of the answers
        "conflicting": sum(map(cleaning.conflicting, groups)),  # also after layout is taken away
        "listed": [{"ids": [i.id for i in g], "golds": [list(i.golds) for i in g]} for g in differing],
    }


def _superfluous(groups: Sequence[Sequence[Item]], decision: str) -> set[str]:
    return set() if decision == "keep" else {item.id for group in groups for item in group[1:]}


def _figures(train: Sequence[Item], decision: str) -> tuple[dict[str, Any], set[str]]:
    mentions = {item.id: cleaning.mentions(item.text) for item in train}
    mentioning = {name for name, kinds in mentions.items() if kinds}
    undrawn = {item.id for item in train if item.id in mentioning and not cleaning.is_drawn(item.text)}
    counts = Counter(kind for kinds in mentions.values() for kind in kinds)
    findings = {
        "problems": len(mentioning),
        "undrawn": len(undrawn),
        "by_mention": dict(counts),
        "ids_undrawn": sorted(undrawn),
    }
    return findings, {"keep": set(), "drop": mentioning, "drop-undrawn": undrawn}[decision]


def _overlap(splits: Mapping[str, Sequence[Item]], short: bool) -> tuple[list[dict[str, Any]], set[str]]:
    """Return a finding for each pair of splits, and the training problems that nearly are one of a benchmark's."""
    grams = {name: cleaning.grams([item.text for item in items], short=short) for name, items in splits.items()}
    names = sorted(splits, key=lambda name: name != "train")
    findings, near = [], set()
    for first, second in combinations(names, 2):
        best: dict[int, tuple[float, int]] = {}
        for (second_index, first_index), share in cleaning.shares(grams[first], grams[second]).items():
            if share > best.get(second_index, (0.0, -1))[0]:
                best[second_index] = (share, first_index)
            if first == "train" and share >= cleaning.NEAR:
                near.add(splits[first][first_index].id)
        pairs = [
            {"id": splits[second][t].id, "of": splits[first][o].id, "share": round(share, 3)}
            for t, (share, o) in sorted(best.items())
            if share >= cleaning.NEAR
        ]
        findings.append(
            {
                "first": first,
                "second": second,
                "problems": len(splits[second]),
                "compared": int((grams[second].counts > 0).sum()),
                "any": len(best),
                "near": len(pairs),
                "all": sum(share >= 1 for share, _ in best.values()),
                "pairs": pairs,
            }
        )
    return findings, near


def _shared_diagrams(splits: Mapping[str, Sequence[Item]]) -> tuple[list[dict[str, Any]], set[str]]:
    findings, shared = [], set()
    for first, second in combinations(sorted(splits, key=lambda name: name != "train"), 2):
        second_diagrams = {item.diagram for item in splits[second] if item.diagram}
        first_diagrams = {item.diagram for item in splits[first] if item.diagram}
        first_items = [item.id for item in splits[first] if item.diagram in second_diagrams]
        second_items = [item for item in splits[second] if item.diagram in first_diagrams]
        questions = {_question(item) for item in splits[first]}
        findings.append(
            {
                "first": first,
                "second": second,
                "diagrams": len(first_diagrams & second_diagrams),
                "first_problems": len(first_items),
                "second_problems": len(second_items),
                "ids": [item.id for item in second_items],
                "same_question": [i.id for i in second_items if _question(i) in questions],
            }
        )
        if first == "train":
            shared |= set(first_items)
    return findings, shared


def _question(item: Item) -> tuple[str, str]:
    return item.diagram, cleaning.same_problem(item.text)


JSON, MARKDOWN = "cleaning.json", "cleaning.md"


def write_report(
    folder: Path,
    task: str,
    files: Mapping[str, Mapping[str, str]],
    decisions: Mapping[str, str],
    findings: Mapping[str, Any],
    problems: Mapping[str, int],
    say: Callable[[str], None],
) -> None:
    """Write ``cleaning.json`` (everything, with ids) and ``cleaning.md`` (to read); say a line for each finding."""
    content = {
        "task": task,
        "files": files,
        "decisions": dict(decisions),
        "problems": dict(problems),
        **findings,
        "ngrams": {"n": cleaning.N, "near": cleaning.NEAR, "normalisation": cleaning.NORMALISATION},
    }
    write_json(folder / JSON, content)
    lines = summary(decisions, findings)
    for line in lines:
        say(line)
    columns = ("first", "second", "problems", "compared", "any", "near", "all")
    text = _MARKDOWN.format(
        task=task,
        n=cleaning.N,
        normalisation=cleaning.NORMALISATION,
        near=cleaning.NEAR,
        json=JSON,
        files="\n".join(
            f"- {place}: {f'{len(names)} files' if len(names) > 8 else ', '.join(names)}"
            for place, names in files.items()
        ),
        rows="\n".join(f"| {name} | {n} | {problems.get(name, '')} |" for name, n in findings["rows"].items()),
        lines="\n".join(f"- {line}" for line in lines),
        overlap="\n".join(f"| {' | '.join(str(o[c]) for c in columns)} |" for o in findings["overlap"]),
    )
    write_text(folder / MARKDOWN, text)


def write_plain_report(
    folder: Path, task: str, files: Mapping[str, Mapping[str, str]], splits: Mapping[str, Any], lines: Sequence[str]
) -> None:
    """Write the report of a set whose splits are kept disjoint as they are read: counts alone."""
    write_json(folder / JSON, {"task": task, "files": files, "splits": splits})
    write_text(
        folder / MARKDOWN, f"# What is in the real sets: {task}\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"
    )


_MARKDOWN = """# What is in the real sets: {task}

{files}

| split | rows read | problems written |
|---|---|---|
{rows}

{lines}

## Overlap of texts

{n}-grams. {normalisation}. A problem of the second set is *near* one of the first if that one holds {near:.0%} or more
of its {n}-grams, and wholly in it if it holds *all*; for *any* one is enough, which stock phrases suffice for.

| first | second | problems of the second | compared | any | near | all |
|---|---|---|---|---|---|---|
{overlap}

Ids, answers and pairs: {json}.
"""


def summary(decisions: Mapping[str, str], findings: Mapping[str, Any]) -> list[str]:
    """Return the findings as sentences, with what was decided."""
    lines = []
    if "train" in findings["rows"]:
        doubled = findings["duplicates"]["train"]
        lines = [
            f"empty answers: {len(findings['empty_answers'])} in training, and {len(findings['unreadable_answers'])} "
            "that the grader cannot read (never trained on: nothing could be right)",
            f"duplicates: {doubled['groups']} problems of training stand in {doubled['rows']} rows; the answers "
            f"differ in {doubled['differing_text']} of them, in {doubled['conflicting']} by more than layout "
            f"({decisions['duplicates']})",
        ]
    if "not_available" in decisions:
        lines.insert(1, f'answers "N/A": {len(findings["not_available"])} in training ({decisions["not_available"]})')
    if "long_prompts" in decisions:
        lines.append(
            f"long prompts: {len(findings['long_prompts'])} in training of more than {cleaning.LONGEST} tokens "
            f"({decisions['long_prompts']})"
        )
    if "figures" in findings:
        f = findings["figures"]
        lines.append(
            f"figures: {f['problems']} problems of training mention one, {f['undrawn']} of them without a drawing in "
            f"the text ({decisions['figures']})"
        )
    for s in findings.get("shared_diagrams", ()):
        lines.append(
            f"diagrams: {s['diagrams']} of {s['first']} are also in {s['second']}, in {s['first_problems']} and "
            f"{s['second_problems']} problems, {len(s['same_question'])} with the same question"
            + (f" ({decisions['shared_diagrams']})" if s["first"] == "train" else "")
        )
    for o in findings["overlap"]:
        if o["first"] == "train":
            lines.append(
                f"overlap with {o['second']}: {o['near']} of {o['problems']} problems are near one of training, "
                f"{o['all']} wholly in one" + (f" ({decisions['overlap']})" if "overlap" in decisions else "")
            )
    if findings.get("dropped"):
        lines.append("left out of training: " + ", ".join(f"{n} ({why})" for why, n in findings["dropped"].items()))
    return lines
