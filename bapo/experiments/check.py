"""Rules of a composed configuration: those of its schema, and those that concern several keys."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from bapo.experiments.schema import Config
from bapo.validate import broken_rules, wrong


def check(config: DictConfig) -> None:
    """Raise UserError naming the key, its value and what is allowed."""
    for key, value, cure in broken_rules(Config, lambda key: OmegaConf.select(config, key)):
        raise wrong(None, key, value, cure)
    train, model, sampling = config.train, config.model, config.sampling
    if model.kind == "pretrained" and not model.path:
        raise wrong(None, "model.path", "None", "name a folder or a hub model")
    if (train.steps is None) == (train.epochs is None):
        raise wrong(None, "train.steps", str(train.steps), "set exactly one of train.steps and train.epochs")
    if (train.budget.unit == "steps") != (train.budget.like is None):
        cure = f"name the method whose run sets the number of {train.budget.unit}, or leave both unit and like alone"
        raise wrong(None, "train.budget.like", str(train.budget.like), cure)
    if train.mini_batch_size > train.batch_size:
        cure = f"must be at most train.batch_size={train.batch_size}"
        raise wrong(None, "train.mini_batch_size", train.mini_batch_size, cure)
    tokens = sampling.max_prompt_tokens + sampling.max_response_tokens
    if model.context_length is not None and tokens > model.context_length:
        raise wrong(
            None,
            "sampling.max_response_tokens",
            sampling.max_response_tokens,
            f"with sampling.max_prompt_tokens={sampling.max_prompt_tokens} a sequence may take {tokens} tokens, but "
            f"model={model.name} has {model.context_length} positions; lower either, or choose another model",
        )
