"""The process that holds Ray's driver, and verl's entry point inside Ray.

``python -m bapo.engines.verl.job FOLDER``, started by ``launch.py``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import ray
from omegaconf import DictConfig, OmegaConf

from bapo.engines.verl.launch import FACTS
from bapo.store.files import CONFIG, read_json, write_json


class TaskRunner:
    """One run, from its services to its last step."""

    def run(self, config: DictConfig) -> None:
        import transfer_queue as tq
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        from bapo.engines.verl.trainer import MethodTrainer, Stopped

        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        try:
            trainer = MethodTrainer(config)
            trainer.init()
            manager = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            try:
                trainer.fit(manager)
            except Stopped:
                trainer._shutdown_dump_executor()
            trainer.logger.finish(exit_code=0)
        finally:
            tq.close()


def main(work: Path) -> int:
    """Run the configuration in ``work``; leaves ``done.json`` or ``error.json`` there."""
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        write_json(work / "done.json", {"steps": _run(work)})
        return 0
    except BaseException as error:
        traceback.print_exc()
        interrupted = isinstance(error, KeyboardInterrupt)
        write_json(work / "error.json", {"error": "interrupted" if interrupted else first_error(error)})
        return 130 if interrupted else 1
    finally:
        ray.shutdown()


def _run(work: Path) -> int:
    """Return the step of the last checkpoint."""
    from verl.trainer.main_ppo import run_ppo

    from bapo.engines.shared import models
    from bapo.engines.verl import checkpoints, verl_config
    from bapo.experiments import budgets

    config = verl_config.typed(OmegaConf.create((work / CONFIG).read_text(encoding="utf-8")))
    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, config.verl.time_limit or 0)
    # a local folder, at the commit that the base job has fetched: no process of the job asks the hub
    verl = verl_config.resolve(config, model=models.start_path(config))
    verl_config.validate(verl)
    facts = {"identity": budgets.identity(config), "budget": budgets.amount(config), **read_json(work / FACTS)}
    OmegaConf.update(verl, "bapo", facts, force_add=True)
    init = {"runtime_env": {"env_vars": verl_config.environment(verl.trainer.device)}, "_temp_dir": str(work / "ray")}
    OmegaConf.update(verl, "ray_kwargs.ray_init", init, force_add=True)
    for last in (False, True):
        try:
            run_ppo(verl, task_runner_class=ray.remote(TaskRunner))
            break
        except Exception as error:
            # Ray gives its own servers 30 s, a constant in its code: a busy machine may need another go
            if last or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
    return int((Path(verl.trainer.default_local_dir) / checkpoints.TRACKER).read_text())


def _stop(number: int, _: object) -> None:
    raise KeyboardInterrupt(f"signal {number}")


def _too_late(number: int, _: object) -> None:
    raise TimeoutError("the job was not done within verl.time_limit")


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
