"""Write the table of docs/paper_scale.md: ``python benchmarks/paper_scale.py``, with ``single_gpu`` that of its page.

With ``overhead`` it is the table of what BAPO's own work adds to a step of verl's GRPO, with ``cards`` that of what
fits cards of 24, 40 and 80 GB.

A row for every run of the scale's listed studies, whatever its seed. Memory a GPU is that by which verl's micro-batches
are cut, and host memory that of all ranks together (both ``bapo/engines/verl/memory.py``).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

from bapo import methods
from bapo.engines.verl import memory
from bapo.errors import UserError
from bapo.experiments import budgets, studies
from bapo.experiments import compose as configuration
from bapo.experiments.order import Cell
from bapo.experiments.places import options
from bapo.experiments.schema import Config
from bapo.plan import costs

#: the experiments that the paper reports, the other studies are ours; and those of the scale single_gpu
LISTED = {"paper": ("table1", "figure5", "figure6", "figure10", "figure16"), "single_gpu": ("table1", "single_gpu")}
#: GB of the cards that there are
CARDS = (16, 24, 40, 48, 80)
#: those that every run of both scales is planned for
TRIED = (24, 40, 80)
HEAD = ("model", "method", "for", "GB, training", "GB, generating", "GB, host", "s a step", "steps", "hours")


#: bytes a second between a GPU and pinned host memory, of PCIe's 25e9
COPIED = 10e9
#: of so many groups one has its log-probabilities compared (bapo/engines/verl/step_sampler.py)
COMPARED = 16


def added(config: Config, gpus: int) -> tuple[float, float]:
    """Return the seconds a step that BAPO takes over GRPO for the same rollouts and rows: copies, comparison.

    A refresh copies alpha once. In each of the v - 1 steps between, alpha takes the weights' place for the push, with
    three copies of a rank's shards: out, in, back. A window has no push there. The comparison falls on a refresh, but
    for one a job; so does a re-evaluation, when vLLM has the current weights (m = v). GRPO of verl compares nothing.
    """
    v, window = config.method.v, config.verl.rollout_window
    copies = (1 + (0 if window else 3 * (v - 1))) / v * 4 * costs.parameters(config) / gpus / COPIED
    tokens = config.train.batch_size * config.train.group_size / COMPARED
    tokens *= (config.sampling.max_prompt_tokens + config.sampling.max_response_tokens) / 2
    comparison = 2 * costs.parameters(config) * tokens / (gpus * costs.PEAK * costs.TRAINING)
    return copies, comparison / v


def overhead() -> str:
    """Return the Markdown of what BAPO adds, for models of several sizes; last with ``verl.rollout_window``."""
    head = ["scale", "parameters, millions", "GPUs", "GRPO's step, s", "copies, ms", "comparison, ms"]
    head += ["sum, ms", "sum, per mille", "with a window, ms", "per mille"]
    lines = [f"| {' | '.join(head)} |", "| :-- |" + " --: |" * (len(head) - 1)]
    for scale, task, model in OVERHEAD:
        grpo, bapo, window = (
            configuration.run_config(scale, task, model, method, 1, words)
            for method, words in (("grpo", ()), ("bapo", ()), ("bapo", ("verl.rollout_window=true",)))
        )
        gpus = grpo.verl.gpus_per_node or 8
        step, parts, least = sum(costs.step_seconds(grpo, gpus)), added(bapo, gpus), sum(added(window, gpus))
        values = (*parts, sum(parts), sum(parts) / step, least, least / step)
        numbers = [f"{1000 * value:,.0f}" for value in values]
        millions = f"{costs.parameters(grpo) / 1e6:,.0f}"
        lines.append("| " + " | ".join([scale, millions, str(gpus), f"{step:,.0f}", *numbers]) + " |")
    return "\n".join(lines) + "\n"


#: single GPUs first
OVERHEAD = (
    ("single_gpu", "mathematics", "qwen2.5-0.5b-instruct"),
    ("single_gpu", "countdown", "qwen2.5-1.5b"),
    ("paper", "countdown", "qwen2.5-math-1.5b"),
    ("paper", "countdown", "qwen2.5-math-7b"),
    ("paper", "mathematics", "qwen3-8b"),
)


def cells(scale: str) -> list[Cell]:
    """Return every cell of the studies of a scale, with seed 0."""
    of_scale = (name for name in options("study") if scale in studies.study_file(name).scales)
    runs = (cell for name in of_scale for cell in studies.load_study(name, scale).cells)
    return [*dict.fromkeys(replace(cell, seed=0) for cell in runs)]


def cards() -> str:
    """Return the Markdown of what fits TRIED: a row a card, of each scale, task and model with and without a critic.

    A refused run has the memory of its smallest micro-batch, a response of full length.
    """
    head = ["scale", "task", "model", "critic", "GPUs", "GB, card", "tokens", *HEAD[3:5], "left, %"]
    lines = [f"| {' | '.join(head)} |", "| :-- | :-- | :-- | :-- |" + " --: |" * (len(head) - 4)]
    rows: dict[tuple[str, ...], Config] = {}
    for scale in ("single_gpu", "paper"):
        for cell in cells(scale):
            config = configuration.run_config(scale, cell.task, cell.model, cell.method, cell.seed)
            critic = "yes" if methods.of_run(config).uses_critic else ""
            rows.setdefault((scale, cell.task, config.model.title, critic), config)
    for names, config in rows.items():
        gpus = config.verl.gpus_per_node or 8
        for card in TRIED:
            training, generating, _ = memory.gigabytes(config, gpus, card)
            try:
                tokens = f"{memory.micro_batch_tokens(config, gpus, memory.asked_tokens(config, gpus), card):,}"
            except UserError:
                tokens = "refused"
            left = 100 * (1 - max(training, generating) / card)
            numbers = [f"{training:.0f}", f"{generating:.0f}", f"{math.floor(left + 1e-9)}"]
            lines.append("| " + " | ".join([*names, str(gpus), str(card), tokens, *numbers]) + " |")
    return "\n".join(lines) + "\n"


def smallest_card(config: Config) -> int:
    """Return the GB of the smallest of CARDS that a run fits. Raises UserError where it fits none."""
    row = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    for card in CARDS:
        try:
            memory.micro_batch_tokens(config, config.verl.gpus_per_node or 8, row, card)
        except UserError:
            if card == CARDS[-1]:
                raise
        else:
            break
    return card


def table(scale: str = "paper") -> str:
    """Return the Markdown. The paper's runs stand with 80 GB and its hours, others with the smallest card that fits."""
    papers = scale == "paper"
    titles: dict[Cell, dict[str, None]] = {}
    for study in (studies.load_study(name, scale) for name in LISTED[scale]):
        for cell in study.cells:
            titles.setdefault(replace(cell, seed=0), {})[study.file.title] = None
    head = [*HEAD, "paper" if papers else "GB, card"]
    lines = [f"| {' | '.join(head)} |", "| :-- | :-- | :-- |" + " --: |" * (len(head) - 3)]
    for cell, users in titles.items():
        config = configuration.run_config(scale, cell.task, cell.model, cell.method, cell.seed)
        card, gpus = 80 if papers else smallest_card(config), config.verl.gpus_per_node or 8
        steps, seconds = budgets.steps(config), sum(costs.step_seconds(config, gpus))
        hours = costs.papers_hours(cell.model, cell.method)
        last = str(card) if not papers else "" if hours is None else f"{hours:.1f}"
        numbers = [f"{value:.0f}" for value in (*memory.gigabytes(config, gpus, card), seconds, steps)]
        cells = [config.model.title, cell.method, ", ".join(users), *numbers, f"{seconds * steps / 3600:.1f}", last]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


OTHERS = {"overhead": overhead, "cards": cards}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scale", nargs="?", choices=[*LISTED, *OTHERS], default="paper")
    asked = parser.parse_args().scale
    print(OTHERS[asked]() if asked in OTHERS else table(asked), end="")
