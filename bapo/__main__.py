"""``python -m bapo``: the commands that the workflow calls, one job each, and a few for people."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from typing import Any

from bapo import __version__
from bapo.errors import UserError
from bapo.sweeps import command as sweeps

OVERRIDES = """\
Configuration: Hydra overrides, for example
  scale=laptop|smoke|paper   task=countdown   model=...   method=bapo   seed=1
  method.v=2   train.steps=50   tracking=none   paths.results=/other/disk/results
`--cfg job` prints the resolved configuration (with engine=verl: verl's own) and does nothing else."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bapo",
        description='Reproduction suite for "Buffer Matters" (BAPO).',
        epilog="The whole workflow: snakemake --cores all table1",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def job(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=text, description=text, epilog=OVERRIDES, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        sub.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides")
        sub.add_argument("--cfg", choices=["job"], help="print the resolved configuration and stop")
        return sub

    job("data", "Make (or fetch) the problems of a task.")
    job("base", "Train the base model of a scale from scratch (pretrained models are only noted).")
    job("train", "Train one run, resuming from its last checkpoint.")
    evaluate = job("evaluate", "Evaluate a checkpoint on the task's benchmarks, 32 samples a problem.")
    evaluate.add_argument("--base", action="store_true", help="the base model instead of a trained run")
    evaluate.add_argument(
        "--curve",
        action="store_true",
        help="every kept checkpoint of the run, and the model that it began with, evaluation.curve_samples a problem",
    )
    evaluate.add_argument("--checkpoint", metavar="FOLDER", help="a checkpoint folder instead of the run's last one")
    evaluate.add_argument(
        "--out",
        metavar="FOLDER",
        help="where to write (default, beside the run: eval/, eval_shuffled_images/ for the control, curve/)",
    )
    grade = commands.add_parser("grade", help="Grade responses in a JSONL file; one JSON verdict a line.")
    grade.add_argument("--task", required=True, help="countdown, geometry or mathematics")
    grade.add_argument(
        "file",
        metavar="FILE.jsonl",
        help="countdown: {'numbers', 'target', 'response'} a line; geometry and mathematics: {'gold', 'response'}, "
        "where gold is a text or a list of texts, any of which is right; geometry: also 'choices', a list of texts",
    )
    sweeps.add_arguments(commands.add_parser("sweep", help="Work on a study of a method's parameters."))
    listing = commands.add_parser("methods", help="List the methods.")
    listing.add_argument("--json", action="store_true", help="machine-readable")
    plan = commands.add_parser("plan", help="What a target of the workflow will cost, before anything runs.")
    plan.add_argument("target", metavar="TARGET", help="as Snakemake takes it: table1, figures, all, runs_figure6, ...")
    plan.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE", help="the workflow's --config")
    plan.add_argument("--json", action="store_true", help="machine-readable")
    origin = commands.add_parser("provenance", help="What a result was made from, and whether it is still that.")
    origin.add_argument("file", metavar="FILE", help="of a run, the problems, a table, a figure, the report")
    origin.add_argument("--json", action="store_true", help="machine-readable")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    # argparse gives all overrides to the first place that they stand in; `--cfg job seed=1` should work as well
    if any(word.startswith("-") or "=" not in word for word in rest) or (rest and not hasattr(arguments, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    try:
        return _run(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(
            f"error: {error.filename or 'disk'}: no space left; free some, then the same command resumes",
            file=sys.stderr,
        )
        return 1
    except Exception as error:
        # named, not imported: the engines import torch
        statuses = {"Interrupted": 130, "JobFailed": 1}
        if type(error).__name__ not in statuses:
            raise
        print(error, file=sys.stderr)
        return statuses[type(error).__name__]


def _run(arguments: Any) -> int:
    if arguments.command == "methods":
        return _methods(arguments.json)
    if arguments.command == "sweep":
        return sweeps.run(arguments)
    if arguments.command == "grade":
        from bapo.evaluation.grade import grade_file

        grade_file(arguments.task, arguments.file)
        return 0
    if arguments.command == "plan":
        from bapo.plan import text as plan_text

        return plan_text.main(arguments.target, arguments.config, arguments.json)
    if arguments.command == "provenance":
        from bapo.store import provenance

        return provenance.main(arguments.file, arguments.json)

    from bapo.experiments.compose import compose_config

    config = compose_config(arguments.overrides)
    if arguments.cfg:
        from omegaconf import OmegaConf

        if arguments.command == "train" and config.engine == "verl":
            from bapo.engines.verl.verl_config import as_yaml

            print(as_yaml(config), end="")
        else:
            print(OmegaConf.to_yaml(config, resolve=True), end="")
        return 0
    return {"data": _data, "base": _base, "train": _train, "evaluate": _evaluate}[arguments.command](config, arguments)


def _data(config: Any, _: Any) -> int:
    from bapo.tasks.job import make_data

    make_data(config, lambda line: print(line, file=sys.stderr))
    return 0


def _base(config: Any, _: Any) -> int:
    from bapo.engines.torch.base import train_base

    train_base(config)
    return 0


def _train(config: Any, _: Any) -> int:
    from bapo import engines

    summary = engines.train(config)
    totals = summary["totals"]
    print(
        f"{config.method.name} seed {config.seed}: {summary['steps']} steps, {totals['rollouts']} rollouts, "
        f"{totals['updates']} updates, {totals['seconds']:.0f} s",
        file=sys.stderr,
    )
    return 0


def _evaluate(config: Any, arguments: Any) -> int:
    from pathlib import Path

    from bapo.evaluation.run import evaluate
    from bapo.experiments import budgets
    from bapo.experiments.identity import base_identity
    from bapo.experiments.places import base_directory, run_directory

    if arguments.curve:
        return _curve(config, arguments)
    if arguments.checkpoint:
        checkpoint, home = Path(arguments.checkpoint), Path(arguments.checkpoint)
    elif arguments.base:
        home = base_directory(config)
        if config.model.kind == "scratch":
            _require_identity(home, base_identity(config))
        checkpoint = config.model.path if config.model.kind == "pretrained" else home / "checkpoint"
    else:
        home = run_directory(config)
        checkpoint = home / _require_identity(home, budgets.identity(config))["checkpoint"]
    # a control must not take the place of the evaluation that the tables read
    usual = "eval" if config.evaluation.images == "own" else f"eval_{config.evaluation.images}_images"
    summary = evaluate(config, checkpoint, Path(arguments.out) if arguments.out else home / usual)
    for name, result in summary["benchmarks"].items():
        error = result["standard_error"]  # None for a single problem
        spread = "" if error is None else f" +- {100 * error:.2f}"
        print(f"{name}: {100 * result['accuracy']:.2f}{spread}", file=sys.stderr)
    return 0


def _curve(config: Any, arguments: Any) -> int:
    from pathlib import Path

    from bapo.evaluation import curve
    from bapo.experiments import budgets
    from bapo.experiments.places import run_directory

    if arguments.base or arguments.checkpoint:
        raise UserError("--curve takes all checkpoints of a run: leave out --base and --checkpoint")
    home = run_directory(config)
    _require_identity(home, budgets.identity(config))
    summary = curve.evaluate_curve(config, home, Path(arguments.out) if arguments.out else home / curve.FOLDER)
    for name, result in summary["benchmarks"].items():
        words = ", ".join(f"{100 * value:.1f} at {step}" for step, value in result["accuracy"].items())
        print(f"{name}: {words}", file=sys.stderr)
    return 0


def _require_identity(home: Any, identity: str) -> dict[str, Any]:
    """The summary of what was trained in ``home``. Raises UserError where that was something else."""
    from bapo.store.files import SUMMARY, read_json

    summary = read_json(home / SUMMARY)
    if summary.get("identity") != identity:
        raise UserError(f"{home}: this was trained under another configuration; train it again, or correct the command")
    return summary


def _methods(as_json: bool) -> int:
    import json

    from bapo import methods

    rows = [
        {"name": name, "type": cls.Config().kind, "summary": cls.summary, "cost": cls.cost, "source": cls.source}
        for name, cls in methods.table().items()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    width = max(len(r["name"]) for r in rows)
    for r in rows:
        print(f"{r['name']:<{width}}  {r['type']:<3}  {r['summary']}  ({r['cost']})  [{r['source']}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
