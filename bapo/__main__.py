"""``bapo``: parses and runs the commands for people, and those of the workflow's jobs."""

from __future__ import annotations

import json
import sys
import traceback
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from bapo import __version__
from bapo.commands import GROUPS, OF_ANALYSIS, TEXTS, examples, path
from bapo.errors import JobFailed, exit_status

OVERRIDES = """\
Configuration, for example
  scale=laptop|smoke|paper   task=countdown   model=...   method=bapo   seed=1
  method.v=2   train.steps=50   tracking=wandb   paths.results=/other/disk/results
`--cfg job` prints the resolved configuration (with engine=verl: verl's own) and does nothing else."""
SETTINGS = """\
Settings of the workflow, for example
  scale=smoke|pocket|paper   methods=grpo,bapo   seeds=1,2,3   results=/other/disk/results   tracking=wandb
Every other key is one of the configuration, for example train.steps=50 or method.v=2."""


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="bapo",
        usage="bapo COMMAND ...",
        description='Reproduction suite for "Buffer Matters" (BAPO).',
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(prog="bapo", dest="command", metavar="COMMAND", help=SUPPRESS)

    def command(name: str, run: Callable[[Namespace], int] | str) -> ArgumentParser:
        """Add a command. run: a function, or MODULE:FUNCTION, which is called with the command's arguments."""
        sub = commands.add_parser(name, description=TEXTS[name], formatter_class=RawDescriptionHelpFormatter)
        sub.epilog = examples(name)
        sub.set_defaults(run=partial(_call, run) if isinstance(run, str) else run)
        return sub

    def job(name: str, work: str, resources: str) -> ArgumentParser:
        """Add a job. work: MODULE:FUNCTION, called with the configuration; resources: of bapo/plan/resources.py."""
        sub = command(name, _job)
        sub.epilog = f"{OVERRIDES}\n\n{examples(name)}"
        sub.set_defaults(work=work, resources=resources)
        sub.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="any key of the configuration")
        sub.add_argument("--cfg", choices=["job"], help="print the resolved configuration and stop")
        return sub

    job("data", "bapo.tasks.job:make_data", "problems")
    job("base", "bapo.engines.torch.base_model:train_base", "base_model")
    job("train", "bapo.engines:train", "training")
    sub = job("evaluate", "bapo.evaluation.curve:main", "evaluation")
    model = sub.add_mutually_exclusive_group()
    model.add_argument("--base", action="store_true", help="evaluate the base model instead of a trained run")
    text = "evaluate the base model and every kept checkpoint of the run, evaluation.curve_samples per problem"
    model.add_argument("--curve", dest="along", action="store_true", help=text)
    model.add_argument("--checkpoint", type=path, metavar="FOLDER", help="a checkpoint instead of the run's last")
    sub.add_argument("--out", type=path, metavar="FOLDER", help="where to write (default: in the run's folder)")
    help_of_words = "what to make, such as table1; a setting, such as scale=smoke; a key of the configuration"

    def workflow(name: str, run: str, words: str = "KEY=VALUE") -> ArgumentParser:
        sub = command(name, run)
        sub.epilog = f"{SETTINGS}\n\n{examples(name)}"
        sub.add_argument("words", nargs="*", metavar=words, help=help_of_words)
        return sub

    runs = workflow("run", "bapo.run:main", "TARGET or KEY=VALUE"), workflow("demo", "bapo.run:demo")
    for sub, targets in zip(runs, ("[TARGET ...] ", ""), strict=True):
        sub.usage = f"{sub.prog} {targets}[KEY=VALUE ...] [options] [-- OPTIONS OF SNAKEMAKE]"
        sub.add_argument("--cores", metavar="N", help="cores to use (default: all)")
        sub.add_argument("-j", "--jobs", metavar="N", help="jobs at one time, on a cluster")
        sub.add_argument("--profile", default="default", metavar="NAME", help="default, local, slurm or a folder")
        sub.add_argument("-n", "--dry-run", dest="dry", action="store_true", help="say what would be done, and stop")
    sub = command("grade", "bapo.evaluation.grade:grade_file")
    sub.add_argument("--task", required=True, help="countdown, geometry, mathematics or a project's")
    text = "each line for countdown: {'numbers', 'target', 'response'}; for geometry and mathematics: {'gold', "
    text += "'response'}, where gold is a text or a list of texts, any of which is right"
    sub.add_argument("file", metavar="FILE.jsonl", help=text)
    text = "also grade with this library, and count disagreements"
    sub.add_argument("--second", choices=["math-verify"], help=text)
    sub = command("sweep", _sweep)
    sub.add_argument("name", help="a file in experiments/sweep/ and one of its tasks, as in free_countdown")
    sub.add_argument("--settings", type=json.loads, default={}, help='settings as JSON, such as {"scale": "smoke"}')
    text = "number of a trial, from 0. Without it, finished trials are collected into trials.json"
    sub.add_argument("--slot", type=int, help=text)
    sub = command("describe", "bapo.describe:main")
    sub.add_argument("name", help="a file in experiments/study/")
    sub.add_argument("--settings", type=json.loads, default={}, help='settings as JSON, such as {"scale": "smoke"}')
    sub.add_argument("--out", type=path, metavar="FILE", required=True, help="where to write")
    sub = command("init", "bapo.init:main")
    sub.add_argument("folder", type=path, metavar="FOLDER", help="a new folder")
    kinds = ("generator", "rows", "reasoning-gym")
    text = "problems that a class draws, rows of a file, or a data set of reasoning-gym (default: generator)"
    sub.add_argument("--task", choices=kinds, default=kinds[0], help=text)
    command("methods", "bapo.methods:show")
    workflow("plan", "bapo.plan.costs:main", "TARGET or KEY=VALUE")
    sub = command("gpu-check", "bapo.gpucheck.command:main")
    text = "torch: needs no vLLM, verl or flash-attn (default: verl)"
    sub.add_argument("--engine", choices=["verl", "torch"], default="verl", help=text)
    sub.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: on CPU cores, with vLLM's build")
    text = "a run whose micro-batch is tried last (default: scale=single_gpu; with --engine torch scale=gpu)"
    sub.add_argument("run_words", nargs="*", metavar="KEY=VALUE", help=text)
    text = "where logs and results stay (default: deleted when every check passes)"
    sub.add_argument("--keep", type=path, metavar="FOLDER", help=text)
    sub = command("provenance", "bapo.store.provenance:main")
    sub.add_argument("file", metavar="FILE", help="a file of a run or of the problems, a table, a figure or the report")
    command("env", "bapo.store.provenance:show")
    for name in OF_ANALYSIS:
        commands.add_parser(name, add_help=False)
    groups = {name: [f"  {command:<12}{text}" for command, text in group.items()] for name, group in GROUPS.items()}
    listing = [f"{name}:\n" + "\n".join(lines) for name, lines in groups.items()]
    parser.epilog = "\n\n".join([*listing, "`bapo COMMAND --help` shows how a command is called."])
    return parser


#: attributes of the parsed arguments that a command's function does not get
_INTERNAL = {"command", "run", "work", "resources", "overrides", "cfg"}


def _call(path: str, arguments: Namespace, *positional: object) -> int:
    """Call MODULE:FUNCTION with a command's arguments. The module is only imported here, for this command."""
    module, _, function = path.partition(":")
    keywords = {key: value for key, value in vars(arguments).items() if key not in _INTERNAL}
    return getattr(import_module(module), function)(*positional, **keywords) or 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    return exit_status(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(words: list[str]) -> int:
    if words and words[0] in OF_ANALYSIS:
        return import_module("analysis.__main__").main(words, "bapo")
    arguments = parse(words)
    if arguments.command is None:
        _parser().print_help()
        return 0
    try:
        return arguments.run(arguments)
    except SystemExit as error:  # no command calls sys.exit: the code of a method or task did, before the end
        # wandb replaces sys.exit by a function of this name
        frame = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name != "exit"][-1]
        raise JobFailed(f"error: {frame.filename}:{frame.lineno}: sys.exit({error.code!r}) before the end") from None


def _hint(command: str, option: str) -> str:
    """Return how an unknown option should be written, or "" where that is not known."""
    from bapo.experiments.schema import Config
    from bapo.experiments.settings import Settings

    key = option.lstrip("-").partition("=")[0]
    if key.partition(".")[0] in {**Config.model_fields, **Settings.model_fields}:
        return f"; write {key}=VALUE"
    return "; options of Snakemake go after ` -- `" if command in ("run", "demo") else ""


def parse(words: Sequence[str]) -> Namespace:
    """Parse a command whose options may stand among its KEY=VALUE. Exits with 2 for unknown options."""
    parser = _parser()
    divider = words.index("--") if words[:1] in (["run"], ["demo"]) and "--" in words else len(words)
    words, snakemake_options = words[:divider], words[divider + 1 :]
    arguments, unparsed = parser.parse_known_args(words)
    pairs = next((key for key in ("words", "overrides", "run_words") if key in arguments), None)
    options = [word for word in unparsed if word.startswith("-") or pairs is None]
    if options:
        parser.error(f"unrecognized arguments: {' '.join(options)}{_hint(words[0], options[0]) if pairs else ''}")
    if pairs:
        setattr(arguments, pairs, [*getattr(arguments, pairs), *unparsed])
    if snakemake_options:
        arguments.options = [*snakemake_options]
    return arguments


def _job(arguments: Namespace) -> int:
    from bapo.experiments import compose
    from bapo.experiments.settings import settings_of_project
    from bapo.gpu import allocation, devices
    from bapo.plan import resources

    settings_of_project()  # a mistake in bapo.yaml ends every job
    config = compose.compose_config(compose.once(arguments.overrides))
    if not arguments.cfg:
        gpus = getattr(resources, arguments.resources)(config)["gpu"]
        with allocation.job_clock(), devices.reserve(gpus):  # before the work starts CUDA
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

    settings = read_settings(arguments.settings, "--settings")
    sweep = files.load(arguments.name, settings)
    if arguments.slot is None:
        print(f"wrote {study.collect(sweep, settings)}", file=sys.stderr)
        return 0
    # the parameters of a trial do not change the resources of its runs
    gpus = resources.training(files.check(sweep, settings))["gpu"] or 0
    with allocation.job_clock(), devices.reserve(gpus):
        worker.run_slot(sweep, settings, arguments.slot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
