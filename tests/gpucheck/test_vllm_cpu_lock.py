"""The environment with vLLM on CPU cores follows from the GPU lock and the project's own pins."""

from __future__ import annotations

import runpy
import subprocess
import tomllib

from support.paths import ROOT

FOLDER = ROOT / "containers" / "vllm_cpu"


def test_the_lock_is_the_one_that_its_script_makes() -> None:
    made = runpy.run_path(str(FOLDER / "make_lock.py"))["lock"]()
    lines = (FOLDER / "lock.txt").read_text(encoding="utf-8").split()
    assert lines == [f"{name}=={version}" for name, version in made.items()], "run make_lock.py again"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"torch=={made['torch'].removesuffix('+cpu')}" in project["dependencies"]
    for name in ("transformers", "lm-eval", "numpy"):
        assert f"{name}=={made[name]}" in project["dependencies"]
    assert f"verl=={made['verl']}" in project["optional-dependencies"]["verl"]
    assert not [name for name in made if name.startswith(("nvidia", "cuda", "flash", "triton"))]


def test_the_name_is_that_of_the_build() -> None:
    """verl and lm-eval compare versions of `vllm`; "cpu" in it is what vLLM knows its platform by."""
    named = tomllib.loads((FOLDER / "name" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = dict(line.split("==") for line in (FOLDER / "lock.txt").read_text(encoding="utf-8").split())["vllm-cpu"]
    assert (named["name"], named["version"]) == ("vllm", f"{version}+cpu")


def test_the_script_is_one_that_bash_can_read() -> None:
    subprocess.run(["bash", "-n", str(FOLDER / "install")], check=True)
