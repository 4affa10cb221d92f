# What the rules share: the checked settings, the place of every file, and what each job is called with.

import dataclasses
import gc
import re
import shlex
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from bapo.experiments import budgets
from bapo.experiments import compose as configuration
from bapo.experiments.places import options
from bapo.experiments import identity
from bapo.experiments.hardware import on_gpus
from bapo.store import provenance
from bapo.store.lock import locked
from bapo.store.files import sha256
from bapo.experiments import studies
from bapo.experiments.settings import read_settings
from bapo.experiments import targets
from bapo.errors import UserError


def user_errors(function):
    """Wrong input ends Snakemake with one sentence; any exception would bring its traceback along."""

    def checked(*arguments, **keywords):
        try:
            return function(*arguments, **keywords)
        except UserError as error:
            sys.exit(f"error: {error}")

    return checked


@user_errors
def hold_working_directory():
    """One Snakemake at a time. The kernel's lock ends with the process, so kill -9 leaves nothing to clean up."""
    HELD.enter_context(locked(Path(".snakemake", "bapo"), patience=0))


def unlimited_starts():
    """Snakemake's limit of 100 job starts a second has it look at all waiting jobs once a second for every job that has
    ended, until it does little else (9.27). Nothing here starts jobs that fast."""
    workflow.scheduler.job_rate_limiter = None


HELD = ExitStack()  # until the process ends
gc.set_threshold(
    200_000, 50, 100
)  # a DAG's millions of objects all stay: looking for garbage takes a tenth of the time
SETTINGS = user_errors(read_settings)(config)
SCALE = Path(SETTINGS.results, user_errors(SETTINGS.folder)())
DATA = SCALE / "{task}" / "data"
BASE = SCALE / "{task}" / "{model}" / "base"
RUN = SCALE / "{task}" / "{model}" / "{method}" / "seed{seed}"
LOGS = SCALE / "logs"
TABLES = SCALE / "tables"
FIGURES = SCALE / "figures"


wildcard_constraints:
    task=r"[^/]+",
    model=r"[^/]+",
    method=r"[^/]+",
    seed=r"\d+",


study_of = cache(user_errors(lambda name: studies.study_of(name, SETTINGS)))


@cache
@user_errors
def run_configuration(task, model="", method=""):
    return configuration.run_config(SETTINGS.scale, task, model, method, 0, SETTINGS.overrides_of(method))


def configuration_of(wildcards):
    """The configuration of a job: of a run, or of what many runs build on. Good until the next is asked for: the seeds
    of a method share one object, as copies take longer than all else that is done with them."""
    names = dict(wildcards.items())
    seed = int(names.pop("seed", 0))
    config = run_configuration(**names)
    config.seed = seed
    return config


# The identity of a job is a parameter, so a job is run again when, and only when, its meaning changes: a comment, a
# title, `tracking` and the place of the results are not part of it.
def data_identity(wildcards):
    return identity.data_identity(configuration_of(wildcards))


def base_identity(wildcards):
    return identity.base_identity(configuration_of(wildcards))


def train_identity(wildcards):
    return identity.train_identity(configuration_of(wildcards))


def evaluation_identity(wildcards):
    return identity.evaluation_identity(configuration_of(wildcards))


def curve_identity(wildcards):
    return identity.curve_identity(configuration_of(wildcards))


def study_identity(wildcards):
    content = user_errors(studies.study_content)(study_of(wildcards.study), SETTINGS)
    return identity.digest(content)


def analysis_identity(wildcards):
    """Tables and figures take seconds: they are made again when any file of the analysis changes."""
    root = Path(workflow.basedir)
    files = sorted(p for p in (root / "analysis").rglob("*") if p.suffix in (".py", ".yaml"))
    files += [
        root / "bapo" / name for name in ("store/files.py", "seeds.py", "algorithm/theory.py")
    ]  # what it computes with
    return identity.digest([p.read_text(encoding="utf-8") for p in files])


def report_identity(wildcards):
    """The page is made again when any file of the analysis changes, its own templates among them, and when
    there is more or other to show that it does not ask for."""
    files = sorted(Path(workflow.basedir, "analysis", "report", "templates").iterdir())
    beyond = [
        p for table in map(Path, comparison_files(wildcards)) for p in sorted(table.parent.glob(f"{table.stem}*"))
    ]
    beyond += [p for parts in provenance.robustness_reports(SCALE) for p in parts]
    texts = [sha256(p) for p in (*files, *beyond)]
    return identity.digest([analysis_identity(wildcards), *texts])


# Snakemake leaves a parameter function that takes `output` out of the comparison with the last run: these say how a
# job is called, not what it means.
def python(*words):
    """`python -m WORDS` by the interpreter that runs Snakemake."""
    return lambda wildcards, output: shlex.join([sys.executable, "-m", *words])


def bapo(command, *options):
    """`python -m bapo COMMAND` with the overrides that name the job's cell."""

    def call(wildcards, output):
        given = dict(wildcards.items())
        names = [f"scale={SETTINGS.scale}", *(f"{key}={value}" for key, value in given.items())]
        names += SETTINGS.overrides_of(given.get("method", ""))
        return python("bapo", command, *options, *names)(wildcards, output)

    return call


def run_that_sets_the_budget(wildcards):
    """The run of another method after whose rollouts, updates or operations this one ends; mostly none."""
    folder = budgets.like_directory(configuration_of(wildcards))
    return [] if folder is None else [f"{folder}/summary.json"]


def base_threads(wildcards):
    return configuration_of(wildcards).base.threads


def threads_of(wildcards):
    return configuration_of(wildcards).threads


# A second attempt (`retries` of profiles/slurm) asks for more: the first may have lacked memory or time.
def memory(wildcards, attempt=1):
    """Megabytes of a job: 1.5 GB holds the laptop's models, Ray and verl around one take 5, the paper's need the node."""
    config = configuration_of(wildcards)
    if config.engine == "torch":
        return attempt * (16_000 if config.device == "cuda" else 1500)
    if not gpus(wildcards):
        return attempt * 5000
    return attempt * (64_000 if config.model.kind == "scratch" else 200_000)


def base_memory(wildcards, attempt=1):
    """A pretrained model is noted only."""
    return memory(wildcards, attempt) if configuration_of(wildcards).model.kind == "scratch" else attempt * 4000


def little_memory(wildcards, attempt=1):
    """Of jobs without a model."""
    return attempt * 1500


def minutes(wildcards, attempt=1):
    """Time that a cluster is asked for. The paper's longest runs take weeks; one that is cut goes on where it stopped."""
    config = configuration_of(wildcards)
    if config.model.kind == "pretrained":
        return attempt * 3 * 24 * 60
    return attempt * (24 * 60 if config.device == "cuda" else 60)


def evaluation_minutes(wildcards, attempt=1):
    """As above; no evaluation of the paper's takes more than hours."""
    return min(minutes(wildcards, attempt), attempt * 24 * 60)


def one_machine(needed):
    """The GPUs of a job lie in one machine; jobs without any say nothing, so that groups of them may be formed."""
    return lambda wildcards: 1 if needed(wildcards) else None


@cache
def grouped():
    """Whether a cluster's scheduler sees several jobs as one: where the profile says how many (group-components).

    Inside such a job Snakemake has forgotten it, and would run the parts of the group one after the other.
    """
    if workflow.remote_exec:
        parts = {name: 10**6 for name in ("start", "runs", "slots", "analysis")}
        workflow.group_settings = dataclasses.replace(workflow.group_settings, group_components=parts)
    return bool(workflow.group_settings.group_components)


def together(name, needed=lambda wildcards: 0):
    """Where a cluster runs a job: with others of the group ``name``, or alone on its own GPUs."""
    return lambda wildcards: name if grouped() and not needed(wildcards) else None


def gpus(wildcards):
    """Of one machine."""
    config = configuration_of(wildcards)
    if config.engine == "torch":
        return int(config.device == "cuda")
    return config.verl.get("gpus_per_node", 8) if on_gpus(config) else 0


def base_gpus(wildcards):
    config = configuration_of(wildcards)
    return int(config.device == "cuda" and config.model.kind == "scratch")


def evaluation_gpus(wildcards):
    """A server has its own GPUs; vLLM needs some here."""
    config = configuration_of(wildcards)
    backend = config.evaluation.backend
    if backend == "torch":
        return int(config.device == "cuda")
    return config.evaluation.vllm.tensor_parallel_size if backend == "vllm" else 0


def training_priority(wildcards):
    """Longest first, so that no core idles at the end: DAPO generates up to four times as much."""
    return 20 if configuration_of(wildcards).method.algorithm == "dapo" else 10


def runs_and_evaluations(name):
    """Every run of a study, every model it starts from, and their evaluations."""

    def files(wildcards):
        study = study_of(name)
        places = [str(RUN).format(**vars(cell)) for cell in study.cells]
        places += [str(BASE).format(task=task, model=model) for task, model in study.models]
        return [f"{place}/{file}" for place in places for file in ("summary.json", "eval/summary.json")]

    return files


def curves(name):
    """The kept checkpoints' evaluations that a study names (`curves` in its file): for test curves and the choice."""

    def files(wildcards):
        study = study_of(name)
        cells = [cell for cell in study.cells if cell.method in study.curves]
        return [f"{RUN}/curve/summary.json".format(**vars(cell)) for cell in cells]

    return files


#: figure -> the study whose runs it shows
FIGURE_STUDIES = user_errors(studies.figures)(SETTINGS.scale)


def figures_of(*names, curves=True):
    """The files of the figures of some studies; without ``curves`` those that the runs alone are enough for."""
    return [
        FIGURES / f"{figure}.{kind}"
        for figure, study in FIGURE_STUDIES.items()
        for kind in ("pdf", "png", "svg", "csv")
        if study in names and (curves or not targets.shows_curves(figure))
    ]


def figure_files(wildcards):
    """The files of all figures."""
    return figures_of(*FIGURE_STUDIES.values())


def runs_of_figure(wildcards):
    """All that it shows."""
    name = FIGURE_STUDIES[wildcards.figure]
    return runs_and_evaluations(name)(wildcards) + (
        curves(name)(wildcards) if targets.shows_curves(wildcards.figure) else []
    )


def table_files(wildcards):
    """The paper's tables, and two of its kind."""
    return [TABLES / f"{name}.md" for name in targets.TABLES]


#: studies beyond the paper's own tables and figures
BEYOND = user_errors(studies.at_scale)(targets.BEYOND, SETTINGS.scale)


def comparison_files(wildcards):
    """A table of every study beyond the paper's."""
    return [TABLES / targets.comparison_file(name) for name in BEYOND]


def study_of_figure(wildcards):
    return str(SCALE / "studies" / f"{FIGURE_STUDIES[wildcards.figure]}.json")


def report_files(wildcards):
    """What the page shows is made first, all of the paper's. Of the studies beyond it and of the sweeps the page shows
    what there is: it must not start one."""
    return [*table_files(wildcards), *figure_files(wildcards), SCALE / "claims.json"]


def closing_message():
    """What there is to look at."""
    places = {
        "Table 1": TABLES / "table1.md",
        "Figures": FIGURES,
        "Claims": SCALE / "claims.md",
        "Report": SCALE / "report.html",
    }
    return "\n".join(f"{name}: {place}" for name, place in places.items() if place.exists())


def failure_message(log):
    """Which log to read: Snakemake's own log names that of the job which failed; the last, as a retry may have helped."""
    found = re.findall(r"^ {4}log: (\S+)", "".join(Path(n).read_text(encoding="utf-8") for n in log), re.MULTILINE)
    where = f"{found[-1]} says why" if found else "the first error above says why"
    return f"Not finished: {where}. The same command goes on where this one stopped."
