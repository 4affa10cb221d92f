"""How good and how fast the graders are, on the cases in the folder given (adversarial_cases, answer_pairs and
model_outputs_math, JSON lines): ``python benchmarks/graders.py FOLDER [--write docs/grader_disagreements.md]``."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bapo.errors import UserError
from bapo.graders import mathematics, pool
from bapo.graders.extract import last_box

#: Pairs left out, because their label rests on more than what the two texts mean.
RULES = {
    "kind": "`kind` is neither `equiv` nor `extract+equiv`: tags, brackets or letters of one grader",
    "conflict": "`label_conflict_across_sources`",
    "extra": "`extra` names a language, an option of one grader, or a precision other than the usual 6 digits",
    "no gold": "the gold is null or empty: an error at load here",
    "prose": "the prediction or the gold is prose without a box: the label tests the extraction from prose",
}
#: Who is right, by id or, for the responses, by id of the response.
NOTES = {
    "gt/32": "ours: 9 is 9. The label tests that math-verify finds no formula across lines",
    "gt/264": "ours: the two differ by 2/e. The label is mistaken",
    "gt/338": "ours, as gt/32",
    "gt/606": "open: [0.5, 1] is a vector to MARIO_EVAL, and a closed interval here and in MATH",
    "gt/690": "the label; our grader needs about 0.9 s of CPU time for it and gives up after 1.7 s on a busy machine",
    "gt/695": "open: 0.6054 is the value (0.605426...) to four digits. Ours asks for six, or a gold that is a decimal",
    "gt/700": "ours: 7 and 7.1, 0.002 and 0.001 are different numbers. The label rests on a tolerance",
    "gt/701": "ours, as gt/700",
    "qwen_math100/72/7": "ours: 10{,}000 is 10000. The label compared texts",
}
_EXTRA = {"symmetric", "func", "question", "dataset", "model"}
_SEGMENTS = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_WORD = re.compile(r"(?<![\\{a-zA-Z])[a-zA-Z]{3,}")


def answer_of(text: str) -> str | None:
    """Return the answer in a gold or a prediction: its box, its only formula, or all of it if not prose."""
    boxed = last_box(text)
    if boxed is not None:
        after = re.search(r"[Ff]inal answer is(.{1,40})", text[text.rfind("boxed") :])
        digits = re.sub(r"\D", "", after[1]) if after else ""
        return boxed if digits in re.sub(r"\D", "", boxed) else None  # or it says something else behind the box
    formulas = [next(g for g in groups if g) for groups in _SEGMENTS.findall(text)]
    rest = _SEGMENTS.sub(" ", text)
    if not formulas and re.fullmatch(r"[a-zA-Z]+", text.strip()):
        return text
    prose = _WORD.search(re.sub(r"\\[a-zA-Z]+|(?<=[\d ])(?:percent|pct)\b|\b(?:and|or)\b", "", rest))
    if prose or "\n" in rest.strip():
        return formulas[0] if len(formulas) == 1 and len(rest) < 60 and not re.search(r"\d", rest) else None
    return text


def left_out(row: dict[str, Any]) -> str | None:
    """Return the key of RULES that excludes a pair, or None."""
    if row["kind"] not in ("equiv", "extract+equiv"):
        return "kind"
    if row["label_conflict_across_sources"]:
        return "conflict"
    extra = row.get("extra") or {}
    if set(extra) - _EXTRA - {"precision"} or extra.get("precision", 6) != 6:
        return "extra"
    if not (row["gold"] or "").strip():
        return "no gold"
    if answer_of(row["gold"]) is None or answer_of(row["prediction"]) is None:
        return "prose"
    return None


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def grade_pairs(rows: list[dict[str, Any]]) -> tuple[Counter[str], list[dict[str, Any]], int]:
    """Return (pairs left out by rule, disagreements, pairs graded)."""
    rules: Counter[str] = Counter()
    wrong, graded = [], 0
    for row in rows:
        rule = left_out(row)
        if rule:
            rules[rule] += 1
            continue
        graded += 1
        gold, answer = answer_of(row["gold"]), answer_of(row["prediction"])
        verdict = mathematics.judge(answer, (gold,))  # type: ignore[arg-type]
        if verdict.correct != row["expected"]:
            wrong.append({**row, "gold": gold, "prediction": answer, "reason": verdict.reason})
    return rules, wrong, graded


def grade_responses(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows on which the verdict is not the label."""
    wrong = []
    for row in rows:
        try:
            verdict = mathematics.grade(row["response"], [row["gold"]])
        except UserError:
            verdict = mathematics.Verdict(False, False, "no gold")
        if verdict.correct != row["expected"]:
            wrong.append({**row, "prediction": last_box(row["response"]), "reason": verdict.reason})
    return wrong


def speed(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Measure checks a second: of model outputs with a warm cache; of pairs that need algebra, the first time."""
    for row in rows:
        mathematics.grade(row["response"], [row["gold"]])
    start, count = time.process_time(), 0
    while time.process_time() - start < 1.0:
        for row in rows:
            mathematics.grade(row["response"], [row["gold"]])
        count += len(rows)
    warm = count / (time.process_time() - start)
    start = time.perf_counter()
    for k in range(2, 102):
        mathematics.judge(rf"\sqrt{{{k}}} + {k}", (rf"{k} + \sqrt{{{k}}} + 0",))
    cold = 100 / (time.perf_counter() - start)
    pool.shared().close()
    start = time.perf_counter()
    pool.shared().judge("x", "y+1")
    return {"warm cache": warm, "algebra, not cached": cold, "start of a checker, seconds": time.perf_counter() - start}


def report(
    pairs: list[dict[str, Any]],
    adversarial: list[dict[str, Any]],
    missed: list[dict[str, Any]],
    rules: Counter[str],
    disagreements: list[dict[str, Any]],
    graded: int,
    outputs: int,
) -> str:
    """Return the text of docs/grader_disagreements.md.

    pairs: all answer pairs, of which ``graded`` were graded and ``rules`` counts the others; disagreements: of pairs;
    adversarial, missed: disagreements of adversarial cases and of responses; outputs: the number of responses.
    """
    lines = [
        "# Where the grader of mathematics and other people's labels disagree",
        "",
        "Written by `python benchmarks/graders.py FOLDER --write docs/grader_disagreements.md`.",
        "",
        f"- Answer pairs: {graded - len(disagreements)} of {graded} agree "
        f"({100 * (1 - len(disagreements) / graded):.1f}%).",
        f"- Responses of Qwen2.5-Math: {outputs - len(missed)} of {outputs} agree "
        f"({100 * (1 - len(missed) / outputs):.2f}%).",
        f"- Adversarial cases: {len(adversarial)} disagreements.",
        "",
        f"Left out of the {len(pairs)} pairs, because the label rests on more than what the two texts mean:",
        "",
        *(f"- {count}: {RULES[rule]}." for rule, count in sorted(rules.items())),
        "",
        "| row | source | gold | answer | label | ours | who is right |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(adversarial + missed + disagreements, key=lambda r: str(r.get("id"))):
        texts = [f"`{' '.join(str(row[key]).split())}`".replace("|", "\\|") for key in ("gold", "prediction")]
        name = row.get("id", row.get("label"))
        ours = "right" if not row["expected"] else row["reason"]
        label = "right" if row["expected"] else "wrong"
        lines.append(
            f"| {name} | {row.get('source', '-')} | {texts[0]} | {texts[1]} | {label} | {ours} "
            f"| {NOTES.get(name, 'not looked at yet')} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verbose", action="store_true", help="print each disagreement")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the list of disagreements, with who is right")
    arguments = parser.parse_args()
    pool.shared().wall_seconds = 60.0  # a busy machine must not change the figures; the limit of CPU time stays
    adversarial, outputs, pairs = (
        read(arguments.folder / f"{name}.jsonl") for name in ("adversarial_cases", "model_outputs_math", "answer_pairs")
    )
    wrong = grade_responses(adversarial)
    false_positives = sum(not row["expected"] for row in wrong)
    print(
        f"adversarial: {len(adversarial)} cases, {false_positives} false positives, "
        f"{len(wrong) - false_positives} false negatives"
    )
    missed = grade_responses(outputs)
    print(f"model outputs: {100 * (1 - len(missed) / len(outputs)):.2f}% of {len(outputs)}")
    rules, disagreements, graded = grade_pairs(pairs)
    print(f"answer pairs: {100 * (1 - len(disagreements) / graded):.2f}% of {graded}; left out {dict(rules)}")
    if arguments.verbose:
        for row in wrong + missed + disagreements:
            print(
                row.get("id", row.get("label")),
                row["expected"],
                repr(row["gold"]),
                "|",
                repr(row["prediction"]),
                row["reason"],
            )
    if arguments.write:
        arguments.write.write_text(report(pairs, wrong, missed, rules, disagreements, graded, len(outputs)))
    for name, value in speed(outputs).items():
        print(f"{name}: {value:,.2f}")


if __name__ == "__main__":
    main()
