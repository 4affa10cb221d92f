"""Translates a run's configuration into verl's: ``verl.yaml`` and computed values over verl's own defaults.

Every other key of verl can be set under ``verl.overrides``.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

import bapo
from bapo import methods, tasks
from bapo.engines.verl import memory
from bapo.experiments.identity import train_identity
from bapo.experiments.places import base_directory, data_directory, run_directory
from bapo.experiments.schema import Config, on_gpus
from bapo.gpu import allocation
from bapo.gpu import devices as gpu_devices
from bapo.methods.ppo import PPOConfig
from bapo.store.files import Json
from bapo.validate import plain, wrong

#: responses that verl holds at once while it validates, with images (3 MB of pixels each) and without
VALIDATED_WITH_IMAGES, VALIDATED = 2048, 16384
#: the most tokens of a micro-batch without flash-attn, unless one response is longer: all of them attend to each other
WITHOUT_FLASH = 4096
#: bounds of the responses that one vLLM samples at once; others wait until these end. FEWEST is verl's default. For
#: MOST, vLLM reserves 0.6 GB of logits with Qwen's vocabulary, and it preempts if its key-value cache is too small
FEWEST, MOST = 256, 1024
BASE = Path(__file__).with_name("verl.yaml")
#: nodes of verl's configuration that take any key, because a library reads them
FREE = (
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.rollout.engine_kwargs",
    "critic.model.override_config",
    "ray_kwargs.ray_init",
)


# ---------------------------------------------------------------------------------------------------- the device
def device_of(config: Config) -> str:
    """Return "cpu" or "cuda". ``auto``: a pretrained model belongs on GPUs; a scratch model goes where there is one."""
    if on_gpus(config):
        return "cuda"
    if config.device != "auto":
        return config.device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def uses_vllm(config: Config, device: str) -> bool:
    """Return whether vLLM samples."""
    return device == "cuda" or config.verl.rollout == "vllm"


def flash_attention() -> bool:
    """Return whether flash-attn is installed here."""
    return importlib.util.find_spec("flash_attn") is not None


def environment(device: str) -> dict[str, str]:
    """Return the variables that must be set before ``import verl``, in the job and in all of Ray's processes."""
    package = str(Path(bapo.__file__).resolve().parents[1])
    path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH", "")) if p)
    cache = str(_cache()) if device == "cuda" else ""
    variables = plain(OmegaConf.merge(OmegaConf.load(BASE), {"cache": cache}).environment)
    return {"PYTHONPATH": path, **variables["all"], **variables[device]}


def _cache() -> Path:
    """Return this user's folder of compiled kernels, or a new one where others could write code into it."""
    folder = Path(tempfile.gettempdir()) / f"bapo-cache-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    safe = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if safe else Path(tempfile.mkdtemp(prefix="bapo-cache-"))


def card(config: Config) -> float:
    """Return the GB of a GPU: ``verl.gpu_memory``, or those of the smallest visible one.

    Raises UserError where nvidia-smi does not know a visible one.
    """
    if config.verl.gpu_memory:
        return config.verl.gpu_memory
    gpus = gpu_devices.known_gpus()
    unsized = [name for name in gpu_devices.visible() if name not in gpus or not gpus[name].memory]
    if unsized and gpu_devices.installed():  # without nvidia-smi the configuration is for another machine
        raise wrong(None, "verl.gpu_memory", None, f"nvidia-smi does not say how much GPU {unsized[0]} has; set its GB")
    return min((gpu.gigabytes for gpu in gpus.values()), default=memory.CARD)


# ---------------------------------------------------------------------------------------------------- verl's keys
def run_config(content: DictConfig | Json) -> Config:
    """Return the configuration of a run from ``bapo.config`` of verl's configuration."""
    values = plain(content)
    return Config.model_validate(values | {"method": methods.config_of(values["method"])})


def _package() -> Path:
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


@lru_cache(maxsize=128)
def _fields(target: str) -> dict[str, str | None]:
    """Return the fields of one of verl's dataclasses, each with the dataclass of its values or None.

    The source is parsed, so that verl is not imported. Fields of a base class in another module are left out. target:
    the class, as in ``_target_``.
    """
    module, _, name = target.rpartition(".")
    path = _package().parent / module.replace(".", "/")
    files = path.glob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    nodes = (node for file in files for node in ast.parse(file.read_text(encoding="utf-8")).body)
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    field_types: dict[str, str | None] = {}
    for base in [classes[name], *_bases(classes, name)]:
        for line in base.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                types = [n.id for n in ast.walk(line.annotation) if isinstance(n, ast.Name) and n.id in classes]
                field_types.setdefault(line.target.id, f"{module}.{types[0]}" if types else None)
    return field_types


def _bases(classes: Mapping[str, ast.ClassDef], name: str) -> Iterator[ast.ClassDef]:
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield classes[base.id]
            yield from _bases(classes, base.id)


def _add_fields(node: DictConfig, overrides: DictConfig) -> None:
    """Make room in ``node`` for the keys of ``overrides`` that verl's dataclasses have and its YAML lacks."""
    content: Any = OmegaConf.to_container(node, resolve=False)  # a value may refer to what has no place yet
    types = _fields(content["_target_"]) if "_target_" in content else {}
    for key in overrides:
        nested = isinstance(overrides[key], DictConfig)
        if key in types and key not in content:
            with open_dict(node):
                content[key] = {"_target_": types[key]} if types[key] and nested else None
                node[key] = content[key]
        if nested and isinstance(content.get(key), dict):
            _add_fields(node[key], overrides[key])


@lru_cache(maxsize=1)
def _defaults() -> DictConfig:
    """Compose verl's own ``ppo_trainer.yaml``, without importing verl: that takes ten seconds of a slow core."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(_package() / "trainer" / "config"), version_base=None):
        verl = compose("ppo_trainer")
    GlobalHydra.instance().clear()
    return verl


def resolve(config: Config, device: str | None = None, model: Path | None = None) -> DictConfig:
    """Return verl's complete configuration of a run, to which ``launch.py`` adds what only it knows.

    Args:
        config: of the run
        device: "cpu" or "cuda", by default that of :func:`device_of`
        model: the folder that training starts from, by default the one that the configuration names

    Raises UserError if the run cannot be expressed.
    """
    device, method = device or device_of(config), methods.of_run(config)
    parts = OmegaConf.load(BASE)
    assert isinstance(parts, DictConfig)
    sections = [parts["all"], *([parts.critic] if method.uses_critic else []), parts[device]]
    if uses_vllm(config, device) and device == "cpu":
        sections.append(parts.vllm_on_cpu)
    if device == "cuda" and not memory.fused(config):
        sections.append(parts.whole_logits)
    with open_dict(_defaults()):
        verl = OmegaConf.merge(_defaults(), {"bapo": _run_values(config, method, device, model)}, *sections)
    OmegaConf.set_struct(verl, True)
    for key in FREE:
        OmegaConf.set_struct(OmegaConf.select(verl, key), False)
    assert isinstance(verl, DictConfig)
    overrides = DictConfig(config.verl.overrides)
    _add_fields(verl, overrides)
    try:
        verl = OmegaConf.merge(verl, overrides)
    except (ConfigKeyError, ConfigAttributeError) as error:
        raise wrong(None, f"verl.overrides.{error.full_key}", None, "verl has no such key") from None
    assert isinstance(verl, DictConfig)
    return verl


def _run_values(config: Config, method: methods.Method, device: str, start: Path | None) -> Json:
    """Return what ``verl.yaml`` reads below ``bapo``: the configuration, and values that are computed from it."""
    t = config.train
    gpus = config.verl.gpus_per_node or (1 if device == "cpu" else 8)
    if t.mini_batch_size * t.group_size % gpus:
        cure = f"a mini-batch of {t.mini_batch_size} x {t.group_size} responses does not divide by {gpus} GPUs"
        raise wrong(None, "train.mini_batch_size", t.mini_batch_size, cure)
    critic = method.config if isinstance(method.config, PPOConfig) else None
    data, folder = data_directory(config).absolute(), run_directory(config).absolute()
    scratch = (base_directory(config) / "checkpoint").absolute()
    model = config.model.path if config.model.kind == "pretrained" else scratch
    row = config.sampling.max_tokens
    tokens = memory.asked_tokens(config, gpus)
    if device == "cuda":
        tokens = memory.micro_batch_tokens(config, gpus, tokens, card(config))
        tokens = tokens if flash_attention() else min(tokens, max(row, WITHOUT_FLASH))
    validated = VALIDATED_WITH_IMAGES if tasks.get(config.task.name).images else VALIDATED
    probes = config.probe.prompts > 0
    units = 1 if device == "cpu" else 2 if gpus == 1 else 8
    # TransferQueue reserves a CPU for each storage unit and one for its controller, verl three a GPU and one for the
    # trainer. Actors without a reservation need a free one to be placed. With fewer, Ray waits for ever
    reserved_cpus = units + 1 + 3 * gpus + 1 + 2
    engine_gpus = memory.tensor_parallel(config, gpus)
    batched = memory.override(config, f"{memory.ROLLOUT}.max_num_batched_tokens")
    batched = batched or max(8192 if device == "cuda" else 512, row)
    steps = getattr(method.config, "v", 1) if config.verl.rollout_window else 1
    responses = math.ceil(t.batch_size * t.group_size * steps * engine_gpus / gpus)  # of one vLLM engine
    return {
        "config": plain(config),
        "folder": str(folder),
        "data": str(data),
        "identity": train_identity(config),
        "start": str(start.absolute() if start else model),
        "device": device,
        "gpus": gpus,
        "bypass": not method.needs_step_policy,
        "needs_reference": method.needs_reference,
        "critic_rate": t.learning_rate * critic.critic_rate_ratio if critic else None,
        "policy_from": critic.critic_warmup + 1 if critic else 0,
        "epochs": t.epochs or 10**6,
        "row": row,
        "tokens": max(tokens, 128),  # verl pads with rows of 128, which must fit into a micro-batch
        "attention": "flash_attention_2" if flash_attention() else "sdpa",
        "bucket": memory.bucket(card(config)) if device == "cuda" else memory.BUCKET,
        "batched_tokens": batched,
        "tensor_parallel": engine_gpus,
        "sequences": min(max(responses, FEWEST), MOST, batched),  # vLLM refuses more than batched tokens
        "storage_units": units,
        "ray_cpus": max(16 if device == "cpu" else allocation.cpus(), reserved_cpus),
        "validation_batch": max(1, validated // config.probe.samples),
        "probe_every": 1 if probes else -1,
        "probed_first": probes,
        "agent_workers": max(2, gpus),  # two were enough for one H200; verl's default is eight
        "agent_loops": str(BASE.with_name("agent_loops.yaml")),
    }


def as_yaml(config: Config) -> str:
    """Return verl's configuration, which ``bapo train engine=verl ... --cfg job`` prints. Raises UserError."""
    os.environ.update(environment(device_of(config)))
    return OmegaConf.to_yaml(resolve(config), resolve=True)


def validate(verl: DictConfig) -> None:
    """Check a configuration by verl's own rules and classes, which raise errors of many types."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    checked = OmegaConf.create(OmegaConf.to_container(verl, resolve=True))
    checked.critic.model = None  # building it would open the model's folder or ask the hub
    validate_config(checked, use_reference_policy=need_reference_policy(checked), use_critic=need_critic(checked))
    for node in (checked.actor_rollout_ref.rollout, checked.algorithm, checked.actor_rollout_ref.actor.optim):
        omega_conf_to_dataclass(node)
