"""What Table 1 shows, in sentences: BAPO's claims, what the baselines learn, what is replayed, how to read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis import reading, results, text
from analysis.results import AVERAGE, Comparison
from analysis.study import Block, Cell, Study
from bapo.store.files import GROUPS

if TYPE_CHECKING:
    from analysis.tables.table1 import Section

#: (a, b): the comparisons that the paper's claims rest on, one sentence each below the table
CLAIMS = (("bapo", "grpo"), ("bapo", "dapo"))
#: methods whose gain over the base is stated
LEARNERS = ("grpo", "dapo")


def sentences(section: Section) -> list[str]:
    """Return everything that is said below a part of the table about one block."""
    return claim_sentences(section) + learning_sentences(section) + replay_sentences(section)


def _interval(c: Comparison) -> str:
    e = c.difference.tested
    return f"{text.signed(100 * e.low)} to {text.signed(100 * e.high)}, {text.p_value(e.p)}"


def _verdict(c: Comparison, a: str, b: str) -> str:
    if c.differ and not c.real:
        return "these trained models differ; with one training seed the methods cannot be told apart"
    if not c.real:
        return "no significant difference (the rule is in the notes)"
    return f"{a} is significantly {'above' if c.difference.mean > 0 else 'below'} {b}"


def claim_sentences(section: Section) -> list[str]:
    """BAPO against GRPO and against DAPO: difference, interval, p, rollouts; and what the paper reports."""
    lines = []
    for a, b in CLAIMS:
        c = section.comparison(AVERAGE, a, b)
        if not c:
            continue
        name_a, name_b = (x.title.lstrip("+").replace(" (Ours)", "") for x in (c.a, c.b))
        each = []
        for column, title in section.block.benchmarks:
            d = section.comparison(column, a, b)
            assert d is not None
            each.append(f"{title} {text.signed(100 * d.difference.mean)} ({_interval(d)})")
        line = (
            f"{name_a} minus {name_b}, Avg: {text.signed(100 * c.difference.mean)} points "
            f"(95% interval {_interval(c)}, Holm-adjusted {text.p_value(c.adjusted)}): {_verdict(c, name_a, name_b)}."
        )
        line += f" {'; '.join(each)}."
        rollouts = [x.costs["rollouts"] for x in (c.a, c.b)]
        if all(np.isfinite(rollouts)) and rollouts[1] > 0:
            amounts = f"{text.thousands(rollouts[0])} against {text.thousands(rollouts[1])}"
            line += f" Rollouts: {rollouts[0] / rollouts[1]:.2f} times those of {name_b} ({amounts})."
        first, second = (section.paper.value(m, AVERAGE) if section.paper else None for m in (a, b))
        if section.paper and first is not None and second is not None:
            line += f" The paper reports {text.signed(first - second, 2)} points with {section.paper.title}."
        lines.append(line)
    return lines


def learning_sentences(section: Section) -> list[str]:
    """Return how far GRPO and DAPO end above the base on average, for the worst and the best seed."""
    rows = {r.method: r for r in section.rows}
    if results.BASE not in rows:
        return []
    start = rows[results.BASE].mean(AVERAGE).mean
    lines = []
    for row in (rows[m] for m in LEARNERS if m in rows):
        gains = sorted(100 * (v - start) for v in row.mean(AVERAGE).seed_means)
        amount = f"{text.signed(gains[0])} to {text.signed(gains[-1])}" if len(gains) > 1 else text.signed(gains[0])
        lines.append(f"{row.title.lstrip('+')} minus base, Avg, over its seeds: {amount} points.")
    return lines


@dataclass(frozen=True)
class Replay:
    """Means over seeds. steps: in which some response was brought back; of: all steps; share: of the responses trained
    on, those that were stored before the step or are an expert's.
    """

    steps: float
    of: float
    share: float


def replays(block: Block, study: Study) -> dict[str, Replay]:
    """Return it for every method that is off policy, none replayed included, and for any other that replays.

    A run without recorded groups (an imported one) says nothing.
    """
    found = {}
    for method, cells in block.methods.items():
        seeds = [seed for cell in cells if (seed := _of_seed(cell, study))]
        if seeds and (cells[0].kind == "off" or any(seed.share for seed in seeds)):
            found[method] = Replay(*np.mean([(s.steps, s.of, s.share) for s in seeds], axis=0).tolist())
    return found


def _of_seed(cell: Cell, study: Study) -> Replay | None:
    groups = reading.table(cell, GROUPS, study)
    if groups.empty or "replayed" not in groups:
        return None
    trained = groups[groups["used"]]
    steps = trained.loc[trained["replayed"] > 0, "step"].nunique()
    share = trained["replayed"].sum() / max(1, trained["rewards"].map(len).sum())
    return Replay(steps, reading.summary(cell.run, study)["steps"], float(share))


def replay_sentences(section: Section) -> list[str]:
    """Say it in a sentence, or in none where there is no such method."""
    parts = [
        f"{row.title.lstrip('+')} {100 * r.share:.1f}% ({r.steps:.0f} of {r.of:.0f} steps)"
        for row in section.rows
        if (r := section.replays.get(row.method))
    ]
    if not parts:
        return []
    return [
        "Replayed responses, stored before the step or an expert's, as a share of all that were trained on, and the "
        f"steps that had any: {', '.join(parts)}. The rest was sampled in the step itself."
    ]


def tuned_sentence(sections: list[Section]) -> str:
    """Return which rows have hyper-parameters that were chosen on held-out problems, and which."""
    tuned = []
    for section in sections:
        block = section.block
        rows = [(block.plain_title(m), cells[0].tuned) for m, cells in block.methods.items() if cells[0].tuned]
        if rows:
            tuned.append(f"{block.title}: " + ", ".join(f"{title} ({', '.join(words)})" for title, words in rows))
    if not tuned:
        return "Hyper-parameters: the setting's for every row; no method is tuned at this scale."
    return (
        "Hyper-parameters: chosen for every row by one protocol on held-out problems, with other seeds "
        f"(docs/tuning.md, tables/tuning.md). {'; '.join(tuned)}. All other rows keep the setting's values."
    )


def notes(sections: list[Section], study: Study) -> list[str]:
    """Return the lines below the table: what the scale can show, the cells, the marks and the paper's part."""
    rows = [r for s in sections for r in s.rows]
    seeds = [len(r.seeds) for r in rows if not r.is_base]
    samples = [o.samples for r in rows for o in r.outcomes.values()]
    problems = dict.fromkeys(
        f"{len(s.rows[0].outcomes[name].problems)} problems of {title}"
        for s in sections
        for name, title in s.block.benchmarks
    )
    lines = [study.note] if study.note else []
    single, several = min(seeds) < 2, max(seeds) > 1
    lines.append(
        f"Accuracy in percent, mean over {text.counted(seeds, 'training seed')}, "
        f"{text.span(samples)} samples a problem, {', '.join(problems)}. "
        "±: half-width of the 95% t interval for new problems (problems are the clusters), the trained models given; "
        "it does not cover the variance between training seeds. "
        + ("With one seed nothing here does. " if single else "")
        + ("(sd): standard deviation between seeds. " if several else "")
        + "Avg: mean of a domain's benchmarks, each with the same weight; SE: its standard error, sqrt(sum SE_b^2)/B. "
        "Rollouts: responses generated in training, re-evaluations included, mean over seeds."
    )
    over = "over problems and training seeds" if several else "over problems"
    over += ", over problems alone where there is one seed" if single and several else ""
    alone = (
        " A row with one training seed is one trained model and not its method: no difference with it is marked, and "
        "each speaks of these models only."
    )
    lines.append(
        "Bold: the best of a column, only where it is significantly above every other row; underlined: then the "
        "second, only where it is significantly above all below it. Significant: paired t test on the same problems, "
        f"error {over}, p below {results.LEVEL:.2g} after Holm's correction for all pairs of rows in that column "
        "(within a model). "
        "No mark: no such difference was found." + (alone if single else "")
    )
    lines.append(text.what_varies(seeds))
    lines.append(tuned_sentence(sections))
    titles = list(dict.fromkeys(s.paper.title for s in sections if s.paper))
    if titles:
        lines.append(
            f"In italics: the numbers that the paper prints in Table 1 for {', '.join(titles)}, in the column of the "
            f"benchmark whose part ours plays; {text.MISSING}: it prints none."
        )
    return lines
