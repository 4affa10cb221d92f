"""Names and folders: which names ``experiments/`` has, where their files lie, and where results go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from bapo import methods, project
from bapo.errors import UserError, unknown
from bapo.experiments.schema import Config
from bapo.store.files import Json
from bapo.validate import Name, parse_yaml, read, wrong

#: the file of all variants in a tree
VARIANTS = "variants.yaml"
#: the groups that a configuration chooses from
GROUPS = ("scale", "task", "setting", "model", "method", "tracking")
#: the groups whose choices may carry variants (``method=bapo+rollouts``)
VARIED = ("model", "method")


def suite_folder() -> Path:
    """Return where Snakefile, workflows and experiments lie: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "suite"
    return inside if inside.is_dir() else package.parent


#: the suite's Hydra tree; BAPO_EXPERIMENTS names another one
EXPERIMENTS = Path(os.environ.get("BAPO_EXPERIMENTS") or suite_folder() / "experiments")


def trees() -> tuple[Path, ...]:
    """Return the Hydra trees: the suite's, and that of the project if it has one, which only adds names."""
    home = project.folder()
    return (EXPERIMENTS, home / "experiments") if home and (home / "experiments").is_dir() else (EXPERIMENTS,)


def own(group: str) -> list[str]:
    """List the names that the project in the working directory adds to a group."""
    return sorted(p.stem for tree in trees()[1:] for p in (tree / group).glob("*.yaml"))


def options(group: str) -> list[str]:
    """List the names that ``group=...`` accepts.

    Raises UserError for a file whose name cannot be that of a folder, and where a project takes a name of the suite's.
    """
    if group == "variant":
        return sorted(variants())
    suite, *others = ({p.stem: p for p in (tree / group).glob("*.yaml")} for tree in trees())
    if group == "method":
        suite |= {name: Path(f"{name}.py") for name in methods.names()}
        others.append({name: Path("methods", f"{name}.py") for name in project.methods()})
    for files in others:
        if doubles := sorted(set(files) & set(suite)):
            raise UserError(f"{files[doubles[0]]}: the suite has a {group} of this name; rename the file")
    files = suite | {name: file for files in others for name, file in files.items()}
    return sorted(read(Name, name, file) for name, file in files.items())


def variants() -> dict[str, tuple[Path, Json]]:
    """Return the file and the content, title and values, of every variant. Raises UserError as for options."""
    entries: dict[str, tuple[Path, Json]] = {}
    for path in (tree / VARIANTS for tree in trees()):
        for name, entry in (_variants(path.read_text(encoding="utf-8"), path) if path.exists() else {}).items():
            if name in entries:
                raise UserError(f"{path}: {name}: the suite has a variant of this name; rename it")
            entries[name] = path, entry
    return entries


@lru_cache(maxsize=8)
def _variants(text: str, path: Path) -> dict[str, Json]:
    content = parse_yaml(path, text)
    for name, entry in content.items() if isinstance(content, dict) else [("", None)]:
        if not isinstance(entry, dict) or not isinstance(entry.get("title"), str):
            raise UserError(f"{path}: {name}: needs a title, the words that it adds to that of a method, and values")
    return content


def require_name(where: str, group: str, value: str) -> None:
    """Raise UserError unless ``experiments/`` has this name and its variants. where: the file and field with it."""
    base, *variant_names = value.split("+") if group in VARIED else [value]
    for kind, name in ((group, base), *(("variant", v) for v in variant_names)):
        if name not in options(kind):
            raise UserError(
                _unused_file(where, kind, name) or unknown(where, f"unknown {kind} '{name}'", name, options(kind))
            )


def _unused_file(where: str, group: str, name: str) -> str:
    """Say why a file of this name in the working directory is not used; "" where there is none."""
    config, code = Path("experiments", group, f"{name}.yaml"), Path(f"{group}s", f"{name}.py")
    file = next((file for file in (config, code) if file.is_file()), None)
    if file and project.folder() is None:
        return f"{where}: {file} is not read, as this folder has no {project.MARK} and so is no project; create one"
    if file == code and group == "method":  # files with other names are methods
        return f"{where}: {code} is no method, as its name begins with _; rename it"
    if file == code and group in ("task", "model"):
        return f"{where}: {code} is there, but not registered; write `code: {code}:CLASS` into {config}"
    return ""


def file_of(group: str, name: str) -> Path:
    """Return the file of a name in the project's tree, or else in the suite's, where it may be missing."""
    suite, *others = (tree / group / f"{name}.yaml" for tree in trees())
    return next((file for file in others if file.exists()), suite)


def run_folder(home: Path, task: str, model: str, method: str, seed: int | str) -> Path:
    """Return the folder of a run in ``home``, the folder of a scale's results.

    task, model, method, seed: of the run; Snakemake's rules pass patterns such as "{task}".
    """
    return home / task / model / method / f"seed{seed}"


def base_folder(home: Path, task: str, model: str) -> Path:
    return home / task / model / "base"


def scale_folder(results: str, scale: str, usual: str, engine: str) -> Path:
    """Return results/<scale>, or results/<scale>-<engine> for another engine than the ``usual`` one of the scale."""
    return Path(results, scale if engine == usual else f"{scale}-{engine}")


def home(config: Config) -> Path:
    """Return the folder of all results at the configuration's scale."""
    return scale_folder(config.paths.results, config.scale.name, config.scale.engine, config.engine)


def run_directory(config: Config, method: str | None = None) -> Path:
    """Return results/<scale>/<task>/<model>/<method>/seed<k>. method: in place of the configuration's."""
    return run_folder(home(config), config.task.name, config.model.name, method or config.method.name, config.seed)


def base_directory(config: Config) -> Path:
    return base_folder(home(config), config.task.name, config.model.name)


def data_folder(home: Path, task: str, model: str = "") -> Path:
    """Name the folder of a task's problems; model: one whose variant has other problems."""
    return home / task / model / "data"


def data_directory(config: Config) -> Path:
    return data_folder(home(config), config.task.name, config.model.name if config.data.of_model else "")


def patterns_of_rows(files: Sequence[str] | None, split: str) -> list[str]:
    """Return the patterns of a split's files in its repository: ``files`` of its entry of ``data.hub``, or by default.

    split: begins the names of the files, where the entry does not name them.
    """
    return list(files or (f"{split}*.parquet", f"*/{split}*.parquet"))


def files_of_rows(folder: Path, patterns: Sequence[str], where: str) -> list[Path]:
    """Return the files of a repository that hold a split's rows.

    Args:
        folder: of the repository
        patterns: of the files
        where: the entry of ``data.hub``, for errors

    Raises UserError for a pattern that is empty or absolute.
    """
    try:
        return sorted({path for pattern in patterns for path in folder.glob(pattern)})
    except (ValueError, NotImplementedError):
        cure = "must be names or patterns in the repository, such as data/train-*.parquet"
        raise wrong(None, f"{where}.files", str(list(patterns)), cure) from None
