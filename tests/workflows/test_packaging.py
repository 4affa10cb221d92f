"""pyproject.toml, environment.yml and the files that a release needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import yaml
from support.paths import ROOT

import bapo

# Distributions of an extra whose modules have another name: without the extra nothing here says so.
IMPORT_NAMES = {"pyzmq": "zmq"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def parse(requirement: str) -> tuple[str, str]:
    """(normalised name, version specifier) of a requirement without markers."""
    name, specifier = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(.*)", requirement).groups()
    return re.sub(r"[-_.]+", "-", name).lower(), specifier


def imported(path: Path) -> set[str]:
    """Top-level names that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


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


def test_every_import_of_the_product_is_a_requirement() -> None:
    """What bapo/ and analysis/ import comes from the standard library, from here or from a named distribution."""
    providers = metadata.packages_distributions()
    named = {parse(r)[0] for r in PROJECT["dependencies"]}
    optional = {parse(r)[0] for extra in ("verl", "benchmark") for r in PROJECT["optional-dependencies"][extra]}
    missing = {}
    for path in [*ROOT.glob("bapo/**/*.py"), *ROOT.glob("analysis/**/*.py")]:
        allowed = named | optional if "verl" in path.parts else named
        for module in imported(path):
            if module in sys.stdlib_module_names or module in ("bapo", "analysis"):
                continue
            if module == "vllm" and {"gpucheck", "evaluation"} & set(path.parts):  # in containers/ only
                continue
            # an extra that is not installed here provides nothing: then the module's name stands for it
            found = {parse(d)[0] for d in providers.get(module, [module])}
            found |= {distribution for distribution, name in IMPORT_NAMES.items() if name == module}
            if not {name.replace("-", "") for name in found} & {name.replace("-", "") for name in allowed}:
                missing[module] = str(path.relative_to(ROOT))
    assert missing == {}


def test_the_version_is_that_of_the_package_and_of_the_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["dynamic"] == ["version"] and citation["version"] == bapo.__version__
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"


def test_the_test_job_runs_what_the_readme_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in (
        "environment tests test,benchmark\n",  # all that the README asks for, and TRL, without which a test is skipped
        "ruff check",
        "ruff format --check",
        "snakefmt --check",
        "snakemake --lint",
        re.search(r"&& (pytest .*)$", readme, re.MULTILINE)[1] + "\n",
        'pytest -n auto --dist loadfile -m "system or slow"',  # what that leaves out
    ):
        assert command in script
    assert script.rstrip().splitlines()[-1].startswith("printf 'left out: ")  # the last that is printed
