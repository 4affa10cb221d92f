"""verl's configuration of every run of the paper's table, checked by verl's own classes; no Ray, no GPU."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")  # verl reads both when it is imported
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "bapo.engines.verl.plugin")
pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file

from analysis.products import at_scale
from bapo import methods
from bapo.engines.verl import checkpoints, devices, launch, run_directory, settings, verl_config
from bapo.engines.verl.reward import compute_score
from bapo.engines.verl.worker import CURRENT, DELAYED, MethodWorker, warm_up
from bapo.errors import UserError
from bapo.experiments import compose as configuration
from bapo.experiments import studies
from bapo.experiments.cells import Cell
from bapo.experiments.places import data_directory, options
from bapo.experiments.schema import VERL
from bapo.validate import plain

#: Table 3 and the authors' scripts: prompt and response tokens, epochs, KL coefficient; 4K is Qwen3's (5.2, A.3, A.9)
PAPER = {"mathematics": (2048, 8192, 3, 0.001), "countdown": (512, 2048, 3, 0.001), "geometry": (1024, 4096, 30, 0.01)}
#: the same for 120 steps on one GPU, which no epochs end
SINGLE = {"mathematics": (512, 0.001), "countdown": (512, 0.001), "geometry": (1024, 0.01)}
SINGLE = {task: (prompt, 1024, 10**6, kl) for task, (prompt, kl) in SINGLE.items()}
#: scale -> GPUs, prompts a step and an update, steps, the table above
SCALES = {"paper": (8, 256, 64, None, PAPER), "single_gpu": (1, 64, 16, 120, SINGLE)}
STUDIES = {name: studies.load_study(name, "paper") for name in at_scale(options("study"), "paper")}
#: the paper's own table and figures; the other studies change what Table 3 says
OWN = {cell for name, study in STUDIES.items() if name.startswith(("table", "figure")) for cell in study.cells}
#: a seed is a number that verl is given: the first is enough
ALL = sorted((cell for study in STUDIES.values() for cell in study.cells), key=str, reverse=True)
OTHER = {cell.method: cell for cell in ALL if cell not in OWN}
RUNS = [("paper", cell) for cell in {(c.task, c.model, c.method): c for c in ALL if c in OWN}.values()]
RUNS += [("single_gpu", cell) for cell in studies.load_study("single_gpu", "single_gpu").cells]


VALIDATED: set[str] = set()


def validate(verl: DictConfig) -> None:
    """What verl's classes look at, once: there a variant often differs from its method in nothing but names."""
    read = OmegaConf.to_container(verl, resolve=False)
    for part, name in ((read, "bapo"), (read["actor_rollout_ref"], "bapo"), (read["trainer"], "experiment_name")):
        del part[name]
    read["actor_rollout_ref"]["model"] = OmegaConf.to_container(verl.actor_rollout_ref.model) | {"path": "PATH"}
    key = json.dumps(read, sort_keys=True).replace(str(Path(verl.trainer.default_local_dir).parents[1]), "FOLDER")
    if key not in VALIDATED:
        verl_config.validate(verl)
        VALIDATED.add(key)


@pytest.fixture(scope="module")
def critic_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3's configuration without the hub."""
    from transformers import Qwen3Config

    folder = tmp_path_factory.mktemp("critic")
    Qwen3Config(architectures=["Qwen3ForCausalLM"]).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("cell", sorted(OTHER.values(), key=str), ids=lambda c: f"{c.task}-{c.method}")
def test_verl_accepts_every_method_of_the_other_studies(cell: Cell) -> None:
    config = configuration.run_config("paper", cell.task, cell.model, cell.method, cell.seed)
    verl = verl_config.resolve(config)
    validate(verl)
    method = methods.build(config.method, config.train.batch_size, config.seed)
    actor = verl.actor_rollout_ref.actor
    assert (actor.kl_loss_coef, actor.use_kl_loss) == (config.method.kl_coef, method.needs_reference)
    assert verl.actor_rollout_ref.rollout.temperature == config.sampling.temperature
    bypass = verl.algorithm.rollout_correction and verl.algorithm.rollout_correction.bypass_mode
    assert bool(bypass) != method.needs_step_policy
    assert plain(verl.actor_rollout_ref.bapo.method) == plain(config.method)


@pytest.mark.parametrize(
    ("scale", "cell"), RUNS, ids=lambda x: x if isinstance(x, str) else f"{x.task}-{x.model}-{x.method}"
)
def test_verl_accepts_every_run_of_the_paper_and_of_one_gpu(scale: str, cell: Cell, critic_folder: Path) -> None:
    """Table 1, Figures 5, 6, 10 and 16; study single_gpu."""
    config = configuration.run_config(scale, cell.task, cell.model, cell.method, cell.seed)
    verl = verl_config.resolve(config)
    checked = copy.deepcopy(verl)
    if verl.critic.enable:  # its class reads the model's own configuration, which lies on the hub
        assert verl.critic.model.path == config.model.path
        checked.critic.model = OmegaConf.merge(
            checked.critic.model, {"path": str(critic_folder), "load_tokenizer": False}
        )
    validate(checked)
    gpus, batch, mini_batch, steps, table = SCALES[scale]
    prompt, response, epochs, kl = table[cell.task]
    response = 4096 if cell.model in ("qwen3-4b", "qwen3-8b") else response
    actor, rollout = verl.actor_rollout_ref.actor, verl.actor_rollout_ref.rollout
    assert (verl.trainer.n_gpus_per_node, verl.trainer.device, actor.strategy) == (gpus, "cuda", "fsdp2")
    assert rollout.name == "vllm"
    assert verl.actor_rollout_ref.model.enable_gradient_checkpointing
    assert verl.actor_rollout_ref.model.path == config.model.path
    assert rollout.max_model_len == prompt + response
    # Table 3
    assert (verl.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n) == (batch, mini_batch, 8)
    assert actor.optim.lr == 1e-6
    assert (verl.data.max_prompt_length, verl.data.max_response_length) == (prompt, response)
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 1.0, -1)
    assert (verl.trainer.total_epochs, verl.trainer.total_training_steps) == (epochs, steps)
    assert actor.fsdp_config.offload_policy == (scale == "single_gpu" and cell.task == "geometry")
    without_kl = cell.method in ("dapo", "repo")
    assert actor.kl_loss_coef == (0 if without_kl else kl)
    assert actor.use_kl_loss == (cell.method in ("grpo", "grpo_v5", "ppo"))  # the others need no reference policy
    assert verl.critic.enable == ("ppo" in cell.method)
    assert verl.algorithm.adv_estimator == actor.policy_loss.loss_mode == "bapo"
    assert plain(verl.actor_rollout_ref.bapo.method) == plain(config.method)


def test_pi_k_is_computed_only_where_the_loss_reads_it() -> None:
    def bypass(method: str) -> bool:
        correction = verl_config.resolve(configuration.compose_config(["scale=smoke", f"method={method}"])).algorithm
        return bool(correction.rollout_correction and correction.rollout_correction.bypass_mode)

    assert bypass("bapo")
    assert not bypass("grpo_v5")


def test_log_probabilities_are_computed_again_only_where_they_are_of_the_same_policy() -> None:
    """verl's own way for fresh responses; a method with a delayed policy or pi_k has another denominator."""
    again = "train.old_logprobs=recomputed"
    grpo = verl_config.resolve(configuration.compose_config(["scale=paper", "method=grpo", again]))
    assert grpo.algorithm.rollout_correction is None and grpo.actor_rollout_ref.bapo.recomputes
    usual = verl_config.resolve(configuration.compose_config(["scale=paper", "method=grpo"]))
    assert usual.algorithm.rollout_correction.bypass_mode and not usual.actor_rollout_ref.bapo.recomputes
    for method in ("bapo", "grpo_v5"):
        with pytest.raises(UserError, match=rf"train\.old_logprobs=recomputed: method={method}"):
            verl_config.resolve(configuration.compose_config(["scale=paper", f"method={method}", again]))
    with pytest.raises(UserError, match=r"train\.old_logprobs=recomputed.*engine=torch"):
        configuration.compose_config(["scale=smoke", again])


def test_settings_that_verl_would_refuse_are_named() -> None:
    config = configuration.compose_config(["scale=paper", "train.mini_batch_size=5", "train.group_size=3"])
    with pytest.raises(UserError, match=r"train\.mini_batch_size=5.*8 GPUs"):
        verl_config.resolve(config)
    verl = verl_config.resolve(configuration.compose_config(["scale=paper"]))
    verl.actor_rollout_ref.actor.loss_agg_mode = "no-such-mode"
    with pytest.raises(UserError, match="no-such-mode"):
        verl_config.validate(verl)


def test_a_misspelt_setting_is_named() -> None:
    with pytest.raises(UserError, match=r"verl\.gpu_per_node.*did you mean 'gpus_per_node'"):
        configuration.compose_config(["scale=smoke", "verl.gpu_per_node=2"])
    source = "".join(p.read_text(encoding="utf-8") for p in Path(verl_config.__file__).parent.glob("*.py"))
    for key in VERL:  # each one is read somewhere
        assert f'get(config, "{key}"' in source


def test_auto_puts_a_pretrained_model_on_gpus() -> None:
    assert devices.device_of(configuration.compose_config(["scale=paper"])) == "cuda"
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert devices.device_of(configuration.compose_config(["scale=smoke"])) == expected
    assert devices.device_of(configuration.compose_config(["scale=paper", "device=cpu"])) == "cpu"


def test_a_run_has_one_machine_and_a_ray_of_its_own() -> None:
    paper = ["scale=paper", "task=mathematics"]
    assert verl_config.resolve(configuration.compose_config(paper)).ray_kwargs.ray_init.address == "local"
    with pytest.raises(UserError, match=r"verl\.nodes=2: a run has the GPUs of one machine; leave verl\.nodes out"):
        configuration.compose_config([*paper, "verl.nodes=2"])


def test_dapos_limit_is_in_verls_own_words() -> None:
    """verl's replay buffer has no limit; ours keeps the method's, and the configuration must not say otherwise."""
    config = configuration.run_config("paper", "countdown", "qwen2.5-math-1.5b", "dapo", 42)
    filters = verl_config.resolve(config).algorithm.filter_groups
    assert (filters.enable, filters.metric, filters.max_num_gen_batches) == (True, "reward", 4)
    assert "max_num_gen_batches: 4" in verl_config.as_yaml(config)
    grpo = configuration.compose_config(["scale=paper", "method=grpo"])
    assert not verl_config.resolve(grpo).algorithm.filter_groups.enable
    for method, override in (("dapo", "max_num_gen_batches: 0"), ("grpo", "enable: true")):
        words = ["scale=paper", f"method={method}", f"verl.overrides={{algorithm: {{filter_groups: {{{override}}}}}}}"]
        with pytest.raises(UserError, match=r"method\.max_generation_batches"):
            verl_config.resolve(configuration.compose_config(words))


def test_the_buffer_that_carries_out_the_filter_is_ours() -> None:
    """verl's would evict and refill by itself, without the limit: it must never be built with the filter."""
    from bapo.engines.verl.replay_buffer import MethodReplayBuffer

    buffer = MethodReplayBuffer(lambda meta: (meta, {}), asked=lambda: 1, stalled_after=1.0)
    assert buffer.filter_groups_metric is None


@pytest.mark.parametrize(("partition", "expected"), [("train", 10), ("val", 16)])
def test_the_buffer_waits_for_the_prompts_that_the_method_drew(
    monkeypatch: pytest.MonkeyPatch, partition: str, expected: int
) -> None:
    """DOTS-RR draws half a batch, AReaL five at first: verl's own batch size is not what is on its way."""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    from bapo.engines.verl.replay_buffer import MethodReplayBuffer

    waited: list[int] = []

    def sample(self, global_steps: int, partition_id: str, batch_size: int):
        waited.append(batch_size)
        return "rows", {}

    monkeypatch.setattr(ReplayBuffer, "sample", sample)
    buffer = MethodReplayBuffer(lambda meta: (f"built from {meta}", {}), asked=lambda: 10, stalled_after=1.0)
    found, _ = buffer.sample(global_steps=1, partition_id=partition, batch_size=16)
    assert waited == [expected] and found == ("built from rows" if partition == "train" else "rows")


def test_validation_draws_32_samples() -> None:
    config = configuration.compose_config(["scale=paper", "verl.validation=[cd34]", "probe.samples=8"])
    verl = verl_config.resolve(config)
    assert verl.actor_rollout_ref.rollout.val_kwargs.n == 32
    assert verl.actor_rollout_ref.rollout.val_kwargs.temperature == 1.0  # verl's default is greedy
    assert settings.validation_sets(config) == {"train": (256, 8), "probe": (256, 8), "cd34": (None, 32)}
    bare = configuration.compose_config(["scale=paper", "probe.prompts=0", "verl.validation=[]"])
    assert settings.validation_sets(bare) == {} and verl_config.resolve(bare).trainer.test_freq == -1
    bare = configuration.compose_config(["scale=paper", "probe.prompts=0", "verl.validation=[cd4]"])
    assert verl_config.resolve(bare).trainer.test_freq == 1
    with pytest.raises(UserError, match=r"verl\.validation_samples=0"):
        verl_config.resolve(configuration.compose_config(["scale=paper", "verl.validation_samples=0"]))


def test_the_validation_file_names_each_set_and_its_samples(tiny_world: list[str], tmp_path: Path) -> None:
    config = configuration.compose_config([*tiny_world, "verl.validation=[cd4]", "verl.validation_samples=5"])
    launch._write_probe(config, tmp_path / "probe.parquet")
    table = pd.read_parquet(tmp_path / "probe.parquet")
    counts = table.groupby("data_source", sort=False)["__rollout_n__"].agg(["size", "max"])
    assert counts.to_dict("index") == {
        "train": {"size": 4, "max": 4},
        "probe": {"size": 4, "max": 4},
        "cd4": {"size": 6, "max": 5},
    }
    config = configuration.compose_config([*tiny_world, "verl.validation=[aime24]"])
    with pytest.raises(UserError, match=r"verl\.validation=aime24.*cd34, cd4"):
        launch._write_probe(config, tmp_path / "probe.parquet")


# ------------------------------------------------------------------------------------------------ reward


def test_the_reward_is_the_tasks_verifier() -> None:
    truth = json.dumps({"numbers": [2, 3, 4], "target": 24, "format": "expression"})

    def score(response: str) -> dict:
        return compute_score("train", response, truth, {"id": "p7"}, task="countdown")

    found = score("2*3*4")
    assert 0 < found.pop("seconds") < 10
    assert found == {"score": 1.0, "acc": 1.0, "problem": "p7", "overloaded": 0}
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
        self.ref = type("Reference", (), {"engine": Engine()})()
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


def test_the_reference_takes_the_current_weights_and_keeps_them_over_a_resume(tmp_path: Path) -> None:
    worker = Worker()
    worker.ref.engine.module.to(torch.bfloat16)  # as on GPUs
    current, reference = worker.actor.engine.module, worker.ref.engine.module
    with torch.no_grad():
        current.weight.fill_(1.0 + 2**-9)  # between two bfloat16 numbers
    assert not (reference.weight == 1.0).any()
    worker.reset_reference()
    assert (reference.weight == 1.0).all() and torch.equal(reference.bias, current.bias.bfloat16())
    with torch.no_grad():
        current.weight.fill_(2.0)
    assert (reference.weight == 1.0).all()  # a copy

    worker.save_reference(str(tmp_path))
    other = Worker()
    other.ref.engine.module.to(torch.bfloat16)
    other.load_reference(str(tmp_path))
    assert torch.equal(other.ref.engine.module.weight, reference.weight)
    other.world_size = 2
    with pytest.raises(RuntimeError, match=r"reference_rank0_of_2.*as many GPUs"):
        other.load_reference(str(tmp_path))


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


def test_what_gpus_need_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paper = ["scale=paper", "task=mathematics", "method=bapo", f"paths.results={tmp_path}"]
    found = {"vllm", "flash_attn"}
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: name if name in found else None)
    launch._require_packages(configuration.compose_config(paper))
    found.remove("flash_attn")
    with pytest.raises(UserError, match=r"on GPUs: flash-attn not installed; make the environment of GPU nodes"):
        launch.train(configuration.compose_config(paper))
    model = "{override_config: {attn_implementation: sdpa}, use_remove_padding: false}"
    other = [*paper, f"verl.overrides={{actor_rollout_ref: {{model: {model}}}}}"]
    launch._require_packages(configuration.compose_config(other))
    found.clear()
    with pytest.raises(UserError, match="on GPUs: vllm and flash-attn not installed"):
        launch._require_packages(configuration.compose_config(paper))
    launch._require_packages(configuration.compose_config([*paper, "device=cpu"]))
    with pytest.raises(UserError, match=r"verl\.rollout=vllm: vLLM is not installed; containers/vllm_cpu/install"):
        launch._require_packages(configuration.compose_config([*paper, "device=cpu", "verl.rollout=vllm"]))


def test_heads_that_vllm_does_not_know_on_cpu_cores_are_refused_before_anything_starts(
    tiny_world: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.vllm, "require", lambda *_: None)  # as if vLLM were there
    verl = [*tiny_world, "device=cpu", "verl.rollout=vllm"]
    expected = (
        r"verl\.rollout=vllm: the attention heads of \S+ have 16 entries, .* may have 32, .*leave verl\.rollout out"
    )
    with pytest.raises(UserError, match=expected):
        launch._require_start(configuration.compose_config(verl))
    launch._require_start(configuration.compose_config(verl[:-1]))


@pytest.mark.parametrize("key", ["actor_rollout_ref.rollout.max_num_seq", "trainer.save_freqs", "algoritm"])
def test_a_key_that_verl_does_not_have_is_refused(key: str) -> None:
    words = OmegaConf.create({})
    OmegaConf.update(words, key, 1, force_add=True)
    config = configuration.compose_config(["scale=paper", "method=grpo"])
    config.verl = OmegaConf.create({"overrides": words})
    with pytest.raises(UserError, match=rf"verl\.overrides\.{re.escape(key)}: verl has no such key '\w+' \(did you"):
        verl_config.resolve(config)


@pytest.mark.parametrize(
    ("key", "value", "cure"),
    [
        ("overrides.trainer.nnodes", 2, "a run has the GPUs of one machine, as many as verl.gpus_per_node says"),
        ("overrides.trainer.n_gpus_per_node", 4, "set verl.gpus_per_node"),
        ("overrides.ray_kwargs.ray_init.address", "auto", "a run starts a Ray of its own; leave it out"),
        ("tensor_parallel", 3, "must divide the 8 GPUs of verl.gpus_per_node"),
        ("tensor_parallel", 16, "must divide the 8 GPUs of verl.gpus_per_node"),
    ],
)
def test_a_run_stays_on_the_gpus_that_it_locks(key: str, value: object, cure: str) -> None:
    config = configuration.compose_config(["scale=paper", "method=grpo"])
    OmegaConf.update(config.verl, key, value, force_add=True)
    with pytest.raises(UserError, match=rf"^verl\.{re.escape(key)}={value}: {cure}"):
        verl_config.resolve(config)


def test_what_a_library_reads_takes_any_key() -> None:
    config = configuration.compose_config(["scale=paper", "method=grpo"])
    rollout = {"engine_kwargs": {"vllm": {"swap_space": 1}}, "max_num_seqs": 8}
    model = {"override_config": {"attention_dropout": 0.0}}
    ray = {"ray_init": {"dashboard_port": 8265}}
    overrides = {"actor_rollout_ref": {"rollout": rollout, "model": model}, "ray_kwargs": ray}
    config.verl = OmegaConf.create({"overrides": overrides})
    found = verl_config.resolve(config)
    assert found.actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space == 1
    assert found.ray_kwargs.ray_init.dashboard_port == 8265


def test_a_run_begins_with_what_earlier_jobs_left(tiny_world: list[str], tmp_path: Path) -> None:
    """As in the torch engine: problems and base model of this configuration, and undamaged, before Ray starts."""
    results = tmp_path / "results"
    overrides = [*tiny_world, f"paths.results={results}", "engine=verl", "device=cpu"]
    with pytest.raises(UserError, match="the problems are missing"):
        launch.train(configuration.compose_config(overrides))
    source = data_directory(configuration.compose_config(tiny_world)).parent
    shutil.copytree(source, data_directory(configuration.compose_config(overrides)).parent, dirs_exist_ok=True)
    with pytest.raises(UserError, match="the problems were made under another configuration"):
        launch.train(configuration.compose_config([*overrides, "data.seed=7"]))
    with pytest.raises(UserError, match="the base model was trained under another configuration"):
        launch.train(configuration.compose_config([*overrides, "base.learning_rate=0.1"]))
    # train.steps goes through the problems again; whole epochs of less than a batch have no step
    with pytest.raises(UserError, match=r"train\.batch_size=1000: larger than the \d+ problems of train\.epochs=2"):
        launch.train(
            configuration.compose_config([*overrides, "train.steps=null", "train.epochs=2", "train.batch_size=1000"])
        )
    with pytest.raises(UserError, match=r"train\.budget\.like=grpo: .* holds no finished run"):
        launch.train(configuration.compose_config([*overrides, "train.budget={unit: rollouts, like: grpo}"]))


def checkpoint(root: Path, step: int) -> Path:
    folder = checkpoints.folder_of(root, step)
    for name in ("actor/model.pt", "bapo/state.json", "data.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} of step {step}")
    checkpoints.write_checksums(folder)
    return folder


def test_the_newest_intact_checkpoint_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints.choose(tmp_path) is None
    for step in (2, 10, 4):
        checkpoint(tmp_path, step)
    tracker = tmp_path / checkpoints.TRACKER
    assert checkpoints.choose(tmp_path) == 10 and tracker.read_text() == "10"
    assert capsys.readouterr().err == ""
    weights = tmp_path / "global_step_10" / "actor" / "model.pt"
    weights.write_bytes(b"X" * weights.stat().st_size)  # of the same size
    assert checkpoints.choose(tmp_path) == 4 and tracker.read_text() == "4"
    warning = capsys.readouterr().err
    assert str(weights) in warning and "going back to the one before" in warning
    (tmp_path / "global_step_4" / checkpoints.CHECKSUMS).unlink()  # killed before the end
    assert checkpoints.choose(tmp_path) == 2
    (tmp_path / "global_step_2" / "data.pt").unlink()
    assert checkpoints.choose(tmp_path) is None and not tracker.exists()
