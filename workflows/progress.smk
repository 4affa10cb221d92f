# A reader sees this first: a line while jobs run (analysis/watch.py), at the end results, or the log that says why.
#
# Snakemake's interface for logger plugins finds no package that was installed by `pip install -e`, as this one is. So
# the line takes the place of the handler of Snakemake's log.

import subprocess
import time

from snakemake.logging import LogEvent
from snakemake.logging import logger
from snakemake.settings.enums import Quietness
from snakemake.shell import shell

from bapo import methods
from bapo.experiments.order import Cell
from bapo.experiments.order import AT_ONCE
from bapo.experiments.order import Priorities

#: before every job's command. Slurm sends SIGTERM to all of a job that it preempts: shell and `tee` wait for the run
PREFIX = "set -euo pipefail; trap : TERM; tee() (trap '' TERM; command tee \"$@\"); "
#: handlers of Snakemake's log that end with the jobs
SHOWN = []
#: how lines begin in which Snakemake tells of itself before the first job and after the last
CHATTER = ("Building DAG", "Using shell", "Provided cores", "Rules claiming more threads", "Singularity containers")
CHATTER += ("Complete log", "Elapsed time")
#: tables of jobs that Snakemake has announced
ANNOUNCED = []
#: when this Snakemake began, in seconds since 1970
BEGAN = time.time()
#: targets that make the usual studies
EVERYTHING = {"all", "default", "tables", "comparisons"}


def shown_handler():
    """Return the handler that prints Snakemake's log, None where there is none."""
    return next((h for h in logger.handlers if h.name == "DefaultStreamHandler"), None)


def worth_reading(record):
    """Return whether a line of Snakemake's log is shown: a table of jobs once, and only where nothing will run."""
    if getattr(record, "event", None) == LogEvent.RUN_INFO:
        ANNOUNCED.append(record)
        return workflow.output_settings.dryrun and len(ANNOUNCED) == 1
    return not record.getMessage().startswith(CHATTER)


shell.prefix(PREFIX)
if SETTINGS.progress != "plain" and shown_handler():
    shown_handler().addFilter(worth_reading)


@cache
def method_title(name):
    """Return the title of a method in a path, for example of ``grpo+rate_1e-4``."""
    method, *variants = name.split("+")
    if any((tree / "method" / f"{method}.yaml").exists() for tree in places.trees()):  # has a title of the project's
        return name
    titles = [methods.node_of(method)["title"], *(places.variants()[variant][1]["title"] for variant in variants)]
    return ", ".join(titles).removeprefix("+")


@cache
@user_errors
def priorities():
    """Order Table 1's runs, whatever is made: overrides for the run of one task need not fit the table's others."""
    scale = SETTINGS.scale
    known = products.at_scale([products.MAIN], scale)
    return Priorities(studies.load_study(products.MAIN, scale, SETTINGS.methods, SETTINGS.seeds) if known else None)


def run_priority(wildcards):
    names, seed = cell_of(wildcards)
    return priorities().of_run(Cell(**names, seed=seed))


def show_progress():
    """Show one line of progress instead of all that the jobs print. Logs have the rest."""
    from analysis.watch import ProgressLine

    if workflow.touch or not workflow.is_main_process:
        return
    usual = shown_handler()
    asked_less = {Quietness.ALL, Quietness.PROGRESS} & set(workflow.output_settings.quiet or ())
    if SETTINGS.progress == "plain" or usual is None or asked_less:
        return
    # what jobs print would stand between two lines; `tee` in each rule still writes its log
    shell.prefix(f"{PREFIX}exec > /dev/null; ")
    line = ProgressLine(usual, len(set(workflow.dag.needrun_jobs())), method_title)
    logger.removeHandler(usual)
    logger.addHandler(line)
    SHOWN.append(line)
    atexit.register(line.end)  # Snakemake may end without its hooks


def end_progress():
    for handler in reversed(SHOWN):
        handler.end()


def show_closing():
    """Write the page, and show the rows of the studies that were asked for, with how they compare to published ones."""
    if workflow.touch or not workflow.is_main_process or not SCALE.is_dir():
        return
    asked = {*workflow.dag_settings.targets} or {"all"}
    usual = products.own_studies(SETTINGS.scale) or [products.MAIN]
    named = [name for name in places.options("study") if name in asked or (name in usual and asked & EVERYTHING)]
    subprocess.run([sys.executable, "-m", "analysis", "closing", str(SCALE), "--study", *named])


def closing_message(since=0.0):
    """Name what this run's targets are to be opened for. since: nothing that is older."""
    made = [SCALE / products.PAGE, *(Path(file) for job in workflow.dag.jobs for file in job.output)]
    new = [file for file in made if file.exists() and file.stat().st_mtime >= since]
    there = products.to_open(SCALE, new, SWEEPS_HERE)
    from analysis.text import duration

    took = [f"This took {duration(time.monotonic() - line.start)}." for line in SHOWN[:1]]
    return "\n".join([*there, *took])


def failure_message(log):
    """Say which log to read: of the job that failed last in Snakemake's log, as a retry may have helped others."""
    text = "".join(Path(name).read_text(encoding="utf-8") for name in log)
    failed = re.findall(r"^ {4}log: (.+?)(?: \(check log file|$)", text, re.MULTILINE)
    where = f"{failed[-1]} says why" if failed else "the first error above says why"
    # the log of a job that ran Snakemake, as Slurm's do, may tell of another end than this one
    said = "Stopped" if any(line.interrupted for line in SHOWN) else f"Not finished: {where}"
    return f"{said}. The same command goes on where this one stopped."
