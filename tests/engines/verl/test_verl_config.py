"""verl's configuration of every run of the paper's table, checked by verl's own classes; no Ray, no GPU."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch
from omegaconf import DictConfig, OmegaConf

from analysis.products import at_scale
from bapo import methods
from bapo.engines.verl import launch, recorder, verl_config
from bapo.errors import UserError
from bapo.experiments import compose as configuration
from bapo.experiments import studies
from bapo.experiments.order import Cell
from bapo.experiments.places import data_directory, options
from bapo.methods import Batch
from bapo.store.files import PROBE, STEPS
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


def composed(*words: str) -> Any:
    return configuration.compose_config(list(words))


def validate(verl: DictConfig) -> None:
    """What verl's classes look at, once: there a variant often differs from its method in nothing but names."""
    read = OmegaConf.to_container(verl, resolve=True)
    for part, name in ((read, "bapo"), (read["actor_rollout_ref"], "bapo"), (read["trainer"], "experiment_name")):
        del part[name]
    key = json.dumps(read, sort_keys=True).replace(verl.bapo.folder, "FOLDER").replace(verl.bapo.start, "START")
    if key not in VALIDATED:
        verl_config.validate(verl)
        VALIDATED.add(key)


@pytest.mark.parametrize("cell", sorted(OTHER.values(), key=str), ids=lambda c: f"{c.task}-{c.method}")
def test_verl_accepts_every_method_of_the_other_studies(cell: Cell) -> None:
    config = configuration.run_config("paper", cell.task, cell.model, cell.method, cell.seed)
    verl = verl_config.resolve(config)
    validate(verl)
    actor, method = verl.actor_rollout_ref.actor, methods.of_run(config)
    assert (actor.kl_loss_coef, actor.use_kl_loss) == (config.method.kl_coef, method.needs_reference)
    assert verl.actor_rollout_ref.rollout.temperature == config.sampling.temperature
    # pi_k is computed only where the loss reads it
    assert verl.algorithm.rollout_correction.bypass_mode != method.needs_step_policy
    assert plain(verl.actor_rollout_ref.bapo.method) == plain(config.method)


@pytest.mark.parametrize(
    ("scale", "cell"), RUNS, ids=lambda x: x if isinstance(x, str) else f"{x.task}-{x.model}-{x.method}"
)
def test_verl_accepts_every_run_of_the_paper_and_of_one_gpu(scale: str, cell: Cell) -> None:
    """Table 1, Figures 5, 6, 10 and 16; study single_gpu."""
    config = configuration.run_config(scale, cell.task, cell.model, cell.method, cell.seed)
    verl = verl_config.resolve(config)
    validate(verl)
    gpus, batch, mini_batch, steps, table = SCALES[scale]
    prompt, response, epochs, kl = table[cell.task]
    response = 4096 if cell.model in ("qwen3-4b", "qwen3-8b") else response
    actor, rollout, model = verl.actor_rollout_ref.actor, verl.actor_rollout_ref.rollout, verl.actor_rollout_ref.model
    assert (verl.trainer.n_gpus_per_node, verl.trainer.device, actor.strategy) == (gpus, "cuda", "fsdp2")
    assert (rollout.name, model.path, model.enable_gradient_checkpointing) == ("vllm", config.model.path, True)
    assert rollout.max_model_len == prompt + response
    # Table 3
    assert (verl.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n) == (batch, mini_batch, 8)
    assert actor.optim.lr == 1e-6
    assert (verl.data.max_prompt_length, verl.data.max_response_length) == (prompt, response)
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 1.0, -1)
    assert (verl.trainer.total_epochs, verl.trainer.total_training_steps) == (epochs, steps)
    assert actor.fsdp_config.offload_policy == (scale == "single_gpu" and cell.task == "geometry")
    assert actor.kl_loss_coef == (0 if cell.method in ("dapo", "repo") else kl)
    assert actor.use_kl_loss == (cell.method in ("grpo", "grpo_v5", "ppo"))  # the others need no reference policy
    critic = "ppo" in cell.method
    assert verl.critic.enable == critic and (not critic or verl.critic.model.path == config.model.path)
    assert verl.algorithm.adv_estimator == actor.policy_loss.loss_mode == "bapo"
    assert not verl.algorithm.filter_groups.enable  # verl's would refill without a limit: DAPO.build_batch does it


ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
ON_7B = "scale=paper task=countdown model=qwen2.5-math-7b"


@pytest.mark.parametrize(
    ("word", "named"),
    [
        (f"overrides.{ROLLOUT}.max_num_seq=1", r"verl\.overrides\.\S+\.max_num_seq"),
        (f"overrides.{ROLLOUT}.agent.enable_sleep_mode=false", r"verl\.overrides\.\S+\.enable_sleep_mode"),
        (f"overrides.{ROLLOUT}.server.time_out=5", r"verl\.overrides\.\S+\.time_out"),
        (f"overrides.{ACTOR}.optim.gradclip=1", r"verl\.overrides\.\S+\.gradclip"),
        ("overrides.trainer.enable_sleep_mode=false", r"verl\.overrides\.trainer\.enable_sleep_mode"),
        ("overrides.algoritm=1", r"verl\.overrides\.algoritm"),
        ("gpus_per_node=5", r"train\.mini_batch_size=64: .* 5 GPUs"),
    ],
)
def test_a_key_that_does_nothing_is_refused(word: str, named: str) -> None:
    with pytest.raises(UserError, match=f"^{named}"):
        verl_config.resolve(composed("scale=paper", "method=grpo", f"verl.{word}"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{ROLLOUT}.enable_sleep_mode", False),  # in verl's dataclass alone, as are all but the last four
        (f"{ROLLOUT}.server.timeout", 5.0),  # within a dataclass that the YAML lacks
        (f"{ACTOR}.use_rollout_log_probs", True),  # of FSDPActorConfig's base class
        (f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", "bf16"),  # a mapping of any names
        (f"{ACTOR}.checkpoint.save_lora_only", True),  # of verl.trainer.config
        ("actor_rollout_ref.model.target_parameters", ["q"]),
        (f"{ROLLOUT}.max_num_seqs", 64),
        (f"{ROLLOUT}.engine_kwargs.vllm.block_size", 16),
        (f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", 1024),
        ("trainer.logger", ["console"]),
    ],
)
def test_every_key_that_verl_has_can_be_set(key: str, value: Any) -> None:
    verl = verl_config.resolve(composed("scale=paper", "method=grpo", f"verl.overrides.{key}={json.dumps(value)}"))
    assert plain(OmegaConf.select(verl, key)) == value
    verl_config.validate(verl)


def test_the_fields_that_are_read_from_verls_source_are_those_of_its_classes() -> None:
    def targets(node: Any) -> set[str]:
        own = {node["_target_"]} if "_target_" in node else set()
        return own.union(*(targets(child) for child in node.values() if isinstance(child, dict)))

    for target in targets(OmegaConf.to_container(verl_config._defaults(), resolve=False)):
        module, _, name = target.rpartition(".")
        fields = set(vars(getattr(import_module(module), name))["__dataclass_fields__"]) - {"_target_"}
        assert set(verl_config._fields(target)) == fields, target


@pytest.mark.parametrize("there", [False, True])
def test_text_models_need_no_flash_attn(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_config, "flash_attention", lambda: there)
    monkeypatch.setattr(launch.environment, "require_vllm", lambda *_: None)
    attention = "flash_attention_2" if there else "sdpa"
    for task, method in (("countdown", "bapo"), ("geometry", "bapo"), ("mathematics", "ppo")):
        config, fused = composed("scale=paper", f"task={task}", f"method={method}"), task == "countdown"
        part = verl_config.resolve(config, "cuda").actor_rollout_ref
        assert part.model.override_config.attn_implementation == attention
        assert (part.model.use_fused_kernels, part.model.fused_kernel_options.impl_backend) == (fused, "torch")
        assert part.actor.fsdp_config.entropy_checkpointing == (not fused)
        if fused or there:
            launch._require_packages(config, "cuda")
            continue
        with pytest.raises(UserError, match="need flash-attn"):
            launch._require_packages(config, "cuda")


def test_micro_batch_and_bucket_without_flash_attn_and_on_small_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 responses of 512 + 1,024 tokens are asked for; one of 512 + 8,192 is a micro-batch anyway."""
    words = ["scale=single_gpu", "task=mathematics", "model=qwen2.5-0.5b-instruct", "method=bapo"]
    for there, more, tokens, card, bucket in (
        (True, (), 24_576, 80, 2048),
        (False, (), 4096, 40, 512),
        (False, ("sampling.max_response_tokens=8192",), 8704, 24, 512),
    ):
        monkeypatch.setattr(verl_config, "flash_attention", lambda there=there: there)
        verl = verl_config.resolve(composed(*words, f"verl.gpu_memory={card}", *more))
        assert verl.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == tokens
        assert verl.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes == bucket


@pytest.mark.parametrize(
    ("words", "sequences"),
    [
        ("scale=paper task=countdown model=qwen2.5-math-1.5b", 256),  # 256 x 8 on eight replicas
        (ON_7B, 512),  # on four
        (f"{ON_7B} verl.overrides.{ROLLOUT}.tensor_model_parallel_size=4", 1024),
        (f"{ON_7B} verl.overrides.{ROLLOUT}.max_num_batched_tokens=300", 300),
        ("scale=paper task=mathematics model=qwen3-8b", 512),
        ("scale=paper task=mathematics model=qwen3-8b verl.rollout_window=true", 1024),  # 2,560 of five steps
        ("scale=single_gpu task=countdown model=qwen2.5-1.5b", 512),  # 64 x 8 on one
        ("scale=single_gpu task=countdown model=qwen2.5-1.5b method.v=1 verl.rollout_window=true", 512),
        ("scale=single_gpu task=countdown model=qwen2.5-1.5b train.batch_size=16", 256),  # verl's own, of 128
    ],
)
def test_vllm_samples_a_replicas_responses_at_once(words: str, sequences: int) -> None:
    rollout = verl_config.resolve(composed("method=bapo", *words.split()), "cuda").actor_rollout_ref.rollout
    assert rollout.max_num_seqs == sequences <= rollout.max_num_batched_tokens  # or vLLM refuses


def test_the_environment_on_gpus_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = f"{tempfile.gettempdir()}/bapo-cache-{os.getuid()}"
    for name, default in (
        ("VLLM_USE_V2_MODEL_RUNNER", "0"),
        ("VLLM_DISABLE_COMPILE_CACHE", "0"),
        ("VLLM_CACHE_ROOT", f"{cache}/vllm"),
        ("TRITON_CACHE_DIR", f"{cache}/triton"),
        ("TORCHINDUCTOR_CACHE_DIR", f"{cache}/inductor"),
    ):
        monkeypatch.delenv(name, raising=False)
        assert verl_config.environment("cuda")[name] == default
        monkeypatch.setenv(name, "1")
        assert verl_config.environment("cuda")[name] == "1"


def test_kernels_are_not_read_where_others_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"bapo-cache-{os.getuid()}"
    assert verl_config._cache() == folder and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert verl_config._cache() != folder


def test_auto_puts_a_pretrained_model_on_gpus() -> None:
    assert verl_config.device_of(composed("scale=paper")) == "cuda"
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert verl_config.device_of(composed("scale=smoke")) == expected
    assert verl_config.device_of(composed("scale=paper", "device=cpu")) == "cpu"


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_ray_gets_the_cpus_that_it_would_wait_for(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    for there in (4, 96):
        monkeypatch.setattr(verl_config.allocation, "cpus", lambda there=there: there)
        found = verl_config.resolve(composed("scale=paper", "task=countdown", f"verl.gpus_per_node={gpus}"))
        units = found.transfer_queue.backend.SimpleStorage.num_data_storage_units
        assert units == (2 if gpus == 1 else 8)
        # TransferQueue's units and controller, verl's placement group, its trainer
        least = units + 1 + 3 * gpus + 1
        assert found.actor_rollout_ref.rollout.agent.num_workers == max(2, gpus)
        cpus = found.ray_kwargs.ray_init.num_cpus
        assert cpus > least and (there == 4 or cpus == 96)


def test_probe_rows_count_by_set_and_problem(tiny_world: list[str]) -> None:
    found = recorder.VerlRecorder(composed(*tiny_world, "probe.samples=2"), None, None)
    entries = [("train", "a", 1.0), ("train", "a", 0.0), ("probe", "a", 1.0), ("probe", "a", 1.0)]
    found.add_probe(5, entries, problems=2)
    rows = found.rows[PROBE]
    assert rows[0] == {"step": 5, "set": "train", "prompt_id": "a", "correct": 1, "samples": 2, "mean": 0.5}
    assert [(r["set"], r["prompt_id"], r["mean"]) for r in rows[1:]] == [("probe", "a", 1.0)]
    for some, problems in ((entries[:3], 2), (entries, 3)):
        with pytest.raises(RuntimeError, match="step 5"):
            found.add_probe(5, some, problems)


def test_a_steps_row_says_where_verls_time_and_memory_went(tiny_world: list[str]) -> None:
    found = recorder.VerlRecorder(composed(*tiny_world), None, None)
    timing = {"step": 9.0, "update_actor": 2.0, "adv": 0.5, "update_weights": 0.75, "compare": 0.25}
    gpu = {"actor/perf/max_memory_allocated_gb": 3.0}
    for step, metrics in ((1, gpu), (2, {"actor/perf/max_memory_allocated_gb": 0})):
        found.row = {}
        found.end_step(step, Batch([]), {"rollout": 4.0, "regenerate": 1.0, "reward": 0.1}, timing, metrics)
    first, second = found.rows[STEPS]
    assert (first["seconds_update"], first["seconds_push"], first["seconds_compare"]) == (2.5, 0.75, 0.25)
    assert first["memory_peak_gb"] == 3 * 2**30 / 1e9 and math.isnan(second["memory_peak_gb"])


def test_what_is_missing_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"verl"}
    for module in ("importlib.util", "bapo.errors"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: name if name in found else None)
    paper, small = composed("scale=paper", "method=bapo"), composed("scale=smoke", "device=cpu")
    launch._require_packages(small, "cpu")
    for config, device in ((paper, "cuda"), (composed("scale=smoke", "device=cpu", "verl.rollout=vllm"), "cpu")):
        with pytest.raises(UserError, match="vLLM"):
            launch._require_packages(config, device)
    monkeypatch.setattr(launch.metadata, "version", lambda name: "0.9.2")
    with pytest.raises(UserError, match=r"not 0\.9\.1"):
        launch._require_packages(small, "cpu")
    monkeypatch.setattr(sys, "executable", "/my environments/é/bin/python")
    with pytest.raises(UserError, match="/my environments/é/bin/python: make the environment in a folder"):
        launch._require_packages(small, "cpu")


@pytest.mark.verl
def test_a_job_whose_parent_is_gone_ends_at_once(tmp_path: Path) -> None:
    """It may be gone before the job looks, which is told whose it is. The configuration is a pipe without a writer."""
    os.mkfifo(tmp_path / launch.RESOLVED)
    words = [sys.executable, "-m", "bapo.engines.verl.job", str(tmp_path), "4194304"]  # above every process's number
    assert subprocess.run(words, start_new_session=True, capture_output=True, timeout=300).returncode == -signal.SIGKILL


def test_a_run_begins_with_what_earlier_jobs_left(tiny_world: list[str], tmp_path: Path) -> None:
    """As in the torch engine: problems and base model of this configuration, and undamaged, before Ray starts."""
    words = [*tiny_world, f"paths.results={tmp_path / 'results'}", "engine=verl", "device=cpu"]
    with pytest.raises(UserError, match="no problems of this configuration"):
        launch.train(composed(*words))
    source = data_directory(composed(*tiny_world)).parent
    shutil.copytree(source, data_directory(composed(*words)).parent, dirs_exist_ok=True)
    for change, text in (
        ("data.seed=7", "no problems of this configuration"),
        ("base.learning_rate=0.1", "no base model of this configuration"),
        ("train.budget={unit: rollouts, like: dapo}", r"train\.budget\.like=dapo: .* holds no finished run"),
    ):
        with pytest.raises(UserError, match=text):
            launch.train(composed(*words, change))
