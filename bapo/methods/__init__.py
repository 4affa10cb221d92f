"""The methods, a class each. ``table()`` is the list; nothing here knows an engine."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from bapo import project
from bapo.errors import UserError, unknown
from bapo.methods.base import Batch, Method, MethodConfig, Sampler
from bapo.validate import refused

if TYPE_CHECKING:
    from bapo.experiments.schema import Config

__all__ = ["Batch", "Method", "MethodConfig", "Sampler", "build", "config_of", "get", "table"]

_BUILT_IN = {
    "grpo": "bapo.methods.grpo:GRPO",
    "dapo": "bapo.methods.dapo:DAPO",
    "grpo_delayed": "bapo.methods.grpo:DelayedGRPO",
    "repo": "bapo.methods.repo:RePO",
    "remix": "bapo.methods.remix:ReMix",
    "gspo": "bapo.methods.grpo:GSPO",
    "mopps": "bapo.methods.dots:MoPPS",
    "areal": "bapo.methods.grpo:AReaL",
    "grpo_stale": "bapo.methods.grpo:Stale",
    "m2po": "bapo.methods.trust_regions:M2PO",
    "bapo_xi": "bapo.methods.trust_regions:BAPOXi",
    "mu_grpo": "bapo.methods.trust_regions:MuGRPO",
    "rl_zvp": "bapo.methods.zero_variance:RLZVP",
    "prompt_replay": "bapo.methods.reuse:PromptReplay",
    "fifo_replay": "bapo.methods.reuse:FIFOReplay",
    "freshper": "bapo.methods.reuse:FreshPER",
    "arpo": "bapo.methods.repo:ARPO",
    "dots_rr": "bapo.methods.dots:RolloutReplay",
    "dots": "bapo.methods.dots:DOTS",
    "partial_rollouts": "bapo.methods.partial_rollouts:PartialRollouts",
    "luffy": "bapo.methods.luffy:LUFFY",
    "exgrpo": "bapo.methods.exgrpo:ExGRPO",
    "relift": "bapo.methods.luffy:ReLIFT",
    "ppo": "bapo.methods.ppo:PPO",
    "ba_ppo": "bapo.methods.ppo:BAPPO",
    "bapo": "bapo.methods.bapo:BAPO",
    "bapo_code": "bapo.methods.bapo_code:BAPOCode",
    "bapo_released": "bapo.methods.bapo_code:BAPOReleased",
    "bapo_without_x2": "bapo.methods.bapo_ablations:BAPOWithoutX2",
    "bapo_without_x3": "bapo.methods.bapo_ablations:BAPOWithoutX3",
    "bapo_x1": "bapo.methods.bapo_ablations:BAPOWithX1Only",
    "bapo_duplicates": "bapo.methods.bapo_ablations:BAPODuplicates",
    "bapo_shuffled": "bapo.methods.bapo_ablations:BAPOShuffled",
    "bapo_filled": "bapo.methods.bapo_ablations:BAPOFilled",
    "bapo_oracle": "bapo.methods.bapo_ablations:BAPOOracle",
    "grpo_random_reward": "bapo.methods.grpo:RandomReward",
}


def table() -> dict[str, type[Method]]:
    """Return every method by the name of its algorithm, built in or from the entry point ``bapo.methods``."""
    classes = {name: _load(target) for name, target in _BUILT_IN.items()}
    for entry in entry_points(group="bapo.methods"):
        classes[entry.name] = entry.load()
    return classes


def show() -> None:
    """Print the methods: ``bapo methods``."""
    for name, cls in table().items():
        print(f"{name:<18}  {cls.Config().kind:<3}  {cls.summary}  ({cls.cost})  [{cls.source}]")


def _load(target: str) -> type[Method]:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def get(algorithm: str) -> type[Method]:
    """Return the class of an algorithm. Raises UserError listing the names that exist."""
    if algorithm in _BUILT_IN:
        return _load(_BUILT_IN[algorithm])
    for entry in entry_points(group="bapo.methods", name=algorithm):
        return entry.load()
    if not project.is_place(algorithm):
        raise UserError(f"method.algorithm={algorithm}: unknown algorithm; allowed: {', '.join(sorted(table()))}")
    cls = project.load(algorithm, "method.algorithm")
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise UserError(f"method.algorithm={algorithm}: must be a class derived from bapo.methods.base.Method")
    return cls


def revision(algorithm: str) -> list[object]:
    """Return what identifies the code of an algorithm: its class's revision and, of a project's file, the code."""
    cls = get(algorithm)
    return [cls.revision, *([project.code_digest_of(algorithm)] if project.is_place(algorithm) else [])]


def config_of(content: Mapping[str, Any] | MethodConfig) -> MethodConfig:
    """Read a ``method`` node: the options of its algorithm, checked, with defaults where it names none.

    Raises UserError naming the key, the value and the cure.
    """
    if isinstance(content, MethodConfig):
        return content
    values = dict(content)
    if not values.get("algorithm"):
        raise UserError("method.algorithm has no value: name one of " + ", ".join(sorted(table())))
    schema = get(values["algorithm"]).Config
    values.setdefault("name", values["algorithm"])  # or two algorithms would share a folder
    for key in sorted(set(values) - set(schema.model_fields)):
        what = f"{values['algorithm']} has no such parameter"
        raise UserError(unknown(f"method.{key}", what, key, sorted(schema.model_fields)))
    try:
        return schema(**values)
    except ValidationError as error:
        raise UserError(f"method.{refused(error, None)}") from None


def build(node: Mapping[str, Any] | MethodConfig, batch_size: int, seed: int) -> Method:
    """Build a run's method for ``batch_size`` prompts per step. Raises UserError for a wrong ``method`` node."""
    config = config_of(node)
    return get(config.algorithm)(config, batch_size=batch_size, seed=seed)


def of_run(config: Config) -> Method:
    """Build the method of a run from its composed configuration."""
    return build(config.method, batch_size=config.train.batch_size, seed=config.seed)
