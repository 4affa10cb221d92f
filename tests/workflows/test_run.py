"""``bapo run``: which command of Snakemake its words become, and what it says of wrong ones."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from snakemake.cli import parse_config
from support.paths import ROOT
from support.workflow import dry_run

import bapo.__main__
from bapo import run
from bapo.errors import UserError
from bapo.experiments.settings import Settings, read_settings


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("table1", "table1 --workflow-profile DEFAULT"),
        ("-n table1 claims", "table1 claims --workflow-profile DEFAULT -n --quiet rules host reason"),
        ("table1 --cores 2 -j 3", "table1 --workflow-profile DEFAULT --cores 2 --jobs 3"),
        (
            "table1 seeds=1,2 --cores 1 train.steps=5 scale=smoke",
            'table1 --workflow-profile DEFAULT --cores 1 --config scale="smoke" seeds=[1,2] set=["train.steps=5"]',
        ),
        ("results/a=b.md warm=no", "results/a=b.md --workflow-profile DEFAULT --config warm=false"),
        ("table1 -- --forcerun table", "table1 --workflow-profile DEFAULT --forcerun table"),
        ("demo -n --cores 2", "first_look --workflow-profile DEFAULT --cores 2 -n --quiet rules host reason"),
        ("demo seeds=2 -- -k", "first_look --workflow-profile DEFAULT -k --config seeds=[2]"),
    ],
)
def test_words_become_a_command(monkeypatch: pytest.MonkeyPatch, words: str, wanted: str) -> None:
    monkeypatch.chdir(ROOT / "tests")  # no profile of this name, no project
    executed: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, given: executed.append(given))
    assert bapo.__main__.main([*["run"] * (not words.startswith("demo")), *words.split()]) == 0
    made = [" ".join(word.split()).replace(", ", ",").replace("= ", "=") for word in executed[0][3:]]
    at, default = made.index("--snakefile"), str(ROOT / "workflows" / "profiles" / "default")
    assert made[:at] + made[at + 2 :] == [word.replace("DEFAULT", default) for word in wanted.split()]


@pytest.mark.parametrize(
    "folder", ["a b", r"a\b", r"a\ b", 'a"b"', "'a'", "a #b", "a: b", "1", "null", "[x", "$(touch x)"]
)
def test_snakemake_reads_the_folder_that_was_asked_for(folder: str) -> None:
    words = run.command([], Settings(results=folder, seeds=(1, 2)))
    read = read_settings(parse_config(words[words.index("--config") + 1 :]))
    assert (read.results, read.seeds) == (folder, (1, 2))
    assert run.targets_and_settings(read.as_words()) == ([], read)  # the command that messages name


def test_a_projects_settings_hold_where_the_words_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bapo.yaml").write_text("title: Mine\nscale: smoke\nseeds: 7\nset: [train.steps=9, method.v=3]\n")
    targets, settings = run.targets_and_settings(["scale=laptop", "train.steps=5"])
    assert (targets, settings.scale, settings.seeds) == ([], "laptop", (7,))
    assert settings.set == ("train.steps=5", "method.v=3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("table1 scal=smoke", r"no setting 'scal' \(did you mean 'scale'\?\)"),
        ("table1 scale=smok", r"unknown scale 'smok' \(did you mean 'smoke'\?\)"),
        ("table1 seeds=[1", r"seeds=\[1: "),
        ("table1 seed=3", "seed=3: write seeds=..."),
        *((f"table1 {key}=qwen2-112k", f"{key}=qwen2-112k: a study names it") for key in ("model", "models")),
        ("table1 seeds=", "seeds=: has no value"),
        ("table1 train.steps=", "train.steps=: has no value"),
        ("table1 seeds=1,0,0", "seeds=1,0,0: names 0 twice"),
        *((f"table1 {word}", f"{word}: .*without leading 0 or colons") for word in ("seeds=010", "trials=1:30")),
        ("table1 seeds=010,2", "seeds=010,2: 010: .*without leading 0"),
        ("table1 methods='@00'", "methods=@00: unknown method '@00'"),
        ("table1 methods=bapo,bapo", "methods=bapo,bapo: names bapo twice"),
        ("table1 train.steps=5 train.steps=6", "train.steps=5 is given, too"),
        ("table1 train.steps=5 set=train.steps=6", "train.steps=6 is given, too"),
        ("table1 --profile slrum", r"no such profile \(did you mean 'slurm'\?\)"),
    ],
)
def test_wrong_words_are_one_sentence(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bapo.__main__.main(["run", *words.split()]) == 2
    said = capsys.readouterr().err
    with pytest.raises(UserError, match=message):
        raise UserError(said)
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train --seed 3", "write seed=VALUE"),
        ("gpu-check --seed 3", "write seed=VALUE"),
        ("methods --seed 3", "arguments: --seed 3"),
        ("run table1 --forcerun table", "options of Snakemake go after ` -- `"),
        ("plan --cores 2", "arguments: --cores\n"),
        ("gpu-check --keep=", "argument --keep: is empty; name a file or folder"),
        ("report --out=~/x results", "argument --out: ~/x: the shell did not expand ~; write $HOME"),
        ("export a --out b --license not-a-url", "argument --license: not-a-url: must be a URL"),
        ("export a --out b --license https://", "must be a URL"),
        ("report --out= results", "argument --out: is empty; name a file or folder"),
    ],
)
def test_an_option_that_is_refused_says_why(words: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bapo.__main__.main(words.split())
    assert hint in capsys.readouterr().err


def test_alone_it_lists_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert bapo.__main__.main([]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    (choices,) = (a.choices for a in bapo.__main__._parser()._actions if a.dest == "command")
    assert sorted(listed) == sorted([*choices, "-h,", "--version"])


@pytest.mark.system
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tabel1", "error: nothing makes 'tabel1' (did you mean 'table1'?)"),
        ("train", "error: nothing makes 'train'"),
        ("", "error: nothing makes ''"),
        (str(ROOT / "README.md"), "README.md'; docs/running.md lists the targets"),
        ("/", "error: nothing makes '/'"),
        ("figure7", "error: figure7: is drawn from the runs of table1; name table1, or figure7_tracking alone"),
    ],
)
def test_an_unknown_target_names_what_there_is(tmp_path: Path, target: str, message: str) -> None:
    said = dry_run(tmp_path, target)
    assert said.returncode == 1 and message in said.stderr and "Traceback" not in said.stderr


@pytest.mark.system
def test_without_a_target_everything_is_made(tmp_path: Path) -> None:
    command = run.command([], Settings(scale="smoke"), options=["-n", "--quiet", "reason", "--cores", "1"])
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert re.search(r"^all +1$", done.stdout, re.MULTILINE), done.stdout[-2000:]
