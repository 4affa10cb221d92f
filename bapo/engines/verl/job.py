"""The process that holds Ray's driver: ``python -m bapo.engines.verl.job FOLDER`` (started by ``launch.py``)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any


def main(work: Path) -> int:
    """Run the configuration in ``work``; leaves ``done.json`` or ``error.json`` there."""
    from omegaconf import OmegaConf

    from bapo.engines.shared import models
    from bapo.engines.verl import checkpoints, devices, settings, verl_config
    from bapo.experiments import budgets

    def stop(number: int, _: Any) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    import ray
    from verl.trainer.main_ppo import run_ppo

    config = OmegaConf.create((work / "config.yaml").read_text(encoding="utf-8"))
    try:
        # a local folder, at the commit that the base job has fetched: no process of the job asks the hub
        verl = verl_config.resolve(config, model=models.start_path(config))
        verl_config.validate(verl)
        facts = {"identity": budgets.identity(config), "budget": budgets.amount(config)}
        facts |= json.loads((work / settings.FACTS).read_text(encoding="utf-8"))
        OmegaConf.update(verl, "bapo", facts, force_add=True)
        from bapo.engines.verl.task_runner import TaskRunner

        with_environment = {"env_vars": devices.environment(verl.trainer.device)}
        OmegaConf.update(verl, "ray_kwargs.ray_init.runtime_env", with_environment, force_add=True)
        OmegaConf.update(verl, "ray_kwargs.ray_init._temp_dir", str(work / "ray"), force_add=True)
        for last in (False, True):
            try:
                run_ppo(verl, task_runner_class=TaskRunner)
                break
            except Exception as error:
                # Ray gives its own servers 30 s, a constant in its code: a busy machine may need another go
                if last or "timed out during startup" not in str(error):
                    raise
                ray.shutdown()
        latest = Path(verl.trainer.default_local_dir) / checkpoints.TRACKER
        (work / "done.json").write_text(json.dumps({"steps": int(latest.read_text())}), encoding="utf-8")
        return 0
    except BaseException as error:
        traceback.print_exc()
        text = "interrupted" if isinstance(error, KeyboardInterrupt) else first_error(error)
        (work / "error.json").write_text(json.dumps({"error": text}), encoding="utf-8")
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        ray.shutdown()


def first_error(error: BaseException) -> str:
    """Return in one line what the worker said that failed first: Ray wraps it, with its traceback, once a process."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    text = " ".join(str(error).split())
    # Ray's own errors say whose death they tell of in words
    return text if type(error).__module__.partition(".")[0] == "ray" else f"{type(error).__name__}: {text}"


def _end_with(parent: int) -> None:
    """End this session when the process that started it is gone: it can no longer clean up."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
