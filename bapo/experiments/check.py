"""Rules of a composed configuration: those of its schema, and those that concern several keys."""

from __future__ import annotations

from bapo.experiments import verl_keys
from bapo.experiments.identity import chat_of
from bapo.experiments.schema import Config
from bapo.store import wheels
from bapo.validate import wrong


def check(config: Config) -> None:
    """Raise UserError naming the key, its value and what is allowed."""
    train, model = config.train, config.model
    if config.data.grading != "strict" and (config.task.name != "countdown" or config.data.prompt == "chain"):
        cure = "only Countdown's expressions are read in two ways; leave it strict"
        raise wrong(None, "data.grading", config.data.grading, cure)
    if model.kind == "pretrained" and not model.path:
        raise wrong(None, "model.path", "None", "name a folder or a hub model")
    if model.path and not model.path.startswith(wheels.SCHEME) and len(model.revision or "") == wheels.DIGEST:
        cure = f"the SHA-256 of a file in a wheel, and model.path={model.path} is none; add model.revision=null"
        raise wrong(None, "model.revision", model.revision, cure)
    if model.kind == "scratch" and (asked := chat_of(config)):
        key, value = next(iter(asked.items()))
        cure = f"model={model.name} is trained from scratch, and its template is plain; leave it out"
        raise wrong(None, f"data.{key}", str(value), cure)
    if model.code and (config.engine, config.evaluation.backend) != ("torch", "torch"):
        cure = "vLLM and verl know transformers' families only; take engine=torch and evaluation.backend=torch"
        raise wrong(None, "model.code", model.code, cure)
    if (train.steps is None) == (train.epochs is None):
        raise wrong(None, "train.steps", str(train.steps), "set exactly one of train.steps and train.epochs")
    if (train.budget.unit == "steps") != (train.budget.like is None):
        cure = f"name the method whose run sets the number of {train.budget.unit}, or leave both unit and like alone"
        raise wrong(None, "train.budget.like", str(train.budget.like), cure)
    if train.old_logprobs != "rollout" and config.engine != "verl":
        cure = "engine=torch samples and trains with one engine: nothing to compute again; take engine=verl, or rollout"
        raise wrong(None, "train.old_logprobs", train.old_logprobs, cure)
    if train.gradient_checkpointing and config.engine != "torch":
        cure = "of engine=torch; engine=verl does it on GPUs by itself; leave it out"
        raise wrong(None, "train.gradient_checkpointing", "true", cure)
    if train.mini_batch_size > train.batch_size:
        cure = f"must be at most train.batch_size={train.batch_size}"
        raise wrong(None, "train.mini_batch_size", train.mini_batch_size, cure)
    verl_keys.check(config)
    require_context(config)


def require_context(config: Config, source: str = "") -> None:
    """Raise UserError where a prompt and its response may exceed the model's context. source: where that is written."""
    model, sampling = config.model, config.sampling
    tokens = sampling.max_prompt_tokens + sampling.max_response_tokens
    if model.context_length is not None and tokens > model.context_length:
        raise wrong(
            None,
            "sampling.max_response_tokens",
            sampling.max_response_tokens,
            f"with sampling.max_prompt_tokens={sampling.max_prompt_tokens} a sequence may take {tokens} tokens, but "
            f"model={model.name} has {model.context_length} positions{source}; lower either, or choose another model",
        )
