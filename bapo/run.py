"""``bapo run TARGET KEY=VALUE ...``: starts the workflow, with settings of all kinds in one form."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from bapo import project
from bapo.errors import UserError, unknown
from bapo.experiments import compose, places
from bapo.experiments.schema import Config
from bapo.experiments.settings import Settings, read_settings, settings_of_project
from bapo.validate import OVERRIDE, explained, require_plain

#: keys whose values come from a study -> what to write instead
SINGLE = {"seed": "write seeds=...", "method": "write methods=..."}
OF_STUDY = "a study names it; name the study, or run a single job by `bapo train`"
SINGLE |= dict.fromkeys(("task", "model", "models"), OF_STUDY)


def targets_and_settings(words: Sequence[str]) -> tuple[list[str], Settings]:
    """Return the targets and the settings that words name. A project's ``bapo.yaml`` gives all other settings.

    words: targets, ``KEY=VALUE`` of the workflow's settings with a value in YAML, and ``KEY=VALUE`` of the
    configuration, which become the setting ``set``. Raises UserError for an unknown key or a value that is not allowed.
    """
    values = settings_of_project()
    targets, overrides = [], []
    for word in compose.once(words):
        key, _, value = word.partition("=")
        if not re.match(OVERRIDE, word):
            targets.append(word)
        elif key in Settings.model_fields:
            values[key] = _value(word, value)
        elif key in SINGLE:
            raise UserError(f"{word}: {SINGLE[key]}")
        elif key.partition(".")[0] in Config.model_fields:
            overrides.append(word)
        else:
            keys = dict.fromkeys([*Settings.model_fields, *Config.model_fields])
            raise UserError(unknown(word, f"no setting '{key}'", key, [*keys]))
    settings = read_settings(values, "setting")
    if overrides:
        compose.once([*(settings.set if any(word.startswith("set=") for word in words) else ()), *overrides])
        by_key = {override.partition("=")[0]: override for override in (*settings.set, *overrides)}
        settings = read_settings({**values, "set": list(by_key.values())}, "setting")
    return targets, settings


def _value(word: str, value: str) -> object:
    try:
        return yaml.safe_load(require_plain(value))
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{word}: {explained(error)}") from None


def command(
    targets: Sequence[str], settings: Settings, profile: str = "default", options: Sequence[str] = ()
) -> list[str]:
    """Return the command of Snakemake that makes ``targets``, by the Snakefile of the project if it has one.

    Args:
        targets: of the workflow; without any, Snakemake takes its first rule
        settings: those that were set become ``--config``
        profile: a folder, or the name of one in ``profiles`` here or of the suite
        options: further words for Snakemake

    Raises UserError for a profile that does not exist.
    """
    file = Path("Snakefile")
    if not (project.folder() and file.is_file()):
        file = places.suite_folder() / "Snakefile"
    words = [sys.executable, "-m", "snakemake", *targets, "--snakefile", str(file)]
    words += ["--workflow-profile", str(_profile(profile)), *options]
    values = settings.model_dump(exclude_unset=True, exclude_none=True)
    # Snakemake takes quotes off the ends of a value: between spaces those of a text stay
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    pairs = [f"{key}= {text} " if text.startswith('"') else f"{key}={text}" for key, text in texts.items()]
    return [*words, *(["--config", *pairs] if pairs else [])]


def _profile(name: str) -> Path:
    """Return the folder of a profile: a path, or a name in ``profiles`` here or of the suite."""
    suite = places.suite_folder() / "workflows" / "profiles"
    for folder in (Path(name), Path("profiles", name), suite / name):
        if any(folder.glob("config*.yaml")):
            return folder
    names = sorted(folder.name for folder in suite.iterdir())
    raise UserError(unknown(f"--profile {name}", "no such profile", name, names))


def main(
    words: Sequence[str],
    cores: str | None = None,
    jobs: str | None = None,
    profile: str = "default",
    dry: bool = False,
    options: Sequence[str] = (),
) -> None:
    """Replace this process by Snakemake, which then gets signals and sets the exit status.

    Args:
        words: targets and ``KEY=VALUE``, see :func:`targets_and_settings`
        cores: how many to use, by default as the profile says
        jobs: how many at a time on a cluster, by default as the profile says
        profile: as for :func:`command`
        dry: only print what would be done
        options: further words for Snakemake

    Raises UserError for a wrong word or profile.
    """
    targets, settings = targets_and_settings(words)
    limits = {"--cores": cores, "--jobs": jobs}
    limit_words = [word for name, value in limits.items() if value is not None for word in (name, value)]
    dry_words = ["-n", "--quiet", "rules", "host", "reason"] if dry else []
    snakemake = command(targets, settings, profile, [*limit_words, *dry_words, *options])
    os.execv(snakemake[0], snakemake)


def demo(words: Sequence[str], **options: Any) -> None:
    """Make the first look. options: as for :func:`main`, which raises UserError for a wrong word."""
    main(["first_look", *words], **options)
