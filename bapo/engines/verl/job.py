"""Runs Ray's driver in a process, and verl inside Ray, as verl's ``run_ppo`` does, but without importing verl here.

``launch.py`` starts it as ``python -m bapo.engines.verl.job FOLDER PARENT``.
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

from bapo.engines.verl import verl_config
from bapo.engines.verl.launch import ERROR, RESOLVED
from bapo.store.files import write_json
from bapo.validate import plain


class TaskRunner:
    """Starts the services of a run and trains it to its end, in a Ray process."""

    def run(self, config: DictConfig) -> None:
        import transfer_queue as tq
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        from bapo.engines.verl.trainer import MethodTrainer, Stopped

        verl_config.validate(config)
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


def main(work: Path, parent: int) -> int:
    """Run verl's configuration in ``work``. Returns 0, or 1 for an error, which is written there.

    parent: the process that started this one. It may have ended before this line.
    """
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    verl = OmegaConf.load(work / RESOLVED)
    assert isinstance(verl, DictConfig)
    try:
        _start_ray(verl)
        ray.get(ray.remote(TaskRunner).remote().run.remote(verl))
        return 0
    except Exception as error:
        traceback.print_exc()
        write_json(work / ERROR, {"error": first_error(error)})
        return 1
    finally:
        ray.shutdown()


def _start_ray(verl: DictConfig) -> None:
    options = plain(verl.ray_kwargs.ray_init)
    try:
        ray.init(**options)
    except Exception as error:  # Ray's limit of 30 s for its servers is a constant, and a busy machine may need more
        if "timed out during startup" not in str(error):
            raise
        ray.shutdown()
        ray.init(**options)


def first_error(error: BaseException) -> str:
    """Return in one line the error of the worker that failed first, which Ray wraps once for each process."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _end_with(parent: int) -> None:
    """End this session when the process that started it is gone and can no longer clean up."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
