# What the rules share: the checked settings, the patterns of files, and what each job is called with.
#
# Snakemake has no public way for six things, so these reach into it, and each says why: require_targets,
# require_own_results, unlimited_starts, limit_gpus, check_gpus and grouped here; progress.smk reads the jobs of its DAG
# and replaces its log's handler.

import atexit
import dataclasses
import gc
import os
import re
import shlex
import shutil
import sys
from contextlib import ExitStack
from difflib import get_close_matches
from functools import cache
from functools import wraps
from pathlib import Path

from snakemake_interface_executor_plugins.settings import DeploymentMethod

from analysis import products
from bapo import describe
from bapo.errors import UserError
from bapo.experiments import budgets
from bapo.experiments import compose as configuration
from bapo.experiments import identity
from bapo.experiments import places
from bapo.experiments import studies
from bapo.experiments.settings import read_settings
from bapo.experiments.settings import settings_of_project
from bapo.gpu import devices
from bapo.plan import resources
from bapo.store.files import read_json
from bapo.sweeps import files as sweep_files


def user_errors(function):
    """Let wrong input end Snakemake with one sentence; any exception would bring its traceback along."""

    @wraps(function)  # Snakemake passes what the signature names
    def checked(*arguments, **keywords):
        try:
            return function(*arguments, **keywords)
        except (UserError, OSError) as error:  # Python's errors of files name the file and the reason
            sys.exit(f"error: {error}")

    return checked


@user_errors
def hold_folders():
    """Let one Snakemake work in this folder and in the results, where another would delete what a job just wrote.

    The kernel's lock ends with the process, so kill -9 leaves nothing to clean up.
    """
    from bapo.store.lock import locked

    for folder in (Path(".snakemake", "bapo"), SCALE):
        HELD.enter_context(locked(folder, patience=0))


@user_errors
def check_claims():
    """Let a wrong entry of the ledger end the workflow before its runs instead of after them."""
    from analysis.claims import entries

    entries.read()


@user_errors
def require_targets():
    """Refuse a target that nothing makes, and name the nearest. Rules of a project may follow those of the suite."""
    own, targets = places.own("study"), workflow.dag_settings.targets
    if own and (not targets or "all" in targets) and not products.own_studies(SETTINGS.scale):
        scales = {scale for name in own for scale in studies.study_file(name).scales}
        raise UserError(
            f"scale={SETTINGS.scale}: no study of this project has it; they have {', '.join(sorted(scales))}"
        )
    for target in targets:
        files = {target, os.path.relpath(target or ".")}
        named = workflow.is_rule(target) and not workflow.get_rule(target).has_wildcards()
        if target and (named or any(made.is_producer(file) for made in workflow.rules for file in files)):
            continue
        if with_number := [name for name in products.FIGURES if name.startswith(f"{target}_") and name in TARGETS]:
            study = study_of_product(with_number[0])
            cure = f"name {study}, or {' '.join(with_number)} alone"
            raise UserError(f"{target}: is drawn from the runs of {study}; {cure}")
        close = get_close_matches(target, [rule.name for rule in workflow.rules if not rule.has_wildcards()], 1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise UserError(f"nothing makes '{target}'{hint}; docs/running.md lists the targets")


def before(function, check):
    """Return a function of Snakemake's that begins with a check."""
    return lambda *arguments, **keywords: (check(), function(*arguments, **keywords))[1]


def after(function, check):
    """Return a function of Snakemake's that ends with a check."""
    return lambda *arguments, **keywords: (function(*arguments, **keywords), check())[0]


workflow._prepare_dag = before(workflow._prepare_dag, require_targets)


def written_identity(job, summary):
    """Return the identity that a job would write into its summary."""
    names, _ = cell_of(job.wildcards)
    if job.rule.name in ("data", "data_of_model"):
        return identity.data_identity(run_configuration(**names))
    if job.rule.name == "base":
        return identity.base_identity(run_configuration(**names))
    config = configuration_of(job.wildcards)
    if job.rule.name == "train":
        limit = summary.get("budget", {}).get("amount")
        return budgets.limited(run_identity(job.wildcards), config, limit)
    return identity.identity_of_evaluation(config, summary.get("checkpoint_sha256") or summary.get("checkpoint", ""))


@user_errors
def require_own_results():
    """Refuse finished results of other settings. Snakemake compares the settings with its record of a job, which lies in
    the folder that it was called in: another checkout, or a results folder that was moved, has none."""
    made = {"data", "data_of_model", "base", "train", "evaluate", "evaluate_base"}
    for job in workflow.dag.jobs if workflow.is_main_process and not workflow.touch else ():
        if job.rule.name not in made or workflow.dag.needrun(job) or workflow.persistence.has_metadata(job):
            continue
        path = Path(job.output[0])
        if not path.exists():
            continue
        summary = read_json(path)
        if "evidence" not in summary and summary.get("identity") != written_identity(job, summary):
            cure = "name another results, or delete this file, and it is made again"
            raise UserError(f"{path}: made with other settings than these, or by another version; {cure}")


workflow._build_dag = after(workflow._build_dag, require_own_results)


def start_warm_process():
    """Start the process that jobs are forked from; it ends when this one does, for whatever reason."""
    if not warm():
        return
    from bapo.warm import launch

    if process := launch.start():
        HELD.enter_context(process)


def unlimited_starts():
    """Lift Snakemake's limit of 100 job starts a second, which nothing here reaches. With it Snakemake (9.27) looks at
    all waiting jobs once a second for every job that has ended, until it does little else."""
    workflow.scheduler.job_rate_limiter = None


def limit_gpus():
    """Limit the GPUs of the jobs that run at one time to the visible ones. On a cluster its scheduler sees to it.

    Each job then takes devices of its own (bapo/gpu/devices.py), also inside an allocation.
    """
    if not workflow.is_main_process or workflow.nodes is not None:  # nodes are the --jobs of a cluster
        return
    there, asked = len(devices.visible()), workflow.global_resources.get("gpu").value  # of --resources, or None
    if there:  # without one, check_gpus lets no job start that asks for one
        workflow.global_resources["gpu"] = there if asked is None else min(there, asked)


@user_errors
def check_gpus():
    """Refuse a job that this machine has too few GPUs for, or an image that is not there, before any run begins."""
    if not workflow.is_main_process:
        return
    for word in GPU_PYTHON:  # a cluster's nodes, which share this folder, start it days later
        if word.endswith(".sif") and not Path(word).exists():
            cure = "build it with apptainer build containers/bapo.sif containers/bapo.def, or name its place"
            raise UserError(
                f"--config gpu_python={shlex.join(GPU_PYTHON)}: there is no {Path(word).absolute()}; {cure}"
            )
    if not workflow.local_exec:
        return
    # job.resources is cut down to the limit
    asked = [(job, job.rule.resources["gpu"]) for job in workflow.dag.needrun_jobs() if "gpu" in job.rule.resources]
    most = max((gpu.evaluate(job.wildcards, attempt=1).value for job, gpu in asked), default=0)
    devices.require(most, len(devices.visible()))
    if most and not shutil.which(GPU_PYTHON[0]):
        raise UserError(f"--config gpu_python={shlex.join(GPU_PYTHON)}: there is no {GPU_PYTHON[0]} here")


HELD = ExitStack()  # it is closed when the process ends
# a DAG's millions of objects all stay: looking for garbage takes a tenth of the time
gc.set_threshold(200_000, 50, 100)

# in a project `bapo.yaml` holds where --config says nothing
SETTINGS = user_errors(lambda: read_settings({**settings_of_project(), **config}))()
#: what jobs run by: the image's Python where Snakemake takes one, else Snakemake's own; jobs on GPUs may have another
IN_IMAGE = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
PYTHON = ["python" if IN_IMAGE else sys.executable]
GPU_PYTHON = [*SETTINGS.gpu_python] or PYTHON
SCALE = user_errors(lambda: SETTINGS.home)()
# Snakemake would write settings into a job's command as Python does, and a shell would run their `$(...)`
workflow.config_settings.config_args = [shlex.quote(word) for word in workflow.config_settings.config_args]
limit_gpus()
DATA = places.data_folder(SCALE, "{task}")
DATA_OF_MODEL = places.data_folder(SCALE, "{task}", "{model}")
BASE = places.base_folder(SCALE, "{task}", "{model}")
RUN = places.run_folder(SCALE, "{task}", "{model}", "{method}", "{seed}")
LOGS = SCALE / "logs"
SWEEPS = SCALE / "sweeps"
SWEEPS_HERE = [*user_errors(sweep_files.at_scale)(SETTINGS.scale)]


# Every rule runs in the environment that Snakemake runs in (pyproject.toml, environment.yml), and jobs on GPUs by
# `gpu_python` where that is set. With --software-deployment-method apptainer all of them run in the image that
# containers/bapo.def makes: docs/installing.md. Snakemake refuses an image below a folder with a space, or takes
# braces for a wildcard, even where no image is needed.
IMAGE = str(Path(workflow.basedir, "containers", "bapo.sif"))
if IN_IMAGE or not re.search(r"[\s{}]", IMAGE):

    container: IMAGE


wildcard_constraints:
    task=r"[^/]+",
    model=r"[^/]+",
    method=r"[^/]+",
    seed=r"\d+",


@cache
@user_errors
def study_of(name):
    """Return a study with the methods and seeds asked for. What it wrote down is checked by all of its own."""
    study = studies.study_of(name, SETTINGS)
    if products.GATES in study.file.tables or study.file.gates or study.file.decisions:
        check_gates(name, SETTINGS.model_copy(update={"methods": (), "seeds": ()}))
    return study


def check_gates(name, settings):
    """Let rules that the runs of a study could not be judged by end the workflow before these instead of after."""
    if not workflow.is_main_process:
        return
    from analysis.beyond import gates

    study = studies.study_of(name, settings)
    benchmarks = {cell.task: run_configuration(cell.task, cell.model).evaluation.benchmarks for cell in study.cells}
    gates.check(study, [*benchmarks.values()], chosen=bool(settings.methods))
    if missing := describe.missing_runs(study, settings.methods):
        cure = f"ask for its runs without seeds=..., or for runs_{name} alone"
        raise UserError(f"seeds=...: the rules of {name} are about all its runs, such as {missing[0]}; {cure}")


@cache
@user_errors
def sweep_of(name):
    return sweep_files.load(name, SETTINGS)


@cache
@user_errors
def run_configuration(task, model="", method=""):
    return configuration.run_config(SETTINGS.scale, task, model, method, 0, SETTINGS.overrides_of(method))


def cell_of(wildcards):
    """Return the names that a job's configuration depends on (task, model, method), and the seed."""
    names = dict(wildcards.items())
    if "sweep" in names:
        sweep = sweep_of(names["sweep"])
        names = dict(vars(sweep.cell(sweep.file.method, sweep.seeds[0])))
    return names, int(names.pop("seed", 0))


def configuration_of(wildcards):
    """Return the configuration of a job: of a run, of what many runs build on, or of a sweep's runs. It is good until
    the next is asked for: a method's seeds share one object, as copies take longer than all else done with them."""
    names, seed = cell_of(wildcards)
    config = run_configuration(**names)
    config.seed = seed
    return config


def of_job(function):
    """Adapt a function of a configuration, whatever its seed, to the wildcards that a rule passes."""
    checked = user_errors(function)  # an identity reads the files of a project's task
    once = cache(lambda **names: checked(run_configuration(**names)))
    return lambda wildcards: once(**cell_of(wildcards)[0])


# The identity of a job is a parameter, so a job is run again when, and only when, its meaning changes: a comment, a
# title, `tracking` and the place of the results are not part of it.
def study_identity(wildcards):
    return identity.digest(user_errors(describe.study_content)(study_of(wildcards.study), SETTINGS, titles=False))


def run_identity(wildcards):
    """Return the identity of a run. The seeds of a method differ in nothing else, which is asked for once."""
    names, seed = cell_of(wildcards)
    return identity.identity_of_seed(content_of_run(**names), seed)


@cache
@user_errors
def content_of_run(**names):
    return identity.train_content(run_configuration(**names))


@user_errors
def sweep_identity(wildcards):
    """Return the identity of a sweep: slots are run again when it has changed, and not for further trials."""
    from bapo.sweeps import study

    return study.identity(sweep_of(wildcards.sweep), SETTINGS)


@user_errors
def trials_identity(wildcards):
    """Return the identity of all that trials.json holds of a sweep, which has its titles and reference, too."""
    from bapo.sweeps import study

    return identity.digest([sweep_identity(wildcards), study.description(sweep_of(wildcards.sweep), SETTINGS)])


# Snakemake leaves a parameter function that takes `output` out of the comparison with the last run: these say how a
# job is called, not what it means.
def python(*words, needed=None):
    """Return what says `python -m WORDS`: in a child of the warm process if there is one, or the Python for GPUs."""

    def call(wildcards, output, threads):
        if on_gpus(wildcards, needed):
            start = GPU_PYTHON
        else:
            start = own_python() if threads == 1 else PYTHON
        return shlex.join([*start, "-m", *words])

    return call


@cache
def warm():
    """Return whether jobs of one thread are forked from a warm process: where this Snakemake runs them itself. verl has
    processes of its own."""
    torch = (SETTINGS.engine or SETTINGS.usual_engine) == "torch"
    here = workflow.is_main_process and workflow.local_exec and not workflow.dryrun
    deployed = workflow.deployment_settings.deployment_method
    if not (SETTINGS.warm and torch and here and not deployed):
        return False
    from bapo.warm import launch

    return launch.supported()


def own_python():
    """Return what starts Python here: in a child of the warm process where there is one."""
    if not warm():
        return PYTHON
    from bapo.warm import launch

    return launch.command()


def bapo(command, *options, needed=None):
    """Return what says `python -m bapo COMMAND` with the overrides that name the job's cell."""

    def call(wildcards, output, threads):
        cell = dict(wildcards.items())
        names = [f"scale={SETTINGS.scale}", *(f"{key}={value}" for key, value in cell.items())]
        names += SETTINGS.overrides_of(cell.get("method", ""))
        return python("bapo", command, *options, *names, needed=needed)(wildcards, output, threads)

    return call


@cache
def taken(needed, attempt, **names):
    """Ask a function of bapo/plan/resources.py what a job needs, whatever its seed."""
    return needed(run_configuration(**names), attempt)


def machine(needed):
    """Give what a job needs as `resources` of a rule."""

    def part(name):
        return lambda wildcards, attempt=1: taken(needed, attempt, **cell_of(wildcards)[0])[name]

    return {name: part(name) for name in ("mem_mb", "runtime", "gpu", "nodes")}


def on_gpus(wildcards, needed):
    """Return how many GPUs a job needs."""
    return needed and taken(needed, 1, **cell_of(wildcards)[0])["gpu"]


@cache
def grouped():
    """Return whether a cluster's scheduler sees several jobs as one: where the profile has group-components.

    Inside such a job Snakemake has forgotten it, and would run the parts of the group one after the other.
    """
    if workflow.remote_exec:
        parts = {name: 10**6 for name in ("start", "runs", "slots", "analysis")}
        workflow.group_settings = dataclasses.replace(workflow.group_settings, group_components=parts)
    return bool(workflow.group_settings.group_components)


def together(name, needed=None):
    """Say where a cluster runs a job: with others of the group ``name``, whose times add up, or alone on its own GPUs
    or where it asks for a day."""

    def alone(wildcards):
        asked = taken(needed, 1, **cell_of(wildcards)[0]) if needed else {}
        return asked and (asked["gpu"] or asked["runtime"] >= resources.DAY)

    return lambda wildcards: name if grouped() and not alone(wildcards) else None


@of_job
def problems(config):
    """Name the problems that a job reads: the task's, or those of a model whose variant changes them."""
    task, model = config.task.name, config.model.name
    if not config.data.of_model:  # two models would make each other's problems again, in one folder
        usual = identity.data_identity(run_configuration(task))
        if identity.data_identity(config) != usual:
            files = [path for path, values in map(places.variants().get, model.split("+")[1:]) if "data" in values]
            file = [*files, places.file_of("setting", f"{SETTINGS.scale}_{task}")][0]
            cure = "write data.of_model: true beside what changes them, which puts them into the model's folder"
            raise UserError(f"{file}: model={model}: has other problems than {task} has here; {cure}")
    return str(places.data_directory(config) / "summary.json")


@user_errors
def run_that_sets_the_budget(wildcards):
    """Name the run of another method after whose rollouts, updates or operations this one ends; mostly none."""
    folder = budgets.like_directory(configuration_of(wildcards))
    return [] if folder is None else [f"{folder}/summary.json"]


@user_errors
def sweep_runs(wildcards):
    """List the finished runs that a sweep reuses, and those of its reference."""
    cells = sweep_of(wildcards.sweep).reused_cells()
    return [f"{RUN}/summary.json".format(**vars(cell)) for cell in cells]


def sweep_start(wildcards):
    sweep = sweep_of(wildcards.sweep)
    return [f"{place}/summary.json".format(task=sweep.task, model=sweep.model) for place in (DATA, BASE)]


@user_errors
def sweep_slots(wildcards):
    from bapo.sweeps import study

    return study.slot_files(sweep_of(wildcards.sweep), SETTINGS)
