"""verl's entry point inside Ray: one run, from its services to its last step."""

from __future__ import annotations

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf

from bapo.engines.verl.trainer import MethodTrainer, Stopped


@ray.remote
class TaskRunner:
    def run(self, config: DictConfig) -> None:
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

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
