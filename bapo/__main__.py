"""``python -m bapo``: the workflow's jobs, a command each, and a few commands for people."""

from __future__ import annotations

import errno
import json
import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.commands import OF_ANALYSIS
from analysis.products import FIRST_LOOK
from bapo import __version__
from bapo.errors import Interrupted, JobFailed, UserError
from bapo.gpu import allocation
from bapo.store.files import SUMMARY, Json, read_json

if TYPE_CHECKING:
    from bapo.experiments.schema import Config

OVERRIDES = """\
Configuration, for example
  scale=laptop|smoke|paper   task=countdown   model=...   method=bapo   seed=1
  method.v=2   train.steps=50   tracking=none   paths.results=/other/disk/results
`--cfg job` prints the resolved configuration (with engine=verl: verl's own) and does nothing else."""


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="bapo",
        description='Reproduction suite for "Buffer Matters" (BAPO).',
        epilog="The whole workflow: snakemake --cores all table1",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[Namespace], int] | str, text: str, **options: Any) -> ArgumentParser:
        """run: a function, or MODULE:FUNCTION, which is called with the command's words."""
        sub = commands.add_parser(name, help=text, description=text, **options)
        sub.set_defaults(run=_call(run) if isinstance(run, str) else run)
        return sub

    def job(name: str, work: Callable[[Config, Namespace], None], needed: str, text: str) -> ArgumentParser:
        """needed: the function of bapo/plan/resources.py that says what it takes."""
        sub = command(name, _job, text, epilog=OVERRIDES, formatter_class=RawDescriptionHelpFormatter)
        sub.set_defaults(work=work, needed=needed)
        sub.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="any key of the configuration")
        sub.add_argument("--cfg", choices=["job"], help="print the resolved configuration and stop")
        return sub

    job("data", _data, "problems", "Make (or fetch) the problems of a task.")
    job("base", _base, "base_model", "Make the base model of a scale; a pretrained one is only recorded.")
    job("train", _train, "training", "Train one run, resuming from its last checkpoint.")
    text = "Evaluate a checkpoint on the task's benchmarks, 32 samples per problem."
    sub = job("evaluate", _evaluate, "evaluation", text)
    what = sub.add_mutually_exclusive_group()
    what.add_argument("--base", action="store_true", help="evaluate the base model instead of a trained run")
    text = "evaluate the base model and every kept checkpoint of the run, evaluation.curve_samples per problem"
    what.add_argument("--curve", action="store_true", help=text)
    what.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="a checkpoint instead of the run's last")
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: in the run's folder)")
    sub = command("demo", _demo, "Show four rows of Table 1 with one seed, and a picture of them, in minutes.")
    sub.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE", help="the workflow's --config")
    text = "Grade the responses in a JSONL file; print one JSON verdict per line."
    sub = command("grade", _grade, text)
    sub.add_argument("--task", required=True, help="countdown, geometry, mathematics or a project's")
    text = "each line for countdown: {'numbers', 'target', 'response'}; for geometry and mathematics: {'gold', "
    text += "'response'}, where gold is a text or a list of texts, any of which is right; geometry takes 'choices', too"
    sub.add_argument("file", metavar="FILE.jsonl", help=text)
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
    command("methods", _methods, "List the methods.")
    text = "Give results of before 2026-11-25 the identities that the same runs have now."
    sub = command("migrate", "bapo.migrate:main", text)
    sub.add_argument("folder", metavar="FOLDER", nargs="?", default="results", help="of results (default: results)")
    text = "Estimate what a target of the workflow will cost, before anything runs."
    sub = command("plan", "bapo.plan.text:main", text)
    sub.add_argument("target", metavar="TARGET", help="a target of Snakemake: table1, figures, all, runs_figure6, ...")
    sub.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE", help="the workflow's --config")
    text = "Try vLLM, training, resuming and evaluation with a tiny model, in minutes."
    sub = command("gpu-check", "bapo.gpucheck.command:main", text)
    sub.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: on CPU cores, with vLLM's build")
    text = "where logs and results stay (else removed if all is fine)"
    sub.add_argument("--keep", type=Path, metavar="FOLDER", help=text)
    sub.add_argument("--limit", type=float, metavar="SECONDS", help="that one of its jobs may take (half an hour)")
    sub = command("provenance", "bapo.store.provenance:main", "Print what made a result, as JSON.")
    sub.add_argument("file", metavar="FILE", help="a file of a run or of the problems, a table, a figure or the report")
    for name, text in OF_ANALYSIS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _call(place: str) -> Callable[[Namespace], int]:
    """Return what calls MODULE:FUNCTION with a command's words. No command imports what another needs."""

    def run(arguments: Namespace) -> int:
        module, _, function = place.partition(":")
        words = {key: value for key, value in vars(arguments).items() if key not in ("command", "run")}
        return getattr(import_module(module), function)(**words) or 0

    return run


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command again to resume from the last checkpoint", file=sys.stderr)
        return 130
    except (Interrupted, JobFailed) as error:
        print(error, file=sys.stderr)
        return 130 if isinstance(error, Interrupted) else 1
    except BrokenPipeError:  # the reader of `bapo ... | head` has seen enough; what is left has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        place = error.filename or "disk"
        print(f"error: {place}: no space left; free some, then run the same command again to resume", file=sys.stderr)
        return 1


def _run(words: list[str]) -> int:
    if words and words[0] in OF_ANALYSIS:  # what the analysis does is handed on: the package knows of it only here
        from analysis.__main__ import main as analysis

        return analysis(words, "bapo")
    parser = _parser()
    arguments, rest = parser.parse_known_args(words)
    # argparse takes overrides from one place only; `--cfg job seed=1` should work as well
    if any(word.startswith("-") or "=" not in word for word in rest) or (rest and not hasattr(arguments, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments.run(arguments)


def _job(arguments: Namespace) -> int:
    from bapo.experiments import compose

    config = compose.compose_config(arguments.overrides)
    if not arguments.cfg:
        if arguments.command != "data":  # the others load torch first, which may take seconds
            cell = [config.task.name, config.model.name]
            cell += [config.method.name, f"seed {config.seed}"] if arguments.command == "train" else []
            print(f"{arguments.command} {' '.join(cell)}: starting", file=sys.stderr)
        with allocation.begun(), _own_gpus(config, arguments.needed):
            arguments.work(config, arguments)
    elif arguments.command == "train" and config.engine == "verl":
        from bapo.engines.verl.verl_config import as_yaml

        print(as_yaml(config), end="")
    else:
        print(config.yaml(), end="")
    return 0


def _own_gpus(config: Config, needed: str) -> AbstractContextManager[None]:
    """Hold the GPUs that a job needs, before anything of it starts CUDA."""
    from bapo.gpu.environment import own_gpus
    from bapo.plan import resources

    modules = ["vllm"] if needed == "evaluation" and config.evaluation.backend == "vllm" else []
    return own_gpus(getattr(resources, needed)(config)["gpu"], modules)


def _sweep(arguments: Namespace) -> int:
    from bapo.experiments.settings import read_settings
    from bapo.sweeps import files, study, worker

    settings = read_settings(arguments.settings)
    sweep = files.load(arguments.name, settings)
    if arguments.slot is None:
        print(f"wrote {study.collect(sweep, settings)}", file=sys.stderr)
        return 0
    # a trial's parameters change nothing of what its runs need
    with allocation.begun(), _own_gpus(files.check(sweep, settings), "training"):
        worker.run_slot(sweep, settings, arguments.slot)
    return 0


def _data(config: Config, _: Namespace) -> None:
    from bapo.tasks.job import make_data

    make_data(config, lambda line: print(line, file=sys.stderr))


def _base(config: Config, _: Namespace) -> None:
    from bapo.engines.torch.base import train_base

    train_base(config)


def _train(config: Config, _: Namespace) -> None:
    from bapo import engines

    summary = engines.train(config)
    totals = summary["totals"]
    print(
        f"{config.method.name} seed {config.seed}: {summary['steps']} steps, {totals['rollouts']} rollouts, "
        f"{totals['updates']} updates, {totals['seconds']:.0f} s",
        file=sys.stderr,
    )


def _evaluate(config: Config, arguments: Namespace) -> None:
    from bapo.engines.shared.models import pretrained
    from bapo.evaluation import curve, run
    from bapo.experiments.places import base_directory

    out, checkpoint = arguments.out, arguments.checkpoint
    if checkpoint:
        home = checkpoint
    elif arguments.base:
        home, checkpoint = base_directory(config), pretrained.start_of(config)
    else:
        home, summary = _trained_run(config)
        checkpoint = home / summary["checkpoint"]
    if arguments.curve:
        summary = curve.evaluate_curve(config, home, out or home / curve.FOLDER)
        for name, result in summary["benchmarks"].items():
            accuracies = ", ".join(f"{100 * value:.1f} at {step}" for step, value in result["accuracy"].items())
            print(f"{name}: {accuracies}", file=sys.stderr)
        return
    summary = run.evaluate(config, checkpoint, out or home / "eval")
    for name, result in summary["benchmarks"].items():
        error = result["standard_error"]  # None for a single problem
        spread = "" if error is None else f" +- {100 * error:.2f}"
        print(f"{name}: {100 * result['accuracy']:.2f}{spread}", file=sys.stderr)


def _trained_run(config: Config) -> tuple[Path, Json]:
    """Return the folder and summary of the configured run. Raises UserError unless it is finished and that very run."""
    from bapo.experiments import budgets
    from bapo.experiments.places import run_directory

    home = run_directory(config)
    summary = read_json(home / SUMMARY)
    if summary.get("identity") != budgets.identity(config):
        raise UserError(f"{home}: this was trained under another configuration; train it again, or correct the command")
    return home, summary


def _grade(arguments: Namespace) -> int:
    from bapo.evaluation.grade import grade_file

    grade_file(arguments.task, arguments.file)
    return 0


def _demo(arguments: Namespace) -> int:
    """Become Snakemake, so that signals and the exit status are its own."""
    from bapo.experiments.places import suite_folder

    suite = suite_folder()
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(suite / "Snakefile"), FIRST_LOOK]
    words += ["--workflow-profile", str(suite / "workflows" / "profiles" / "default")]
    os.execv(words[0], [*words, *(["--config", *arguments.config] if arguments.config else [])])


def _methods(_: Namespace) -> int:
    from bapo import methods

    table = methods.table()
    width = max(map(len, table))
    for name, cls in table.items():
        print(f"{name:<{width}}  {cls.Config().kind:<3}  {cls.summary}  ({cls.cost})  [{cls.source}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
