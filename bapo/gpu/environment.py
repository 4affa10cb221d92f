"""Whether driver, CUDA and packages fit together, before a job spends minutes on finding out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bapo.errors import UserError
from bapo.gpu import devices

#: CUDA's major version -> the oldest driver that runs all its minor versions (CUDA's release notes, Linux)
DRIVERS = {11: 450, 12: 525, 13: 580}
#: seconds that the imports may take: vLLM's from a slow file system
PATIENCE = 600
#: the environment that containers/lock-gpu.txt makes
CURE = (
    "make the environment of GPU nodes (docs/provenance.md, Containers) and name it with --config gpu_python=...; "
    "`python -m bapo gpu-check` is given by its own python, as in `apptainer exec --nv IMAGE python -m bapo gpu-check`"
)

#: run by the interpreter of the job in a process of its own: in the job itself CUDA would start too early
_PROBE = """
import importlib, json, os, sys
facts = {"torch": None, "cuda": None, "available": False, "count": 0, "names": [], "error": "", "modules": {}}
out = os.dup(1)
os.dup2(2, 1)  # whatever packages print is no answer
try:
    import torch
    facts["torch"], facts["cuda"] = torch.__version__, torch.version.cuda
    facts["available"], facts["count"] = torch.cuda.is_available(), torch.cuda.device_count()
    if facts["cuda"] and not facts["available"]:
        torch.cuda.init()
    facts["names"] = [torch.cuda.get_device_name(i) for i in range(facts["count"] if facts["available"] else 0)]
except BaseException as error:
    facts["error"] = " ".join(f"{type(error).__name__}: {error}".split())
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        facts["modules"][name] = ""
    except BaseException as error:
        facts["modules"][name] = " ".join(f"{type(error).__name__}: {error}".split())
os.write(out, json.dumps(facts).encode())
"""


@dataclass(frozen=True)
class Check:
    """One line of a table: what was looked at, whether it is fine, what was found, and the cure where it is not."""

    name: str
    ok: bool
    found: str
    cure: str = ""


def checks(gpus: int, modules: Sequence[str] = ()) -> list[Check]:
    """Look at the driver, at CUDA as torch sees it, at the number of GPUs, and import ``modules`` (vllm, flash_attn).

    Takes the seconds that importing them takes.
    """
    facts = _facts(modules)
    found = [_driver(facts), _cuda(facts)]
    names = ", ".join(dict.fromkeys(facts["names"])) or "none"
    found.append(
        Check(
            "GPUs",
            facts["count"] >= gpus,
            f"{facts['count']} visible ({names}), {gpus} needed",
            "ask for fewer (verl.gpus_per_node), or make more visible (CUDA_VISIBLE_DEVICES)",
        )
    )
    for module in modules:
        error = facts["modules"].get(module, "not imported")
        found.append(Check(module, not error, error or "can be imported", CURE))
    return found


def require(gpus: int, modules: Sequence[str] = ()) -> None:
    """Raise UserError with the first of :func:`checks` that fails."""
    for check in checks(gpus, modules):
        if not check.ok:
            raise UserError(f"this job cannot run on GPUs: {check.name}: {check.found}; {check.cure}")


def _driver(facts: dict[str, Any]) -> Check:
    """Compare the driver with torch's CUDA. Where CUDA runs, its compatibility package helps an older driver."""
    gpus = devices.installed()
    if not gpus:
        cure = "install NVIDIA's driver; in a container: apptainer exec --nv, docker run --gpus all"
        return Check("driver", facts["available"], "nvidia-smi finds no GPU", cure)
    driver, cuda = gpus[0].driver, facts["cuda"]
    needed = DRIVERS.get(int(cuda.split(".")[0]), 0) if cuda else 0
    found = f"{driver}" + (f", CUDA {cuda} of torch {facts['torch']} takes {needed} or newer" if needed else "")
    cure = f"have the driver updated to {needed} or newer"
    return Check("driver", facts["available"] or int(driver.split(".")[0]) >= needed, found, cure)


def _cuda(facts: dict[str, Any]) -> Check:
    if facts["torch"] and not facts["cuda"]:
        return Check("CUDA", False, f"torch {facts['torch']} of {sys.executable} is built without CUDA", CURE)
    found = f"torch {facts['torch']}, CUDA {facts['cuda']}" if facts["torch"] else "torch cannot be imported"
    error = f": {facts['error']}" if facts["error"] else ""
    cure = CURE if not facts["torch"] else "see that nvidia-smi works here and that the driver fits"
    return Check("CUDA", facts["available"], found + error, cure)


def _facts(modules: Sequence[str]) -> dict[str, Any]:
    """Ask this interpreter in another process. Raises UserError if that one dies, as broken libraries make it."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, *modules], capture_output=True, text=True, errors="replace", timeout=PATIENCE
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise UserError(f"importing torch {' '.join(modules)} took more than {PATIENCE} s; look at the disk") from None
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{sys.executable}: importing torch {' '.join(modules)} ended it: {last}") from None
