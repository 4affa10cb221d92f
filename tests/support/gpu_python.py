"""The interpreter of a pretended environment for GPUs: ``gpu_python.py -m bapo ...`` without CUDA.

What comes before a job's work is real: the command, the configuration, GPUs of its own by lock files. The work itself
runs on the CPU or, with PRETENDED_SECONDS, is that long a sleep and the file that says that it is done. Each job leaves
what it saw in the folder PRETENDED.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bapo import __main__ as command
from bapo.experiments import places
from bapo.gpu import devices

FOLDER = Path(os.environ["PRETENDED"])


def sleep(config: Any, arguments: Any) -> int:
    """Stand in for the work of a job."""
    time.sleep(float(os.environ["PRETENDED_SECONDS"]))
    made = {
        "base": places.base_directory(config),
        "train": places.run_directory(config),
        "evaluate": places.run_directory(config) / "eval",
    }[arguments.command]
    made.mkdir(parents=True, exist_ok=True)
    (made / "summary.json").write_text("{}\n", encoding="utf-8")
    return 0


def recorded(call: Callable[..., int]) -> Callable[..., int]:
    """Wrap what calls the function of a command; given: the configuration of a job."""

    def run(place: str, arguments: Any, *given: Any) -> int:
        if arguments.command not in ("base", "train", "evaluate"):
            return call(place, arguments, *given)
        (config,) = given
        seen = {
            "command": arguments.command,
            "method": config.method.name,
            "gpus": os.environ[devices.VISIBLE],
            "slurm": os.environ.get("SLURM_JOB_ID"),
            "begun": time.time(),
        }
        config.device = "cpu"
        try:
            if "PRETENDED_SECONDS" in os.environ:
                return sleep(config, arguments)
            return call(place, arguments, config)
        finally:
            seen["ended"] = time.time()
            (FOLDER / f"{time.time_ns()}.json").write_text(json.dumps(seen), encoding="utf-8")

    return run


if __name__ == "__main__":
    devices.FOLDER = FOLDER / "locks"
    command._call = recorded(command._call)
    assert sys.argv[1:3] == ["-m", "bapo"], sys.argv
    sys.exit(command.main(sys.argv[3:]))
