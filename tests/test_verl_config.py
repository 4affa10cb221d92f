"""verl's configuration of every run of the paper's table, checked by verl's own classes; no Ray, no GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("VERL_PLATFORM", "cpu")  # verl reads both when it is imported
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "bapo.engines.verl.plugin")
pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import yaml
from omegaconf import OmegaConf
from safetensors.torch import load_file

from bapo import config as configuration
from bapo.engines.verl import launch, run_directory, verl_config
from bapo.engines.verl.reward import compute_score
from bapo.engines.verl.worker import CURRENT, DELAYED, MethodWorker, warm_up
from bapo.errors import UserError

TABLE = yaml.safe_load((configuration.EXPERIMENTS / "study" / "table1.yaml").read_text(encoding="utf-8"))


def paper_cells() -> list[tuple[str, str, str, int]]:
    return [
        (row["task"], model, method, row["seeds"][0])
        for row in TABLE["scales"]["paper"]
        for model in row["models"]
        for method in row["methods"]
    ]


@pytest.mark.parametrize(("task", "model", "method", "seed"), paper_cells())
def test_verl_accepts_every_row_of_the_paper(task: str, model: str, method: str, seed: int) -> None:
    config = configuration.run_config("paper", task, model, method, seed)
    verl = verl_config.resolve(config)
    verl_config.validate(verl)
    actor, rollout = verl.actor_rollout_ref.actor, verl.actor_rollout_ref.rollout
    assert (verl.trainer.n_gpus_per_node, verl.trainer.device, actor.strategy) == (8, "cuda", "fsdp2")
    assert rollout.name == "vllm"
    assert verl.actor_rollout_ref.model.enable_gradient_checkpointing
    assert verl.actor_rollout_ref.model.path == config.model.path
    # Table 3
    assert (verl.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n) == (256, 64, 8)
    assert actor.optim.lr == 1e-6
    assert (verl.data.max_prompt_length, verl.data.max_response_length) == (512, 2048)
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 1.0, -1)
    assert verl.trainer.total_epochs == 3
    assert actor.use_kl_loss == (method == "grpo")  # the others need no reference policy
    assert verl.algorithm.adv_estimator == actor.policy_loss.loss_mode == "bapo"
    assert OmegaConf.to_container(verl.actor_rollout_ref.bapo.method) == OmegaConf.to_container(config.method)


def test_pi_k_is_computed_only_where_the_loss_reads_it() -> None:
    def bypass(method: str) -> bool:
        correction = verl_config.resolve(configuration.compose_config(["scale=smoke", f"method={method}"])).algorithm
        return bool(correction.rollout_correction and correction.rollout_correction.bypass_mode)

    assert bypass("bapo")
    assert not bypass("grpo_v5")


def test_settings_that_verl_would_refuse_are_named() -> None:
    config = configuration.compose_config(["scale=paper", "train.mini_batch_size=5", "train.group_size=3"])
    with pytest.raises(UserError, match=r"train\.mini_batch_size=5.*8 GPUs"):
        verl_config.resolve(config)
    verl = verl_config.resolve(configuration.compose_config(["scale=paper"]))
    verl.actor_rollout_ref.actor.loss_agg_mode = "no-such-mode"
    with pytest.raises(UserError, match="no-such-mode"):
        verl_config.validate(verl)


def test_auto_puts_a_pretrained_model_on_gpus() -> None:
    assert verl_config.device_of(configuration.compose_config(["scale=paper"])) == "cuda"
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert verl_config.device_of(configuration.compose_config(["scale=smoke"])) == expected
    assert verl_config.device_of(configuration.compose_config(["scale=paper", "device=cpu"])) == "cpu"


# ------------------------------------------------------------------------------------------------ reward


def test_the_reward_is_the_tasks_verifier() -> None:
    truth = json.dumps({"numbers": [2, 3, 4], "target": 24, "format": "expression"})

    def score(response: str) -> dict:
        return compute_score("train", response, truth, {"id": "p7"}, task="countdown")

    assert score("2*3*4") == {"score": 1.0, "acc": 1.0, "problem": "p7"}
    assert score("2*3+4")["score"] == 0.0


# ------------------------------------------------------------------------------------------------ worker


class Engine:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1.0)


class Pushes:
    """Stands where verl's worker class stands: its ``update_weights`` sends the module's parameters."""

    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> tuple:
        if global_steps == 99:
            raise ConnectionError("the rollout engine is gone")
        return global_steps, [p.detach().clone() for p in self.actor.engine.module.parameters()]


class Worker(MethodWorker, Pushes):
    def __init__(self) -> None:
        self.actor = type("Actor", (), {"engine": Engine()})()
        self.rank, self.world_size = 0, 1


def push(worker: Worker, version: int = 1) -> list[torch.Tensor]:
    import asyncio

    return asyncio.run(worker.update_weights(global_steps=version))[1]


def test_the_delayed_policy_is_pushed_and_the_current_one_put_back(tmp_path: Path) -> None:
    worker = Worker()
    with pytest.raises(RuntimeError, match="no rollout policy was kept"):
        worker.choose_rollout_policy(DELAYED)
    old = [p.detach().clone() for p in worker.actor.engine.module.parameters()]
    worker.snapshot_rollout_policy()
    with torch.no_grad():
        for p in worker.actor.engine.module.parameters():
            p.add_(1.0)
    new = [p.detach().clone() for p in worker.actor.engine.module.parameters()]

    worker.choose_rollout_policy(DELAYED)
    torch.testing.assert_close(push(worker), old, rtol=0, atol=0)
    with pytest.raises(ConnectionError):
        push(worker, version=99)
    torch.testing.assert_close(list(worker.actor.engine.module.parameters()), new, rtol=0, atol=0)
    worker.choose_rollout_policy(CURRENT)
    torch.testing.assert_close(push(worker), new, rtol=0, atol=0)

    worker.save_rollout_policy(str(tmp_path))
    assert len(load_file(tmp_path / "rollout_policy_rank0_of_1.safetensors")) == 2
    other = Worker()
    other.load_rollout_policy(str(tmp_path))
    other.choose_rollout_policy(DELAYED)
    torch.testing.assert_close(push(other), old, rtol=0, atol=0)
    other.world_size = 4
    with pytest.raises(RuntimeError, match="as many GPUs"):
        other.load_rollout_policy(str(tmp_path))


def test_the_learning_rate_rises_with_the_updates_and_survives_a_resume() -> None:
    def step(engine: Engine) -> float:
        engine.module(torch.ones(1, 3)).sum().backward()
        engine.optimizer.step()
        return engine.optimizer.param_groups[0]["lr"]

    engine = Engine()
    warm_up(engine.optimizer, 0.4, 4)
    assert [step(engine) for _ in range(2)] == pytest.approx([0.1, 0.2])
    resumed = Engine()
    warm_up(resumed.optimizer, 0.4, 4)
    resumed.optimizer.load_state_dict(engine.optimizer.state_dict())
    assert [step(resumed) for _ in range(4)] == pytest.approx([0.3, 0.4, 0.4, 0.4])


# ------------------------------------------------------------------------------------------------ the rest


def test_probe_rows_count_by_set_and_problem() -> None:
    entries = [("train", "a", 1.0), ("train", "a", 0.0), ("probe", "a", 1.0), ("probe", "b", 0.0)]
    rows = run_directory.probe_rows(5, entries)
    assert rows[0] == {"step": 5, "set": "train", "prompt_id": "a", "correct": 1, "samples": 2, "mean": 0.5}
    assert [(r["set"], r["prompt_id"], r["mean"]) for r in rows[1:]] == [("probe", "a", 1.0), ("probe", "b", 0.0)]


def test_the_error_of_a_rollout_worker_is_found_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "verl.log"
    log.write_text(
        "(pid=1) Warning: ValueError: not this\n"
        "\x1b[36m(AgentLoopWorkerTQ pid=2)\x1b[0m Error in _run_prompt for uid=1\n"
        "\x1b[36m(AgentLoopWorkerTQ pid=2)\x1b[0m Traceback (most recent call last):\n"
        "\x1b[36m(AgentLoopWorkerTQ pid=2)\x1b[0m ValueError: problem p3 has 700 prompt tokens\n"
    )
    assert launch.rollout_error(log) == "ValueError: problem p3 has 700 prompt tokens"
    log.write_text("nothing here\n")
    assert launch.rollout_error(log) is None


def test_verl_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.metadata, "version", lambda name: "0.9.2")
    with pytest.raises(UserError, match=r"verl 0\.9\.2 is installed, this project is made for 0\.9\.1"):
        launch._require_verl()


def test_estimates_follow_the_model_size() -> None:
    from bapo.engines.verl.estimates import estimate

    small = estimate(configuration.run_config("paper", "countdown", "qwen2.5-math-1.5b", "bapo", 42))
    large = estimate(configuration.run_config("paper", "countdown", "qwen2.5-math-7b", "bapo", 42))
    grpo = estimate(configuration.run_config("paper", "countdown", "qwen2.5-math-7b", "grpo", 42))
    logits = 6 * 152_000 * 2 * (512 + 2048)  # two sequences a GPU
    assert small.gpu_bytes - logits == pytest.approx(16 * 1.54e9 / 8)
    assert large.seconds / small.seconds == pytest.approx(7.62 / 1.54)
    assert grpo.gpu_bytes - large.gpu_bytes == pytest.approx(2 * 7.62e9 / 8)  # its reference policy
    assert (large.host_bytes, grpo.host_bytes) == (8 * 7.62e9, 0)
    # 2048 responses of 1024 tokens at 5% of eight A100s
    assert small.seconds_generation == pytest.approx(2 * 1.54e9 * 2048 * 1024 / (8 * 312e12 * 0.05))
