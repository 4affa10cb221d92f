"""``python -m bapo``: the workflow's jobs, a command each, and a few commands for people."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from analysis.commands import OF_ANALYSIS
from bapo import __version__
from bapo.errors import exit_status

OVERRIDES = """\
Configuration, for example
  scale=laptop|smoke|paper   task=countdown   model=...   method=bapo   seed=1
  method.v=2   train.steps=50   tracking=wandb   paths.results=/other/disk/results
`--cfg job` prints the resolved configuration (with engine=verl: verl's own) and does nothing else."""


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="bapo",
        description='Reproduction suite for "Buffer Matters" (BAPO).',
        epilog="The whole workflow: snakemake --cores all table1",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[Namespace], int] | str, text: str) -> ArgumentParser:
        """run: a function, or MODULE:FUNCTION, which is called with the command's words."""
        sub = commands.add_parser(name, help=text, description=text, formatter_class=RawDescriptionHelpFormatter)
        sub.set_defaults(run=partial(_call, run) if isinstance(run, str) else run)
        return sub

    def job(name: str, work: str, needed: str, text: str) -> ArgumentParser:
        """work: MODULE:FUNCTION, called with the configuration; needed: the function of bapo/plan/resources.py that
        says what it takes."""
        sub = command(name, _job, text)
        sub.epilog = OVERRIDES
        sub.set_defaults(work=work, needed=needed)
        sub.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="any key of the configuration")
        sub.add_argument("--cfg", choices=["job"], help="print the resolved configuration and stop")
        return sub

    job("data", "bapo.tasks.job:make_data", "problems", "Make (or fetch) the problems of a task.")
    text = "Make the base model of a scale; a pretrained one is only recorded."
    job("base", "bapo.engines.torch.base:train_base", "base_model", text)
    job("train", "bapo.engines:train", "training", "Train one run, resuming from its last checkpoint.")
    text = "Evaluate a checkpoint on the task's benchmarks, 32 samples per problem."
    sub = job("evaluate", "bapo.evaluation.curve:evaluate_asked", "evaluation", text)
    what = sub.add_mutually_exclusive_group()
    what.add_argument("--base", action="store_true", help="evaluate the base model instead of a trained run")
    text = "evaluate the base model and every kept checkpoint of the run, evaluation.curve_samples per problem"
    what.add_argument("--curve", dest="along", action="store_true", help=text)
    what.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="a checkpoint instead of the run's last")
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: in the run's folder)")
    sub = command("demo", "bapo.init:demo", "Show four rows of Table 1 with one seed, and a picture, in minutes.")
    sub.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE", help="the workflow's --config")
    text = "Grade the responses in a JSONL file; print one JSON verdict per line."
    sub = command("grade", "bapo.evaluation.grade:grade_file", text)
    sub.add_argument("--task", required=True, help="countdown, geometry, mathematics or a project's")
    text = "each line for countdown: {'numbers', 'target', 'response'}; for geometry and mathematics: {'gold', "
    text += "'response'}, where gold is a text or a list of texts, any of which is right"
    sub.add_argument("file", metavar="FILE.jsonl", help=text)
    text = "how often does another grader disagree? Its verdicts stand beside ours, and a summary counts"
    sub.add_argument("--second", choices=["math-verify"], help=text)
    sub = command("sweep", _sweep, "Work on a slot of a study of a method's parameters, or collect its trials.")
    sub.add_argument("name", help="a file in experiments/sweep/ and one of its tasks, as in free_countdown")
    sub.add_argument("--settings", type=json.loads, default={}, help="the workflow's --config as JSON")
    text = "0 to trials - 1; after a kill -9 the same command continues it. Without it trials.json is written"
    sub.add_argument("--slot", type=int, help=text)
    sub = command("describe", "bapo.describe:main", "Describe the runs of a study for its tables and figures, as JSON.")
    sub.add_argument("name", help="a file in experiments/study/")
    sub.add_argument("--settings", type=json.loads, default={}, help="the workflow's --config as JSON")
    sub.add_argument("--out", type=Path, metavar="FILE", required=True, help="where to write")
    text = "Write a project of your own: a task, a method and a study to begin with."
    command("init", "bapo.init:main", text).add_argument("folder", type=Path, metavar="FOLDER", help="a new folder")
    command("methods", "bapo.methods:show", "List the methods.")
    text = "Estimate what a target of the workflow will cost, before anything runs."
    sub = command("plan", "bapo.plan.costs:main", text)
    sub.add_argument("target", metavar="TARGET", help="a target of Snakemake: table1, figures, all, runs_figure6, ...")
    sub.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE", help="the workflow's --config")
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
    for name, text in OF_ANALYSIS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


#: what the parser notes of a command beside its words
_NOTED = {"command", "run", "work", "needed", "overrides", "cfg"}


def _call(place: str, arguments: Namespace, *given: object) -> int:
    """Call MODULE:FUNCTION with a command's words. No command imports what another needs."""
    module, _, function = place.partition(":")
    words = {key: value for key, value in vars(arguments).items() if key not in _NOTED}
    return getattr(import_module(module), function)(*given, **words) or 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    return exit_status(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(words: list[str]) -> int:
    if words and words[0] in OF_ANALYSIS:  # what the analysis does is handed on: the package knows of it only here
        from analysis.__main__ import main as analysis

        return analysis(words, "bapo")
    arguments = _parser().parse_args(words)
    return arguments.run(arguments)


def _job(arguments: Namespace) -> int:
    from bapo import project
    from bapo.experiments import compose
    from bapo.experiments.settings import read_settings
    from bapo.gpu import allocation, devices
    from bapo.plan import resources

    if home := project.folder():
        read_settings(project.content(home), f"{home / project.MARK}:")
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
