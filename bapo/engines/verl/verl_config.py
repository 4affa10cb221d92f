"""This project's configuration in verl's words.

:func:`resolve` starts from verl's own defaults (``ppo_trainer.yaml``) and sets what a run decides; whatever else verl
knows can be set under ``verl.overrides``.
"""

from __future__ import annotations

import copy
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict

from bapo import methods, tasks
from bapo.engines.verl import checkpoints, devices, memory, settings
from bapo.errors import UserError, unknown
from bapo.experiments.identity import train_identity
from bapo.experiments.places import base_directory, data_directory, run_directory
from bapo.validate import plain


def _filter_groups(method: methods.Method) -> dict[str, Any]:
    """Return DAPO's dynamic sampling in verl's words; ``MethodReplayBuffer`` does it by ``DAPO.build_batch``.

    verl 0.9.1's own replay buffer has no limit (it ignores ``max_num_gen_batches``, so a policy without a signal would
    generate for ever), refills in the order in which workers finish, and forgets the groups it throws away.
    """
    limit = getattr(method.config, "max_generation_batches", None)
    return {"enable": False} if limit is None else {"enable": True, "metric": "reward", "max_num_gen_batches": limit}


@lru_cache(maxsize=1)
def _defaults() -> DictConfig:
    """Compose verl's own ``ppo_trainer.yaml``."""
    GlobalHydra.instance().clear()
    with initialize_config_module(version_base=None, config_module="verl.trainer.config"):
        verl = compose("ppo_trainer")
    GlobalHydra.instance().clear()
    return verl


def resolve(config: DictConfig, device: str | None = None, model: Path | None = None) -> DictConfig:
    """Return verl's complete configuration of a run.

    device: "cpu" or "cuda", by default :func:`devices.device_of`; model: the folder that training starts from, by
    default as far as the configuration names it. A job adds what only it knows: ``job.py``.
    Raises UserError if the run cannot be expressed.
    """
    device = device or devices.device_of(config)
    verl = copy.deepcopy(_defaults())
    method = methods.build(config.method, config.train.batch_size, config.seed)
    ranks = settings.get(config, "gpus_per_node", 1 if device == "cpu" else 8)
    if config.train.mini_batch_size * config.train.group_size % ranks:
        raise UserError(
            f"train.mini_batch_size={config.train.mini_batch_size}: a mini-batch of {config.train.mini_batch_size} x "
            f"{config.train.group_size} responses does not divide by {ranks} GPUs"
        )
    values = _run(config, method, ranks, device, model) | {"trainer": _trainer(config, method, device, ranks)}
    with open_dict(verl):
        verl = OmegaConf.merge(verl, values)
        # log-probabilities of the policy at the start of the step are computed; no correction on top
        if method.needs_step_policy or recomputes(config, method):
            verl.algorithm.rollout_correction = None
        verl = OmegaConf.merge(verl, devices.values(config, device, ranks))
        extra = settings.get(config, "overrides", None)
        if extra:
            _require_known(verl, extra)
            verl = OmegaConf.merge(verl, extra)
    _require_one_machine(verl, ranks)
    asked = {key: verl.algorithm.filter_groups[key] for key in values["algorithm"]["filter_groups"]}
    if asked != values["algorithm"]["filter_groups"]:
        raise UserError(
            f"verl.overrides.algorithm.filter_groups: {asked} is not what method={config.method.name} does; choose "
            "method=dapo and set method.max_generation_batches"
        )
    return verl


ONE_MACHINE = "a run has the GPUs of one machine, as many as verl.gpus_per_node says"
#: nodes of verl's configuration that a library reads; those that verl leaves empty take any name, too
FREE = {"override_config", "ray_init", "reward_kwargs"}


def _require_known(verl: DictConfig, extra: DictConfig, path: str = "verl.overrides") -> None:
    """Raise UserError for a key of ``verl.overrides`` that verl does not have: merged, it would do nothing."""
    known = [str(key) for key in verl]
    for name, value in extra.items():
        key = f"{path}.{name}"
        if known and str(name) not in known:
            raise UserError(unknown(key, f"verl has no such key '{name}'", str(name), known))
        below = verl._get_node(name) if known else None
        if isinstance(value, DictConfig) and isinstance(below, DictConfig) and name not in FREE:
            _require_known(below, value, key)


def _require_one_machine(verl: DictConfig, ranks: int) -> None:
    """Raise UserError where ``verl.overrides`` spreads a run over other GPUs than those that it locks."""
    address = OmegaConf.select(verl, "ray_kwargs.ray_init.address", default=None)
    tensor_parallel = verl.actor_rollout_ref.rollout.tensor_model_parallel_size
    for wrong, found, cure in (
        (verl.trainer.nnodes != 1, f"overrides.trainer.nnodes={verl.trainer.nnodes}", ONE_MACHINE),
        (
            verl.trainer.n_gpus_per_node != ranks,
            f"overrides.trainer.n_gpus_per_node={verl.trainer.n_gpus_per_node}",
            "set verl.gpus_per_node, by which GPUs are locked and batches are divided",
        ),
        (
            address not in (None, "local"),
            f"overrides.ray_kwargs.ray_init.address={address}",
            f"a run starts a Ray of its own; leave it out: {ONE_MACHINE}",
        ),
        (
            tensor_parallel < 1 or ranks % tensor_parallel,
            f"tensor_parallel={tensor_parallel}",
            f"must divide the {ranks} GPUs of verl.gpus_per_node",
        ),
    ):
        if wrong:
            raise UserError(f"verl.{found}: {cure}")


def recomputes(config: DictConfig, method: methods.Method) -> bool:
    """Return whether fresh responses get their log-probabilities from the engine that trains (train.old_logprobs).

    Raises UserError for a method that samples from another policy than the one that it trains.
    """
    if config.train.old_logprobs == "rollout":
        return False
    if method.delays_rollout_policy or method.needs_step_policy:
        raise UserError(
            f"train.old_logprobs=recomputed: method={config.method.name} compares with another policy than that of the "
            "step; leave it at `rollout` (steps.parquet has the difference between the engines, mismatch_mean)"
        )
    return True


def _run(config: DictConfig, method: methods.Method, ranks: int, device: str, start: Path | None) -> dict[str, Any]:
    """Return what the method, the task and the hyper-parameters decide."""
    s, t = config.sampling, config.train
    data, folder = data_directory(config).absolute(), run_directory(config).absolute()
    scratch = base_directory(config) / "checkpoint"
    model = config.model.path if config.model.kind == "pretrained" else str(scratch.absolute())
    model = str(start.absolute()) if start else model
    sets = settings.validation_sets(config)
    content = plain(config)
    rows = s.max_prompt_tokens + s.max_response_tokens
    tokens = rows * max(1, (t.micro_batch_size or t.mini_batch_size * t.group_size) // ranks)
    if device != "cpu":
        tokens = memory.micro_batch_tokens(config, ranks, tokens, devices.card(config))
    # verl's padding rows have 128 tokens, and must fit into a micro-batch
    sizes = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": max(tokens, 128)}
    return {
        "bapo": {
            "config": content,
            "folder": str(folder),
            "identity": train_identity(config),
            "seed": config.seed,
            "stalled_after": float(settings.get(config, "stalled_after", 1800.0)),
        },
        "algorithm": {
            "adv_estimator": "bapo",
            "use_kl_in_reward": False,
            **({"gamma": method.config.gamma, "lam": method.config.gae_lambda} if method.uses_critic else {}),
            "rollout_correction": {"bypass_mode": not (method.needs_step_policy or recomputes(config, method))},
            "filter_groups": _filter_groups(method),
        },
        "critic": _critic(config, method, model, sizes) if method.uses_critic else {"enable": False},
        "data": {
            "train_files": str(data / "train.parquet"),
            "val_files": str(checkpoints.root_of(folder) / checkpoints.VALIDATION if sets else data / "probe.parquet"),
            "val_max_samples": -1 if sets else 1,
            "val_batch_size": _validation_batch(config),
            "max_prompt_length": s.max_prompt_tokens,
            "max_response_length": s.max_response_tokens,
            "train_batch_size": t.batch_size,
            "truncation": "error",
            "filter_overlong_prompts": False,
            "shuffle": False,  # prompts come from our own seeded stream
            "seed": config.seed,
            "dataloader_num_workers": 0,
        },
        "actor_rollout_ref": {
            "bapo": {
                "method": content["method"],
                "batch_size": t.batch_size,
                "seed": config.seed,
                "warmup_updates": t.warmup_updates,
                "recomputes": recomputes(config, method),
            },
            "model": {"path": model, "override_config": {"attn_implementation": config.model.attention}},
            "actor": {
                **sizes,
                "strategy": "fsdp2",
                "fsdp_config": {"strategy": "fsdp2", "seed": config.seed},
                "ppo_mini_batch_size": t.mini_batch_size,
                "ppo_epochs": 1,
                "shuffle": False,
                "grad_clip": t.grad_clip,
                "policy_loss": {"loss_mode": "bapo"},
                # the method's loss contains its own clip, KL and entropy terms; these name them for verl's own use
                "clip_ratio": method.config.clip_low,
                "clip_ratio_low": method.config.clip_low,
                "clip_ratio_high": method.config.clip_high,
                "clip_ratio_c": method.config.dual_clip or 3.0,
                "entropy_coeff": method.config.entropy_coef,
                "calculate_entropy": True,
                "use_kl_loss": method.needs_reference,
                "kl_loss_coef": method.config.kl_coef,
                "loss_agg_mode": {"sequence-mean": "seq-mean-token-mean"}.get(
                    method.config.aggregation, method.config.aggregation
                ),
                "data_loader_seed": config.seed,
                "optim": _optimizer(t, t.learning_rate),
                "checkpoint": {
                    "save_contents": ["model", "optimizer", "extra", "hf_model"],
                    "load_contents": ["model", "optimizer", "extra"],
                },
            },
            "ref": {"fsdp_config": {"strategy": "fsdp2"}},
            "rollout": {
                "n": t.group_size,
                "temperature": s.temperature,
                "top_p": s.top_p,
                "top_k": s.top_k,
                "seed": config.seed,
                "calculate_log_probs": True,
                "log_prob_use_dynamic_bsz": True,
                "val_kwargs": {
                    "n": settings.validation_samples(config),
                    "do_sample": True,
                    "temperature": s.temperature,
                    "top_p": s.top_p,
                    "top_k": s.top_k,
                },
                "agent": {
                    "default_agent_loop": "bapo_single_turn",
                    "agent_loop_config_path": str(Path(__file__).with_name("agent_loops.yaml")),
                },
            },
        },
        "reward": {
            "custom_reward_function": {
                "path": "pkg://bapo.engines.verl.reward",
                "name": "compute_score",
                "reward_kwargs": {"task": config.task.name},
            }
        },
    }


#: responses that verl holds at once while it validates, with images (3 MB of pixels each) and without
VALIDATED_WITH_IMAGES, VALIDATED = 2048, 16384


def _validation_batch(config: DictConfig) -> int:
    """Return the prompts that are validated at once: all rows of a batch lie in host memory."""
    sets = settings.validation_sets(config).values()
    most = VALIDATED_WITH_IMAGES if tasks.get(config.task.name).images else VALIDATED
    return max(1, most // max((samples for _, samples in sets), default=1))


def _optimizer(train: DictConfig, rate: float) -> dict[str, Any]:
    return {
        "lr": rate,
        "betas": list(train.betas),
        "weight_decay": train.weight_decay,
        "clip_grad": train.grad_clip,
        "lr_warmup_steps": -1,  # see worker.warm_up
    }


def _critic(config: DictConfig, method: methods.Method, model: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return verl's keys of the critic, a token classifier on the policy's base. Other sizes are the actor's."""
    t, tokens = config.train, sizes["ppo_max_token_len_per_gpu"]
    return {
        "enable": True,
        "strategy": "fsdp2",
        "fsdp": {"strategy": "fsdp2", "seed": config.seed},
        "ppo_max_token_len_per_gpu": tokens,
        "ppo_infer_max_token_len_per_gpu": tokens,
        "data_loader_seed": config.seed,
        "grad_clip": t.grad_clip,
        # the method's loss holds its own clip; this names it for verl's own use
        "cliprange_value": method.config.value_clip,
        "optim": _optimizer(t, t.learning_rate * method.config.critic_rate_ratio),
        "model": {"path": model, "override_config": {"attn_implementation": config.model.attention}},
    }


def _trainer(config: DictConfig, method: methods.Method, device: str, gpus: int) -> dict[str, Any]:
    t = config.train
    folder = run_directory(config).absolute()
    return {
        "device": device,
        "n_gpus_per_node": gpus,
        "nnodes": 1,
        "logger": ["console"] if settings.get(config, "console", False) else [],
        "project_name": config.tracking.project,
        "experiment_name": f"{config.method.name}-seed{config.seed}",
        "total_epochs": t.epochs or 10**6,
        "total_training_steps": t.steps,
        # validation is our probe and decides by itself at which steps it runs
        "val_before_train": bool(settings.validation_sets(config) and config.probe.points > 1),
        "test_freq": 1 if settings.validation_sets(config) else -1,
        "save_freq": -1,  # after the step is recorded, by MethodTrainer
        "resume_mode": "auto",
        "default_local_dir": str(checkpoints.root_of(folder)),
        "balance_batch": True,
        # verl updates the policy from this step on
        "critic_warmup": method.config.critic_warmup + 1 if method.uses_critic else 0,
    }


def as_yaml(config: DictConfig) -> str:
    """Return the configuration that verl gets, which ``python -m bapo train engine=verl ... --cfg job`` prints."""
    os.environ.update(devices.environment(devices.device_of(config)))
    return OmegaConf.to_yaml(resolve(config), resolve=True)


def validate(verl: DictConfig) -> None:
    """Check against verl's own rules and configuration classes. Raises UserError with verl's words."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    plain = OmegaConf.create(OmegaConf.to_container(verl, resolve=True))
    plain.critic.model = None  # verl would build this one here, which opens the model's folder or asks the hub
    try:
        validate_config(plain, use_reference_policy=need_reference_policy(plain), use_critic=need_critic(plain))
        for node in (plain.actor_rollout_ref.rollout, plain.algorithm, plain.actor_rollout_ref.actor.optim):
            omega_conf_to_dataclass(node)
    except (AssertionError, ValueError, TypeError, HydraException) as error:
        raise UserError(f"engine=verl: verl refuses this configuration: {error}") from error
