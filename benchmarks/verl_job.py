"""One run through verl that says how far it is: ``python benchmarks/verl_job.py WORK SIDE`` (started by verl_step.py).

SIDE ``verl`` is verl's own GRPO: its trainer, advantages and loss, with no more of ours than what it lacks on CPU cores
(workers on gloo, a rollout). ``suite`` is the method of WORK/config.yaml as the suite runs it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

MARK = "[mark] "


def mark(name: str) -> None:
    print(f"{MARK}{name}", flush=True)


def main(work: Path, side: str) -> None:
    from bapo.engines.verl import devices, verl_config

    os.environ.update(devices.environment("cpu"))
    import ray
    from verl.trainer.main_ppo import run_ppo

    run = OmegaConf.create((work / "config.yaml").read_text(encoding="utf-8"))
    verl = verl_config.resolve(run, device="cpu")
    facts = {"identity": "benchmark", "budget": None, "end": None}
    OmegaConf.update(verl, "bapo", facts, force_add=True)
    with open_dict(verl):
        verl.ray_kwargs.ray_init.runtime_env = {"env_vars": devices.environment("cpu")}
        verl.ray_kwargs.ray_init._temp_dir = str(work / "ray")
        if side == "verl":
            verl.algorithm.adv_estimator = "grpo"
            verl.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    mark("imports")
    try:
        run_ppo(verl, task_runner_class=ray.remote(Runner))
    finally:
        ray.shutdown()


class Runner:
    """verl's entry point inside Ray, as bapo.engines.verl.task_runner.TaskRunner."""

    def run(self, config: DictConfig) -> None:
        import transfer_queue as tq
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        mark("Ray")
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        try:
            trainer = (own() if config.algorithm.adv_estimator == "grpo" else ours())(config)
            trainer.init()
            mark("workers and models")
            manager = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            trainer.fit(manager)
        finally:
            tq.close()


def ours() -> type:
    from bapo.engines.verl.trainer import MethodTrainer

    class Trainer(MethodTrainer):
        def on_step_end(self) -> None:
            super().on_step_end()
            mark(f"step {self.global_steps}")

    return Trainer


def own() -> type:
    """Return verl's own trainer, with workers on CPU cores in place of its GPU workers."""
    import ray
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    class Trainer(PPOTrainerSync):
        def _init_resource_pool_mgr(self) -> None:
            super()._init_resource_pool_mgr()
            self.role_worker_mapping = dict.fromkeys(self.role_worker_mapping, ray.remote(worker()))

        def on_step_end(self) -> None:
            super().on_step_end()
            mark(f"step {self.global_steps}")

    return Trainer


def worker() -> type:
    from verl.models.transformers import monkey_patch
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.workers.engine_workers import ActorRolloutRefWorker

    from bapo.engines.verl.cpu.workers import CPUTrainingWorker

    class OwnWorker(ActorRolloutRefWorker):
        actor_worker_cls = ref_worker_cls = CPUTrainingWorker

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def init_model(self) -> Any:
            monkey_patch.is_trl_available = lambda: False  # as in bapo/engines/verl/worker.py
            return super().init_model()

    return OwnWorker


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
