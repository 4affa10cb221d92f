"""``bapo init``: a project that runs as it is, from a checkout and from an installed wheel away from any checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support import workflow
from support.pages import blocks, commands, example
from support.paths import ROOT

from bapo import init
from bapo.describe import study_content
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.settings import read_settings, settings_of_project
from bapo.experiments.studies import study_of
from bapo.store.files import SUMMARY, read_json
from bapo.tasks.job import make_data

#: variables that lead to no checkout
CLEAN = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BAPO_EXPERIMENTS")}
#: what docs/project.md types
FLOW = ("init", "run", "watch", "report", "export", "verify", "compare")


def dry_run(project: Path, *words: str, status: int = 0) -> str:
    """What a dry run of the Snakefile of a project says."""
    done = workflow.dry_run(project, *words, file=project / "Snakefile")
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize("kind", init.TASKS)
def test_the_example_of_every_kind_is_a_study_of_its_own(example_of: Callable[[str], Path], kind: str) -> None:
    example_of(kind)
    name = init.TASKS[kind][0]
    for scale in ("smoke", "laptop"):
        settings = read_settings({"scale": scale})
        content = study_content(study_of(name, settings), settings, titles=False)
        titles = {cell["method_title"] for cell in content["cells"]}
        assert {"GRPO", "Positive only"} <= titles and not any(title.startswith("+") for title in titles)
    assert "$" not in Path("README.md").read_text() and f"bapo run {name} " in Path("Snakefile").read_text()


@pytest.mark.parametrize("name", ["capitals", "chain_sum"])
def test_the_page_shows_the_class_of_the_example(name: str) -> None:
    (file,) = init.TEMPLATES.glob(f"*/tasks/{name}.py")
    assert file.read_text().endswith(example("python", f"tasks/{name}.py").partition("\n")[2])


@pytest.mark.system
def test_a_project_asks_for_its_own_study_and_knows_the_suites(example_project: Path) -> None:
    listed = dry_run(example_project, "report", "figures", "comparisons", "ordering")
    assert "Comparison: ordering" in listed and "countdown" not in listed and "table1" not in listed
    assert "rule table1" in dry_run(example_project, "table1", "--config", "scale=smoke")
    assert "error: claims: " in dry_run(example_project, "claims", status=1)
    odd = example_project.rename(example_project.with_name("mine's {a}"))  # Hydra's quotes, Snakemake's wildcards
    (odd / "bapo.yaml").write_text("# nothing\n")
    assert "Comparison: ordering" in dry_run(odd, "ordering")
    (odd / "bapo.yaml").write_text("scale: smok\n")
    assert "bapo.yaml: scale=smok: unknown scale" in dry_run(odd, "ordering", status=1)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("tasks/ordering.py", "class Ordering(", "class Order(", r"tasks/ordering\.py has no Ordering"),
        ("tasks/ordering.py", "def verify(", "def verity(", r"tasks/ordering\.py:Ordering: needs verify"),
        ("experiments/setting/laptop_ordering.yaml", "noise: 0.5", "noize: 0.5", r"data\.generator\.noize: .*'noise'"),
        ("experiments/setting/smoke_ordering.yaml", "", None, r"mine/\S+/smoke_ordering\.yaml: missing"),
        ("bapo.yaml", "title: ", "title: [a] #", r"bapo\.yaml: title=\['a'\]: must be text"),
        ("bapo.yaml", "title: ", "5: ", r"bapo\.yaml: 5: no such key"),
        ("bapo.yaml", "", None, r"experiments/task/ordering\.yaml is not read, as this folder has no bapo\.yaml"),
        (
            "experiments/task/ordering.yaml",
            "",
            None,
            r"not registered; write `code: tasks/ordering\.py:CLASS` into experiments/task/ordering\.yaml",
        ),
    ],
)
def test_what_is_wrong_is_said(example_project: Path, file: str, old: str, new: str | None, message: str) -> None:
    from bapo.engines.torch.base_model import draw_documents

    path = example_project / file
    if new is None:
        path.unlink()
    else:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=message):
        settings_of_project()
        config = compose_config(["scale=smoke", "task=ordering"])
        make_data(config)
        draw_documents(config)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.generator.number_max=4"], "data.split_sizes.train: 120 distinct lists are wanted but only"),
        (["data.generator.count=13"], "data.split_sizes.train: 120 distinct lists are wanted but only 0 found"),
        *((["data.generator." + key], rf"data\.generator\.{key}: must be greater") for key in ("count=0", "count=1")),
        (["data.generator.number_max=-1"], r"data\.generator\.number_max=-1: must be greater"),
    ],
)
def test_problems_that_do_not_exist_are_not_drawn_for_ever(
    example_project: Path, words: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_data(compose_config(["scale=smoke", "task=ordering", *words]))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "mine: is not empty"),
        ("bapo.yaml/x", "x: cannot be written .Not a dir"),
        ("n" * 300, "n: .* name too long"),
    ],
)
def test_a_folder_that_cannot_be_a_new_project_is_named(example_project: Path, place: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        init.main(example_project / place, "generator")


def test_the_next_command_is_one_for_a_folder_that_begins_with_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    init.main(Path("-x"), "generator")
    assert "Now: cd ./-x && " in capsys.readouterr().err


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the built wheel; what the suite requires is taken from the running one."""
    folder = tmp_path_factory.mktemp("environment")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    assert "bapo/evaluation/lm_eval_tasks/vllm/planning.yaml" in zipfile.ZipFile(wheel).namelist()
    subprocess.run([sys.executable, "-m", "venv", str(folder / "new")], check=True)
    python = folder / "new" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True, env=CLEAN)  # a checkout on the path would count as installed
    (site,) = (folder / "new" / "lib").glob("python*/site-packages")
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.system
def test_the_pages_commands_run_in_a_new_environment(environment: Path, tmp_path: Path) -> None:
    """All of them, at the smallest scale, away from any checkout."""
    known = {**CLEAN, "OMP_NUM_THREADS": "1", "PATH": f"{environment.parent}{os.pathsep}{CLEAN['PATH']}"}
    project = tmp_path / "my-study"

    def run(words: list[str]) -> str:
        given = [word.replace("results/laptop", "results/smoke") for word in words]
        if words[1] == "run":  # two cores are enough
            given += ["--cores", "2"]
        place = project if project.exists() else tmp_path
        done = subprocess.run(given, cwd=place, env=known, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + done.stderr

    first, second = [b for b in blocks() if b.page.name == "project.md" and b.language == "sh"][:2]
    typed = [c for block in (first, second) for c in commands(block) if c[0] != "cd"]
    typed = [c for c in typed if c[1] != "run" or "scale=smoke" in c]  # the study itself takes longer
    said = {" ".join(words[:2]): run(words) for words in typed}
    assert [*said] == [f"bapo {w}" for w in FLOW]
    assert not any(f"{ROOT}/" in text for text in said.values())
    results = project / "results/smoke"
    table = (results / "tables/comparison_ordering.md").read_text()
    assert all(f"| {title} |" in table for title in ("GRPO", "BAPO", "Positive only")) and "The paper's" not in table
    assert (results / "tables/comparison_ordering_training_curves.svg").stat().st_size
    page = (results / "report.html").read_text()
    assert "<h1>My study" in page and 'alt="Comparison ordering training curves"' in page
    assert "Claims of the paper" not in page
    assert read_json(results / "ordering/qwen2-112k/positive_only/seed1" / SUMMARY)["steps"] == 6
    assert "identical" in said["bapo compare"]
    assert all((project / "my-study" / name).is_file() for name in ("project/tasks/ordering.py", "project/bapo.yaml"))
