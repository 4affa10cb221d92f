"""The Snakefile, asked through Snakemake itself: which jobs a target needs, and which an edit brings back."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.configs import edit
from support.paths import ROOT
from support.studies import PAPER
from support.workflow import dry_run, environment, snakemake

from analysis.products import COMPARISON, PER_STUDY, drawn_by, figures_of
from analysis.products import FIGURES as DRAWN
from bapo.experiments import identity, places
from bapo.experiments.compose import compose_config
from bapo.experiments.places import base_directory, data_directory, run_directory
from bapo.experiments.studies import load_study
from bapo.store.files import read_json, write_json
from bapo.warm import launch

#: the figures that Table 1's runs alone are enough for; those of its test curves take further evaluations
FIGURES = [name for name in load_study("table1", "laptop").file.figures if not DRAWN[name].curves]


class Workflow:
    """Snakemake in a folder of its own, on a copy of ``experiments/`` that a test may edit."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.experiments = folder, folder / "experiments"
        shutil.copytree(places.EXPERIMENTS, self.experiments)

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return snakemake(self.folder, *words, BAPO_EXPERIMENTS=str(self.experiments))

    def dry_run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return dry_run(self.folder, *words, BAPO_EXPERIMENTS=str(self.experiments))

    def jobs(self, *words: str) -> list[str]:
        return jobs(self.dry_run(*words))


def jobs(result: subprocess.CompletedProcess[str]) -> list[str]:
    """What a dry run would do: the message of each job, and the name of a rule that has none."""
    assert result.returncode == 0, result.stderr
    assert "profiles/default for setting default" in result.stderr  # without being asked for
    return re.findall(r"^(?:Job \d+: |rule )(.+?):?$", result.stdout, re.MULTILINE)


@pytest.fixture
def workflow(tmp_path: Path) -> Workflow:
    return Workflow(tmp_path)


#: Snakemake in a process of its own, which writes down what it imported
LOADED = """
import sys
from snakemake.cli import main
try:
    main()
finally:
    print(*(name for name in sys.modules if name.partition(".")[0] in ("bapo", "analysis")), file=open("loaded", "w"))
"""


def test_the_laptops_table_is_81_runs_and_84_evaluations_told_from_files_alone(workflow: Workflow) -> None:
    """Three tasks, each with a base model, nine methods and three seeds.

    The dry run imports no task, grader, engine, evaluation, lock or crate, and of the analysis the list of products.
    """
    command = [sys.executable, "-c", LOADED, "-s", str(ROOT / "Snakefile"), "-n", "--cores", "1", "table1"]
    found = jobs(subprocess.run(command, cwd=workflow.folder, env=environment(), capture_output=True, text=True))
    made = {"Table": 1, "Figure": len(FIGURES), "table1": 1, "Runs": 1, "First": 1}
    made |= {"Problems": 3, "Base": 3, "Train": 81, "Evaluate": 84}
    assert dict(Counter(re.split(r"[: ]", job)[0] for job in found)) == made
    assert len(set(found)) == len(found)
    loaded = (workflow.folder / "loaded").read_text().split()
    assert {name for name in loaded if name.startswith("analysis")} == {"analysis", "analysis.products"}
    rooms = {name.split(".")[1] for name in loaded if "." in name}
    assert not rooms & {"tasks", "graders", "engines", "evaluation"} and "bapo.store.lock" not in loaded


def test_every_table_that_a_study_names_has_a_rule(workflow: Workflow) -> None:
    tables = {name: load_study(name, "laptop").file.tables for name in ("table1_seeds", "prompts", "asymptote")}
    assert {name for of in tables.values() for name in of} == set(PER_STUDY)
    found = workflow.jobs(*tables)
    for study, names in tables.items():
        wanted = {f"Table: {name} of {study}" for name in names if name != COMPARISON} | {f"Comparison: {study}"}
        assert wanted <= set(found)


def test_a_model_whose_variant_changes_the_problems_has_its_own(workflow: Workflow) -> None:
    found = workflow.jobs("angles", "--config", "scale=smoke")
    problems = [f"Problems: qwen2.5-vl-325k+angles_{n}, geometry" for n in (5, 6)]
    assert sorted(job for job in found if job.startswith("Problems")) == problems
    # from each of the two the base model and four runs, all evaluated
    assert sum(job.startswith(("Base", "Train", "Evaluate")) for job in found) == 2 * 2 * (1 + 4)


SMOKE_COUNTDOWN = "setting/smoke_countdown.yaml"
WITH_SEED = "models: {qwen2-25m: {data: {seed: 3}}}\n\nprobe: {"
OF_MODEL = WITH_SEED.replace("seed", "of_model: true, seed")
ANGLES, HELD_OUT = "qwen2.5-vl-325k+angles_6", "data.generator.held_out=angles_9"


@pytest.mark.parametrize(
    ("file", "old", "new", "words", "said"),
    [
        ("variants.yaml", "s 6, data: {of_model: true, ", "s 6, data: {", "angles", f"variants.yaml: model={ANGLES}: "),
        (SMOKE_COUNTDOWN, "probe: {", WITH_SEED, "runs_reuse", "smoke_countdown.yaml: model=qwen2-25m: "),
        (SMOKE_COUNTDOWN, "probe: {", OF_MODEL, "runs_reuse", ""),
        ("study/angles.yaml", "name: a", "name: a", f'angles set=["{HELD_OUT}"]', f"{HELD_OUT}: the variant 'angles_"),
    ],
)
def test_each_of_two_sets_of_problems_has_its_folder(
    workflow: Workflow, file: str, old: str, new: str, words: str, said: str
) -> None:
    edit(workflow.experiments / file, old, new)
    study = workflow.experiments / "study" / "reuse.yaml"
    study.write_text(study.read_text(encoding="utf-8").replace("[qwen2-112k]", "[qwen2-112k, qwen2-25m]"))
    target, *settings = words.split()
    result = workflow.dry_run(target, "--config", "scale=smoke", *settings)
    assert (result.returncode == 0) == (not said) and said in result.stderr, result.stderr


def papers_jobs(study: str) -> set[str]:
    """Everything that the runs of a study at paper scale take, with its evaluations of every kept checkpoint."""
    jobs, curves = set(), load_study(study, "paper").curves
    for task, model, methods in PAPER[study]:
        jobs |= {f"Problems: {task}", f"Base model: {model}, {task}", f"Evaluate: {model} before training, {task}"}
        jobs |= {f"{kind}: {method}, seed 42, {model}, {task}" for kind in ("Train", "Evaluate") for method in methods}
        jobs |= {f"Curve: {method}, seed 42, {model}, {task}" for method in methods if method in curves}
    return jobs


def test_the_papers_dry_run_lists_exactly_the_runs_of_its_figures(workflow: Workflow) -> None:
    drawn = drawn_by(figures_of, "paper")
    products = {"figures", *(f"Figure: {name}" for name in drawn), *(f"Runs of {name}" for name in drawn.values())}
    wanted = products.union(*map(papers_jobs, drawn.values()))
    assert sorted(workflow.jobs("figures", "--config", "scale=paper")) == sorted(wanted)


def test_every_job_is_called_with_its_cell_and_the_settings(workflow: Workflow) -> None:
    overrides = 'set=["train.steps=7","method.v=2"]'  # a method's setting is for its own jobs
    settings = ("scale=smoke", "methods=bapo", "seeds=[4]", "tracking=none", overrides, "results=out")
    result = workflow.dry_run("-p", "runs_figure6", "--config", *settings)
    calls = [line for line in result.stdout.splitlines() if " -m bapo " in line]
    shared = "tracking=none 'paths.results=\"out\"' train.steps=7"
    log = "2>&1 | tee -i out/smoke/logs/"
    wanted = {
        f"data scale=smoke task=countdown {shared} {log}data/countdown.log",
        f"base scale=smoke task=countdown model=qwen2-112k {shared} {log}base/countdown/qwen2-112k.log",
        f"train scale=smoke task=countdown model=qwen2-112k method=bapo seed=4 {shared} method.v=2 {log}"
        "train/countdown/qwen2-112k/bapo/seed4.log",
        f"evaluate scale=smoke task=countdown model=qwen2-112k method=bapo seed=4 {shared} method.v=2 {log}"
        "evaluate/countdown/qwen2-112k/bapo/seed4.log",
        f"evaluate --base scale=smoke task=countdown model=qwen2-112k {shared} {log}"
        "evaluate/countdown/qwen2-112k/base.log",
    }
    assert {call.partition(" -m bapo ")[2] for call in calls} == wanted
    assert all(sys.executable in call for call in calls)


@pytest.mark.system
@pytest.mark.skipif(not launch.supported(), reason="Linux without a GPU only")
def test_jobs_are_children_of_the_warm_process_unless_asked_not_to_be(workflow: Workflow) -> None:
    """The same file either way; that nothing is left behind: test_end_to_end.py."""
    file, texts = "results/smoke/studies/table1.json", []
    for setting, client in (("warm=true", True), ("warm=false", False)):
        result = workflow("--cores", "1", "-p", file, "--forcerun", "study", "--config", "scale=smoke", setting)
        assert result.returncode == 0, result.stderr
        assert "the job starts its own Python" not in result.stderr
        assert ("warm/client.py" in result.stdout + result.stderr) is client
        texts.append((workflow.folder / file).read_text())
    assert texts[0] == texts[1]


SMOKE = ("table1", "--config", "scale=smoke", "methods=[grpo,bapo,bapo_without_x2]", "seeds=[1]")
PRODUCTS = {"First look", "Table: table1", "table1", *(f"Figure: {name}" for name in FIGURES)}


#: (model, task) of the smoke scale
PLACES = list(dict.fromkeys(f"{cell.model}, {cell.task}" for cell in load_study("table1", "smoke").cells))


def jobs_of(*methods: str, places: Sequence[str] = PLACES) -> set[str]:
    return {
        f"{kind}: {method}, seed 1, {place}" for method in methods for kind in ("Train", "Evaluate") for place in places
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """A workflow whose outputs exist, as :func:`make_up` leaves them."""
    workflow = Workflow(tmp_path_factory.mktemp("finished"))
    # problems, study, bases, runs, evaluations, first look, table, figures
    assert make_up(workflow, *SMOKE) == 3 + 1 + 3 + 9 + 12 + 2 + 3 + 4 * len(FIGURES)
    return workflow


def make_up(workflow: Workflow, *words: str) -> int:
    """Something in place of every output, with the metadata that Snakemake itself records (by --touch); how many."""
    listing = workflow.dry_run("--summary", *words)
    outputs = [line.split("\t")[0] for line in listing.stdout.splitlines() if line.startswith("results/")]
    for output in outputs:
        path = workflow.folder / output
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(output, encoding="utf-8")
    touched = workflow("--touch", "--forceall", "--cores", "1", *words)
    assert touched.returncode == 0, touched.stderr
    return len(outputs)


@pytest.fixture
def undisturbed(finished: Workflow, tmp_path: Path) -> Workflow:
    """``finished`` as it was before any edit of an earlier test."""
    copy = Workflow.__new__(Workflow)
    copy.folder, copy.experiments = tmp_path / "copy", tmp_path / "copy" / "experiments"
    sockets = shutil.ignore_patterns("socket")  # of the warm process
    shutil.copytree(finished.folder, copy.folder, copy_function=shutil.copy2, ignore=sockets)
    return copy


@pytest.mark.system
def test_what_has_no_meaning_brings_nothing_back(undisturbed: Workflow) -> None:
    edit(
        undisturbed.experiments / "variants.yaml",
        "# What a method or a model may",
        "# Changed: What a method or a model may",
    )
    edit(undisturbed.experiments / "setting/laptop_countdown.yaml", "# B\n", "# the batch\n")
    (undisturbed.folder / "README.md").write_text("a note\n", encoding="utf-8")
    assert undisturbed.jobs(*SMOKE, "tracking=none", "device=cpu") == []


COUNTDOWN = jobs_of("grpo", "bapo", "bapo_without_x2", places=["qwen2-112k, countdown"])
EVALUATIONS = {job for job in COUNTDOWN if job.startswith("Eval")} | {"Evaluate: qwen2-112k before training, countdown"}


@pytest.mark.system
@pytest.mark.parametrize(
    ("file", "old", "new", "wanted"),
    [
        (  # the first look has no such row
            "task/countdown.yaml",
            "  bapo_code:",
            "  bapo_without_x2: {v: 6}\n  bapo_code:",
            PRODUCTS - {"First look"} | jobs_of("bapo_without_x2", places=["qwen2-112k, countdown"]),
        ),
        (SMOKE_COUNTDOWN, "checkpoint:", "evaluation: {seed: 5}\n\ncheckpoint:", PRODUCTS | EVALUATIONS),
        (
            SMOKE_COUNTDOWN,
            "cd34: 40",
            "cd34: 41",
            PRODUCTS | COUNTDOWN | EVALUATIONS | {"Problems: countdown", "Base model: qwen2-112k, countdown"},
        ),
    ],
)
def test_an_edit_brings_back_the_jobs_whose_meaning_it_changes(
    undisturbed: Workflow, file: str, old: str, new: str, wanted: set[str]
) -> None:
    edit(undisturbed.experiments / file, old, new)
    assert set(undisturbed.jobs(*SMOKE)) == wanted


@pytest.mark.parametrize("kind", ["data", "base", "train", "evaluate"])
def test_results_that_snakemake_did_not_make_here_are_of_these_settings(kind: str, tmp_path: Path) -> None:
    """As in a second checkout with the same results, whose Snakemake knows nothing of the settings that made them."""
    words = ["scale=smoke", "task=countdown", "method=grpo", "seed=1"]
    config = compose_config([*words, f"paths.results={tmp_path / 'results'}"])
    run = run_directory(config)
    summaries = {
        "data": (data_directory(config), identity.data_identity(config)),
        "base": (base_directory(config), identity.base_identity(config)),
        "train": (run, identity.train_identity(config)),
        "evaluate": (run / "eval", identity.identity_of_evaluation(config, "sha")),
    }
    for name, (folder, digest) in summaries.items():
        summary = {"identity": "another" if name == kind else digest, "checkpoint": "x", "checkpoint_sha256": "sha"}
        write_json(folder / "summary.json", summary)
    target = summaries[kind][0] / "summary.json"
    for wrong in (True, False):
        result = dry_run(tmp_path, os.path.relpath(target, tmp_path), "--config", "scale=smoke")
        message = f"{re.escape(os.path.relpath(target, tmp_path))}: made with other settings than these"
        assert (result.returncode, bool(re.search(message, result.stderr))) == (int(wrong), wrong), result.stderr
        write_json(target, read_json(target) | {"identity": summaries[kind][1]})


@pytest.mark.system
def test_the_gates_alone_are_judged_anew_by_other_rules(workflow: Workflow) -> None:
    words = ("reuse", "--config", "scale=smoke")
    make_up(workflow, *words)
    for old, new in (("gates:", "unit: seed\ngates:"), ("# A control: where", "# A control where")):
        edit(workflow.experiments / "study" / "reuse.yaml", old, new)
    assert workflow.jobs(*words) == []
    rules = [('must: ["low > 0"]', 'must: ["low > 9"]'), ("claim: replayed", "claim: old")]
    rules += [("says: Two passes", "says: Twice"), ('contradiction: ["high < 1"]', 'contradiction: ["high < 2"]')]
    for old, new in rules:
        edit(workflow.experiments / "study" / "reuse.yaml", old, new)
        assert set(workflow.jobs(*words)) == {"Table: gates of reuse", "reuse"}
        edit(workflow.experiments / "study" / "reuse.yaml", new, old)


@pytest.mark.parametrize(
    ("old", "new", "words", "said"),
    [
        ("measure: accuracy\n    of: grpo+starved+", "mesure: accuracy\n    of: grpo+starved+", [], "gates.0.mesure: "),
        ("claim: replayed rollouts are worth training on\n", "", ["runs_reuse"], "claim: has no value"),
        ("of: bapo+x3_wide+", "of: bapo+", ["runs_reuse"], "decisions.0.of: "),
        ("name: reuse", "name: reuse", ["reuse", "methods=grpo+starved"], "gates.0.of=grpo+starved+passes_2: "),
        ("name: reuse", "name: reuse", ["runs_reuse", "methods=grpo+starved"], ""),
    ],
)
def test_rules_without_their_runs_end_a_dry_run(
    workflow: Workflow, old: str, new: str, words: list[str], said: str
) -> None:
    file = workflow.experiments / "study" / "reuse.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    target, *settings = words or ["reuse"]
    result = workflow.dry_run(target, "--config", "scale=smoke", *settings)
    assert (result.returncode == 0) == (not said) and (not said or f"reuse.yaml: {said}" in result.stderr), (
        result.stderr
    )


def test_every_name_and_path_in_a_rules_command_is_quoted() -> None:
    """``params.call`` is a whole command, which `shlex.join` has quoted."""
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "workflows").glob("*.smk")]
    commands = re.findall(r"^ {4}shell:\n((?: {8}.*\n)+)", "\n".join(texts), re.MULTILINE)
    taken_over = sum(text.count("\nuse rule ") for text in texts)  # rules with the command of another
    assert len(commands) == sum(text.count("shell:") for text in texts) > 15 - taken_over
    named = [name for command in commands for name in re.findall(r"\{(.*?)\}", command) if name != "params.call"]
    assert [name for name in named if not name.endswith(":q")] == []
