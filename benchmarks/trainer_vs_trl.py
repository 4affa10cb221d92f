"""Milliseconds per step of our torch engine and of TRL's GRPOTrainer.

    pip install -e '.[benchmark]'
    python benchmarks/trainer_vs_trl.py [--results FOLDER] [--rounds N] [--smallest]

Both start from the same trained base, some of whose responses are right, and do the same work on one thread: 32 prompts
x 8 responses of at most 20 tokens, our verifier as the reward, 4 updates of 8 prompts each, GRPO loss with clip 0.2, KL
to the base and an entropy bonus, AdamW. The two are separate trainers in one process and take turns: after each of
TRL's steps (4 optimiser steps and one generation) our engine makes one. CPU time is measured; the ratio is shown by
median and quartiles, and above 1 ours is faster.

TRL has the fast settings for this case: float32, no gradient checkpointing, fused AdamW, nothing logged or saved, a
mini-batch in one piece. Limits: ours spends most of a step in the updates (forward and backward of the policy and the
forward of the reference; a quarter is matrix products, half is calls), on 0.5 of TRL's tokens, because equal
beginnings are computed once and padding is left out. TRL needs one more forward for the old log-probabilities, because
its generation, the library's ``generate``, returns none.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import world

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main() -> None:
    options = world.arguments(__doc__, rounds=12).parse_args()
    rounds = 2 if options.smallest else options.rounds
    try:
        from trl import GRPOConfig, GRPOTrainer
    except ImportError as error:
        raise SystemExit("this benchmark needs TRL: pip install -e '.[benchmark]'") from error
    from datasets import Dataset
    from transformers import TrainerCallback

    from bapo import tasks
    from bapo.engines.torch.trainer import Trainer
    from bapo.experiments.places import base_directory, data_directory
    from bapo.store.files import STEPS, read_table

    warnings.filterwarnings("ignore")
    overrides = ("method=grpo", "probe.prompts=0", f"train.steps={rounds + 2}")
    config = world.trained_base(options.results, *overrides, smallest=options.smallest)
    t, s = config.train, config.sampling
    per_step = t.batch_size // t.mini_batch_size
    ours = Trainer(config, Path(mkdtemp(prefix="bapo-benchmark-run-")), "benchmark")

    table = read_table(data_directory(config) / "train.parquet", ["prompt", "reward_model"])
    task = tasks.get(config.task.name)
    dataset = Dataset.from_dict(
        {
            "prompt": [p[0]["content"] for p in table["prompt"]],
            "ground_truth": [r["ground_truth"] for r in table["reward_model"]],
        }
    )

    def reward(completions: list[str], ground_truth: list[str], **_: object) -> list[float]:
        return [float(task.verify(c, g).correct) for c, g in zip(completions, ground_truth, strict=True)]

    seconds: dict[str, list[float]] = {"trl": [], "ours": []}

    class TakeTurns(TrainerCallback):
        """A callback that times TRL's steps and runs one of ours after each."""

        begun = 0.0

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % per_step:
                return
            now = time.process_time()
            seconds["trl"].append(now - self.begun)
            ours._train_step(state.global_step // per_step)
            self.begun = time.process_time()
            seconds["ours"].append(self.begun - now)

        def on_train_begin(self, args, state, control, **kwargs):
            self.begun = time.process_time()

    trainer = GRPOTrainer(
        model=str(base_directory(config) / "checkpoint"),
        reward_funcs=reward,
        train_dataset=dataset,
        callbacks=[TakeTurns()],
        args=GRPOConfig(
            output_dir=mkdtemp(prefix="bapo-benchmark-trl-"),
            model_init_kwargs={"dtype": "float32"},
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            optim="adamw_torch_fused",
            max_steps=per_step * (rounds + 1),
            per_device_train_batch_size=t.mini_batch_size * t.group_size,
            gradient_accumulation_steps=1,
            steps_per_generation=per_step,
            num_iterations=1,
            num_generations=t.group_size,
            max_completion_length=s.max_response_tokens,
            temperature=s.temperature,
            top_p=1.0,
            top_k=0,
            learning_rate=t.learning_rate,
            lr_scheduler_type="constant",
            adam_beta1=t.betas[0],
            adam_beta2=t.betas[1],
            max_grad_norm=t.grad_clip,
            loss_type="grpo",
            epsilon=0.2,
            beta=t.kl_coef,
            entropy_coef=t.entropy_coef,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.train()

    trl, own = (np.array(seconds[name][1:]) for name in ("trl", "ours"))  # the first step warms up
    rows = ours.recorder.rows[STEPS][1:]
    rewards = np.mean([r["reward_mean"] for r in rows])
    if not rewards:
        raise SystemExit("no response was right, so there was nothing to learn: train the base for longer")
    print(f"\n{world.machine()}")
    print(f"TRL GRPOTrainer  {world.spread(trl * 1000, '{:.0f}')} ms of CPU time per step")
    print(f"our engine       {world.spread(own * 1000, '{:.0f}')} ms")
    for phase in ("rollout", "reward", "update"):
        spent = np.array([r[f"seconds_{phase}"] for r in rows])
        print(f"    {phase:<12} {world.spread(1000 * spent, '{:.0f}')} ms, waiting included")
    lengths = np.mean([r["response_length"] for r in rows])
    updates = {r["updates"] for r in rows}
    print(f"    responses of {lengths:.1f} tokens, {rewards:.1%} right, {sorted(updates)} updates per step")
    print(f"ratio            {world.spread(trl / own)}")


if __name__ == "__main__":
    main()
