"""``bapo``: commands for people, and the workflow's jobs, a command each."""

from __future__ import annotations

import json
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from analysis.commands import EXAMPLES as EXAMPLES_OF_ANALYSIS
from analysis.commands import OF_ANALYSIS
from bapo import __version__
from bapo.errors import exit_status

OVERRIDES = """\
Configuration, for example
  scale=laptop|smoke|paper   task=countdown   model=...   method=bapo   seed=1
  method.v=2   train.steps=50   tracking=wandb   paths.results=/other/disk/results
`--cfg job` prints the resolved configuration (with engine=verl: verl's own) and does nothing else."""
SETTINGS = """\
Settings of the workflow, for example
  scale=smoke|pocket|paper   methods=grpo,bapo   seeds=1,2,3   results=/other/disk/results   tracking=wandb
Every other key is one of the configuration, for example train.steps=50 or method.v=2."""

#: the commands as `bapo` alone lists them
GROUPS = {
    "Start": ("run", "demo", "plan", "watch", "report"),
    "Extend": ("init", "methods", "grade"),
    "Share": ("export", "verify", "compare", "evidence", "unpack", "import"),
    "Check": ("audit", "claims", "gpu-check", "provenance", "env"),
    "Single jobs": ("data", "base", "train", "evaluate"),
    "For the workflow": ("sweep", "describe", "overview"),
}
#: command -> how it is called
EXAMPLES = EXAMPLES_OF_ANALYSIS | {
    "run": ("bapo run table1", "bapo run table1 scale=smoke methods=grpo,bapo train.steps=50 -n"),
    "demo": ("bapo demo", "bapo demo seeds=2"),
    "plan": ("bapo plan table1", "bapo plan single_gpu scale=single_gpu"),
    "init": ("bapo init my-study", "bapo init my-study --task rows"),
    "grade": (
        "bapo grade --task countdown RESPONSES.jsonl",
        "bapo grade --task mathematics --second math-verify RESPONSES.jsonl",
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


def _examples(name: str) -> str:
    return "\n  ".join(["Examples:", *EXAMPLES[name]]) if name in EXAMPLES else ""


def _listed(texts: Mapping[str, str]) -> str:
    """Return the commands by their groups. texts: command -> what it does."""
    groups = {name: [f"  {command:<12}{texts[command]}" for command in commands] for name, commands in GROUPS.items()}
    listing = "\n\n".join("\n".join([f"{name}:", *lines]) for name, lines in groups.items())
    return f"{listing}\n\n`bapo COMMAND --help` shows how a command is called."


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="bapo",
        usage="bapo COMMAND ...",
        description='Reproduction suite for "Buffer Matters" (BAPO).',
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(prog="bapo", dest="command", metavar="COMMAND", help=SUPPRESS)
    texts = dict(OF_ANALYSIS)

    def command(name: str, run: Callable[[Namespace], int] | str, text: str) -> ArgumentParser:
        """run: a function, or MODULE:FUNCTION, which is called with the command's words."""
        texts[name] = text
        sub = commands.add_parser(name, description=text, formatter_class=RawDescriptionHelpFormatter)
        sub.epilog = _examples(name)
        sub.set_defaults(run=partial(_call, run) if isinstance(run, str) else run)
        return sub

    def job(name: str, work: str, needed: str, text: str) -> ArgumentParser:
        """work: MODULE:FUNCTION, called with the configuration; needed: the function of bapo/plan/resources.py that
        says what it takes."""
        sub = command(name, _job, text)
        sub.epilog = f"{OVERRIDES}\n\n{_examples(name)}"
        sub.set_defaults(work=work, needed=needed)
        sub.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="any key of the configuration")
        sub.add_argument("--cfg", choices=["job"], help="print the resolved configuration and stop")
        return sub

    job("data", "bapo.tasks.job:make_data", "problems", "Make (or fetch) the problems of a task.")
    text = "Train the base model, or record the pretrained one."
    job("base", "bapo.engines.torch.base_model:train_base", "base_model", text)
    job("train", "bapo.engines:train", "training", "Train one run, resuming from its last checkpoint.")
    text = "Evaluate a checkpoint on the task's benchmarks, 32 samples per problem."
    sub = job("evaluate", "bapo.evaluation.curve:evaluate_asked", "evaluation", text)
    what = sub.add_mutually_exclusive_group()
    what.add_argument("--base", action="store_true", help="evaluate the base model instead of a trained run")
    text = "evaluate the base model and every kept checkpoint of the run, evaluation.curve_samples per problem"
    what.add_argument("--curve", dest="along", action="store_true", help=text)
    what.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="a checkpoint instead of the run's last")
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: in the run's folder)")
    wanted = "a setting of the workflow, or any key of the configuration"

    def workflow(name: str, run: str, text: str, words: str = "KEY=VALUE") -> ArgumentParser:
        sub = command(name, run, text)
        sub.epilog = f"{SETTINGS}\n\n{_examples(name)}"
        sub.add_argument("words", nargs="*", metavar=words, help=wanted)
        return sub

    text = "Make tables and figures with all that they need. A target that stopped goes on where it was."
    sub = workflow("run", "bapo.run:main", text, "TARGET or KEY=VALUE")
    sub.usage = "bapo run [TARGET ...] [KEY=VALUE ...] [options] [-- OPTIONS OF SNAKEMAKE]"
    sub.add_argument("--cores", metavar="N", help="cores to use (default: all)")
    sub.add_argument("-j", "--jobs", metavar="N", help="jobs at one time, on a cluster")
    sub.add_argument("--profile", default="default", metavar="NAME", help="default, local, slurm or a folder")
    sub.add_argument("-n", "--dry-run", dest="dry", action="store_true", help="say what would be done, and stop")
    workflow("demo", "bapo.run:demo", "Show four rows of Table 1 with one seed, and a picture, in minutes.")
    text = "Grade the responses in a JSONL file; print one JSON verdict per line."
    sub = command("grade", "bapo.evaluation.grade:grade_file", text)
    sub.add_argument("--task", required=True, help="countdown, geometry, mathematics or a project's")
    text = "each line for countdown: {'numbers', 'target', 'response'}; for geometry and mathematics: {'gold', "
    text += "'response'}, where gold is a text or a list of texts, any of which is right"
    sub.add_argument("file", metavar="FILE.jsonl", help=text)
    text = "how often does another grader disagree? Its verdicts stand beside ours, and a summary counts"
    sub.add_argument("--second", choices=["math-verify"], help=text)
    sub = command("sweep", _sweep, "Run one trial of a sweep, or collect its trials.")
    sub.add_argument("name", help="a file in experiments/sweep/ and one of its tasks, as in free_countdown")
    sub.add_argument("--settings", type=json.loads, default={}, help="the workflow's --config as JSON")
    text = "0 to trials - 1; after a kill -9 the same command continues it. Without it trials.json is written"
    sub.add_argument("--slot", type=int, help=text)
    sub = command("describe", "bapo.describe:main", "Describe the runs of a study for its tables and figures, as JSON.")
    sub.add_argument("name", help="a file in experiments/study/")
    sub.add_argument("--settings", type=json.loads, default={}, help="the workflow's --config as JSON")
    sub.add_argument("--out", type=Path, metavar="FILE", required=True, help="where to write")
    text = "Write a project of your own: a task, a method and a study to begin with."
    sub = command("init", "bapo.init:main", text)
    sub.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder")
    kinds = ("generator", "rows", "reasoning-gym")
    text = "problems that a class draws, rows of a file, or a data set of reasoning-gym (default: generator)"
    sub.add_argument("--task", choices=kinds, default=kinds[0], help=text)
    command("methods", "bapo.methods:show", "List the methods.")
    text = "Estimate what a target of the workflow will cost, before anything runs."
    workflow("plan", "bapo.plan.costs:main", text, "TARGET or KEY=VALUE")
    text = "Try training, resuming, evaluation and, with verl, vLLM on this machine, with a tiny model, in minutes."
    sub = command("gpu-check", "bapo.gpucheck.command:main", text)
    text = "torch: asks for neither vLLM nor verl nor flash-attn (default: verl)"
    sub.add_argument("--engine", choices=["verl", "torch"], default="verl", help=text)
    sub.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: on CPU cores, with vLLM's build")
    text = "a run whose micro-batch is tried last (default: scale=single_gpu; with --engine torch scale=gpu)"
    sub.add_argument("run_words", nargs="*", metavar="KEY=VALUE", help=text)
    text = "where logs and results stay (else removed if all is fine)"
    sub.add_argument("--keep", type=Path, metavar="FOLDER", help=text)
    sub = command("provenance", "bapo.store.provenance:main", "Print what made a result, as JSON.")
    sub.add_argument("file", metavar="FILE", help="a file of a run or of the problems, a table, a figure or the report")
    text = "Print the suite's version and commit, its packages and this machine, for a report of a fault."
    command("env", "bapo.store.provenance:show", text)
    for name in OF_ANALYSIS:
        commands.add_parser(name, add_help=False)
    parser.epilog = _listed(texts)
    return parser


#: what the parser notes of a command beside its words
_NOTES = {"command", "run", "work", "needed", "overrides", "cfg"}


def _call(place: str, arguments: Namespace, *positional: object) -> int:
    """Call MODULE:FUNCTION with a command's words. No command imports what another needs."""
    module, _, function = place.partition(":")
    words = {key: value for key, value in vars(arguments).items() if key not in _NOTES}
    return getattr(import_module(module), function)(*positional, **words) or 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    return exit_status(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(words: list[str]) -> int:
    if words and words[0] in OF_ANALYSIS:  # what the analysis does is handed on: the package knows of it only here
        from analysis.__main__ import main as analysis

        return analysis(words, "bapo")
    arguments = parsed(words)
    if arguments.command is None:
        _parser().print_help()
        return 0
    return arguments.run(arguments)


def _hint(command: str, option: str) -> str:
    """Say how an unknown option is meant to be written, where that is known."""
    from bapo.experiments.schema import Config
    from bapo.experiments.settings import Settings

    key = option.lstrip("-").partition("=")[0]
    if key.partition(".")[0] in {**Config.model_fields, **Settings.model_fields}:
        return f"; write {key}=VALUE"
    return "; options of Snakemake go behind ` -- `" if command == "run" else ""


def parsed(words: Sequence[str]) -> Namespace:
    """Parse a command whose options may stand among its KEY=VALUE. Exits with 2 for what it does not take."""
    parser = _parser()
    divider = words.index("--") if words[:1] == ["run"] and "--" in words else len(words)
    words, for_snakemake = words[:divider], words[divider + 1 :]
    arguments, rest = parser.parse_known_args(words)
    pairs = next((key for key in ("words", "overrides", "run_words") if key in arguments), None)
    options = [word for word in rest if word.startswith("-") or pairs is None]
    if options:
        parser.error(f"unrecognized arguments: {' '.join(options)}{_hint(words[0], options[0]) if pairs else ''}")
    if pairs:
        setattr(arguments, pairs, [*getattr(arguments, pairs), *rest])
    if for_snakemake:
        arguments.options = [*for_snakemake]
    return arguments


def _job(arguments: Namespace) -> int:
    from bapo.experiments import compose
    from bapo.experiments.settings import settings_of_project
    from bapo.gpu import allocation, devices
    from bapo.plan import resources

    settings_of_project()  # a wrong one is said here, too
    config = compose.compose_config(compose.once(arguments.overrides))
    if not arguments.cfg:
        needed = getattr(resources, arguments.needed)(config)
        with allocation.begun(), devices.taken(needed["gpu"]):  # before anything of it starts CUDA
            _call(arguments.work, arguments, config)
    elif arguments.command == "train" and config.engine == "verl":
        from bapo.engines.verl.verl_config import as_yaml

        print(as_yaml(config), end="")
    else:
        print(config.yaml(), end="")
    return 0


def _sweep(arguments: Namespace) -> int:
    from bapo.experiments.settings import read_settings
    from bapo.gpu import allocation, devices
    from bapo.plan import resources
    from bapo.sweeps import files, study, worker

    settings = read_settings(arguments.settings)
    sweep = files.load(arguments.name, settings)
    if arguments.slot is None:
        print(f"wrote {study.collect(sweep, settings)}", file=sys.stderr)
        return 0
    # a trial's parameters change nothing of what its runs need
    gpus = resources.training(files.check(sweep, settings))["gpu"] or 0
    with allocation.begun(), devices.taken(gpus):
        worker.run_slot(sweep, settings, arguments.slot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
