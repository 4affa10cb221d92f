"""Every command of the pages is one that its program takes: words are parsed, configurations composed, targets found.

What the commands do is tested where their code is; the projects of ``bapo init`` run in tests/project. Dry runs of
Snakemake take seconds, so all targets that the pages ask for with the same options are asked for together. A program
that no function here knows fails its block.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from support.configs import forget
from support.pages import Block, blocks, commands, example
from support.paths import ROOT
from support.workflow import dry_run

import bapo.__main__
from analysis import products
from analysis.__main__ import parser
from bapo import run
from bapo.commands import EXAMPLES, OF_ANALYSIS
from bapo.project import MARK

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
#: words in capitals that stand for a reader's own
PLACEHOLDERS = {"RESPONSES", "CHECKOUT", "URL"}
#: of the pages, and what each command's help shows
BLOCKS = [b for b in blocks() if b.language == "sh"]
SHOWN = [Block(ROOT / "bapo" / "commands.py", i, "sh", "\n".join(lines)) for i, lines in enumerate(EXAMPLES.values())]
JOBS = ("data", "base", "train", "evaluate")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like this checkout, with the README's example method installed."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("experiments", "results", "wandb"):
            (folder / path.name).symlink_to(path)
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    information = folder / "site" / "positive_only-1.0.dist-info"
    information.mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: positive-only\nVersion: 1.0\n"
    points = "[bapo.methods]\npositive_only = positive_only:PositiveOnly\n"
    files = {
        "site/positive_only.py": example("python", "bapo/methods/positive_only.py"),
        "site/positive_only-1.0.dist-info/METADATA": metadata,
        "site/positive_only-1.0.dist-info/entry_points.txt": points,
    }
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def accepted(words: Sequence[str]) -> None:
    """Check the words of ``bapo`` or ``python -m analysis``: a job's configuration is composed, others are parsed."""
    if words[0] in JOBS:
        if {"scale=paper", "scale=single_gpu", "engine=verl"} & set(words) and words[0] == "train":
            pytest.importorskip("verl", reason="the configuration that is printed is verl's")
        shown = [] if "--cfg" in words else ["--cfg", "job"]
        assert bapo.__main__.main([*words, *shown]) == 0
    elif words[0] in OF_ANALYSIS or words[0] in ("claims", "figure", *products.TABLES, *products.OTHERS):
        parser("bapo").parse_args(words)
    elif words != ["--help"]:
        arguments = bapo.__main__.parse(words)
        if "words" in arguments:
            run.targets_and_settings(arguments.words)


def checked(words: Sequence[str]) -> None:
    """Check one command. Raises AssertionError for a program that is not known here, and for what it does not take."""
    while re.match(r"[A-Z_]+=", words[0]):  # variables for the command
        words = words[1:]
    assert set(re.findall(r"(?<![\w$])[A-Z]{2,}(?![\w=])", " ".join(words))) <= PLACEHOLDERS | {"POSIX"}, words
    program, *rest = words
    if program == "cd":
        Path(rest[0]).mkdir(exist_ok=True)
        os.chdir(rest[0])
        Path(MARK).touch()
    elif program == "bapo":
        accepted(rest)
    elif program == "python" and rest[:2] in (["-m", "bapo"], ["-m", "analysis"]):
        accepted(rest[2:])
    elif program == "snakemake":  # test_a_dry_run_finds_the_targets
        assert Path(MARK).exists() or not rest or split(rest)[0] in DRY_RUNS
    elif program in ("squeue", "git", "."):
        text = " ".join(word if word in ("|", ">") else "x" for word in words)
        subprocess.run(["bash", "-n", "-c", text], check=True)
    elif program == "containers/install_gpu":
        assert os.access(program, os.X_OK) and len(rest) == 1
    elif program == "source":
        assert rest == ["~/bapo-gpu/bin/activate"]
    else:
        assert program in ("pip", "uv", "pytest", "ruff", "snakefmt", "python"), program
        extras = [
            extra for word in rest if (named := re.fullmatch(r"\.\[([\w,]+)\]", word)) for extra in named[1].split(",")
        ]
        assert set(extras) <= set(EXTRAS)
        files = [word for word in rest if re.search(r"/|\.(py|txt)$", word)]
        assert [file for file in files if not Path(file).exists()] == []


@pytest.mark.parametrize("block", [*BLOCKS, *SHOWN], ids=str)
def test_a_block_is_taken(block: Block, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    forget()
    for words in commands(block):
        checked(words)
    forget()


def split(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return (options, targets) of a call of Snakemake, without the number of cores and -n."""
    at = words.index("--config") if "--config" in words else len(words)
    plain, config = list(words[:at]), sorted(words[at + 1 :])
    profile = [part for pair in pairwise(plain) if pair[0] == "--workflow-profile" for part in pair]
    known = {"-n", "--cores", *profile, *(b for a, b in pairwise(plain) if a == "--cores")}
    return (*profile, *(["--config", *config] if config else [])), [word for word in plain if word not in known]


def as_snakemake(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return (options, targets) of ``bapo run`` or ``bapo plan`` as :func:`split` does."""
    arguments = bapo.__main__.parse(words)
    targets, settings = run.targets_and_settings(arguments.words)
    profile = getattr(arguments, "profile", "default")
    made = run.command(targets, settings)
    given = ["--workflow-profile", profile] if profile != "default" else []
    return split([*given, *targets, *(made[made.index("--config") :] if "--config" in made else [])])


def dry_runs() -> dict[tuple[str, ...], set[str]]:
    """Return the targets of all pages by the options that they are given with."""
    found: dict[tuple[str, ...], set[str]] = {}
    for block in BLOCKS:
        listed = list(commands(block))
        for words in listed if not any(words[0] == "cd" for words in listed) else []:
            if words[0] == "snakemake" or words[:2] in (["bapo", "run"], ["bapo", "plan"]):
                options, targets = split(words[1:]) if words[0] == "snakemake" else as_snakemake(words[1:])
                found.setdefault(options, set()).update(targets)
    return found


DRY_RUNS = dry_runs()


@pytest.mark.system
@pytest.mark.parametrize("options", DRY_RUNS, ids=" ".join)
def test_a_dry_run_finds_the_targets(options: tuple[str, ...], checkout: Path) -> None:
    path = os.pathsep.join([str(checkout / "site"), str(checkout)])
    known = {"PYTHONPATH": path, "BAPO_EXPERIMENTS": str(checkout / "experiments")}
    done = dry_run(checkout, *sorted(DRY_RUNS[options]), *options, file=checkout / "Snakefile", **known)
    assert done.returncode == 0 and re.search(r"^total +\d+$", done.stdout, re.MULTILINE), done.stderr[-2000:]
