"""The names, descriptions and examples of the commands of ``bapo``. Their code is imported when they are called."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

#: the commands in the order in which `bapo` lists them
GROUPS = {
    "Start": {
        "run": "Make tables and figures with all that they need. A stopped target continues where it was.",
        "demo": "Show four rows of Table 1 with one seed, and a picture, in minutes.",
        "plan": "Estimate what a target of the workflow will cost, before anything runs.",
        "watch": "Show progress.",
        "report": "Write one HTML page of a scale's results that opens from disk.",
    },
    "Extend": {
        "init": "Write a project of your own: a task, a method and a study to begin with.",
        "methods": "List the methods.",
        "grade": "Grade the responses in a JSONL file; print one JSON verdict per line.",
    },
    "Share": {
        "export": "Pack a scale's results as an archive (RO-Crate), or its claims as a logbook.",
        "verify": "Check that an archive (RO-Crate) is whole and unchanged (exit status 0) or not (1).",
        "compare": "Compare two results number by number; exit status 0: all agree, 1: not all.",
        "evidence": "Publish a study: pack what tables and figures read from its runs into a file of at most 1 MB.",
        "unpack": "Unpack a published study into a folder that every other command reads.",
        "import": "Import another project's training log or evaluation as a run directory.",
    },
    "Check": {
        "audit": "Check the paper's printed numbers by arithmetic.",
        "claims": "Judge the paper's claims by finished runs.",
        "gpu-check": "Test training, resuming, evaluation and, with verl, vLLM on this machine with a tiny model.",
        "provenance": "Print what made a result, as JSON.",
        "env": "Print the suite's version and commit, its packages and this machine, for a bug report.",
    },
    "Single jobs": {
        "data": "Make (or fetch) the problems of a task.",
        "base": "Train the base model, or record the pretrained one.",
        "train": "Train one run, resuming from its last checkpoint.",
        "evaluate": "Evaluate a checkpoint on the task's benchmarks, 32 samples per problem.",
    },
    "For the workflow": {
        "sweep": "Run one trial of a sweep, or collect its trials.",
        "describe": "Describe the runs of a study for its tables and figures, as JSON.",
        "overview": "Draw BAPO minus GRPO of several studies in one picture.",
    },
}
TEXTS = {name: text for group in GROUPS.values() for name, text in group.items()}
#: the commands of ``python -m analysis``, which also parses their arguments
OF_ANALYSIS = ("watch", "report", *GROUPS["Share"], "audit", "claims", "overview")
#: name -> examples of calls
EXAMPLES = {
    "run": ("bapo run table1", "bapo run table1 scale=smoke methods=grpo,bapo train.steps=50 -n"),
    "demo": ("bapo demo", "bapo demo seeds=2"),
    "plan": ("bapo plan table1", "bapo plan single_gpu scale=single_gpu"),
    "watch": ("bapo watch results/laptop", "bapo watch /other/disk/results/pocket"),
    "report": ("bapo report results/laptop", "bapo report results/laptop --out page.html"),
    "init": ("bapo init my-study", "bapo init my-study --task rows"),
    "grade": (
        "bapo grade --task countdown RESPONSES.jsonl",
        "bapo grade --task mathematics --second math-verify RESPONSES.jsonl",
    ),
    "export": ("bapo export results/laptop --out my-results", "bapo export results/laptop --out my-logbook --trackio"),
    "verify": ("bapo verify my-results", "bapo verify /downloads/their-results"),
    "compare": ("bapo compare evidence/laptop/table1.zip results/laptop", "bapo compare my-results results/laptop"),
    "evidence": (
        "bapo evidence --study results/laptop/studies/table1.json --out evidence",
        "bapo evidence --study results/pocket/studies/pocket_hard.json --out evidence",
    ),
    "unpack": (
        "bapo unpack evidence/laptop/table1.zip --out published",
        "bapo unpack evidence/laptop/prompts_*.zip --out published",
    ),
    "import": (
        "bapo import verl.log --task gsm8k --model qwen2.5-0.5b --method grpo",
        "bapo import trainer_state.json --task gsm8k --model qwen2.5-0.5b --method grpo --seed 2",
    ),
    "audit": ("bapo audit --out results", "bapo audit --out /tmp/audit"),
    "claims": (
        "bapo claims --study results/laptop/studies/*.json --out results/laptop",
        "bapo claims --study published/laptop/studies/*.json --out published/laptop",
    ),
    "gpu-check": ("bapo gpu-check", "bapo gpu-check --engine torch"),
    "provenance": (
        "bapo provenance results/laptop/tables/table1.md",
        "bapo provenance results/laptop/countdown/qwen2-112k/grpo/seed1/steps.parquet",
    ),
    "data": ("bapo data task=countdown", "bapo data task=geometry scale=smoke"),
    "base": ("bapo base task=countdown", "bapo base task=countdown base.source=train"),
    "train": ("bapo train method=bapo task=countdown seed=1", "bapo train method=bapo method.v=2 method.name=bapo-v2"),
    "evaluate": ("bapo evaluate method=bapo task=countdown seed=1", "bapo evaluate --base task=countdown"),
}


def examples(name: str) -> str:
    """Return the examples at the end of a command's help."""
    return "\n  ".join(["Examples:", *EXAMPLES[name]]) if name in EXAMPLES else ""


def path(text: str) -> Path:
    """Return the path that an argument names.

    Raises ArgumentTypeError for an empty text, which would be this folder, and for a ~ that the shell did not replace.
    """
    if not text:
        raise ArgumentTypeError("is empty; name a file or folder")
    if text.startswith("~"):
        raise ArgumentTypeError(f"{text}: the shell did not expand ~; write $HOME, or ./ before the folder's name")
    return Path(text)
