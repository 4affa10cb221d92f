"""The cleaning report: ``cleaning.json`` and ``cleaning.md`` beside the problems, and a few lines for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bapo.store.files import write_json, write_text
from bapo.tasks.real import cleaning

JSON, MARKDOWN = "cleaning.json", "cleaning.md"


def write(
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


def write_plain(
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
