"""Rules for the values of a composed configuration that its types cannot express."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from bapo.errors import UserError


def check(config: DictConfig) -> None:
    """Rules that types cannot express. Raises UserError naming the key, the value and what is allowed."""

    def require(ok: bool, key: str, rule: str) -> None:
        if not ok:
            raise UserError(f"{key}={OmegaConf.select(config, key)}: {rule}")

    def one_of(key: str, *allowed: str) -> None:
        require(OmegaConf.select(config, key) in allowed, key, f"must be one of {', '.join(allowed)}")

    one_of("engine", "torch", "verl")
    one_of("device", "auto", "cpu", "cuda")
    one_of("model.kind", "scratch", "pretrained")
    one_of("model.dtype", "float32", "bfloat16", "float16")
    for key in ("probe.samples", "evaluation.batch_size", "base.batch_size", "base.threads"):
        require(OmegaConf.select(config, key) >= 1, key, "must be at least 1")
    for key in ("train", "base"):
        node = config[key]
        require(node.grad_clip > 0, f"{key}.grad_clip", "must be positive")
        require(node.weight_decay >= 0, f"{key}.weight_decay", "must be 0 or more")
        require(len(node.betas) == 2 and all(0 <= b < 1 for b in node.betas), f"{key}.betas", "two values in [0, 1)")
    micro = config.train.micro_batch_size
    require(micro is None or micro >= 1, "train.micro_batch_size", "must be at least 1, or null")
    require(config.model.kind == "scratch" or config.model.path, "model.path", "name a folder or a hub model")
    one_of("data.source", "generated", "hub")
    one_of("tracking.kind", "wandb", "none")
    one_of("tracking.mode", "offline", "online", "disabled")
    one_of("train.underfilled", "fewer-updates", "smaller-mini-batches")
    one_of("evaluation.backend", "torch", "vllm", "server")
    one_of("evaluation.images", "own", "shuffled")
    t = config.train
    require((t.steps is None) != (t.epochs is None), "train.steps", "set exactly one of train.steps and train.epochs")
    for key in ("batch_size", "mini_batch_size", "group_size"):
        require(t[key] >= 1, f"train.{key}", "must be at least 1")
    for key in ("evaluation.samples", "evaluation.curve_samples", "threads"):
        require(OmegaConf.select(config, key) >= 1, key, "must be at least 1")
    require(t.steps is None or t.steps >= 1, "train.steps", "must be at least 1")
    one_of("train.budget.unit", "steps", "rollouts", "updates", "flops")
    require(t.budget.most >= 1, "train.budget.most", "must be at least 1")
    require(
        (t.budget.unit == "steps") == (t.budget.like is None),
        "train.budget.like",
        f"name the method whose run sets the number of {t.budget.unit}, or leave both unit and like alone",
    )
    require(t.epochs is None or t.epochs >= 1, "train.epochs", "must be at least 1")
    require(t.group_size >= 2, "train.group_size", "an advantage within a group needs at least 2 responses a prompt")
    require(
        t.mini_batch_size <= t.batch_size, "train.mini_batch_size", f"must be at most train.batch_size={t.batch_size}"
    )
    require(t.learning_rate > 0, "train.learning_rate", "must be positive")
    require(config.seed >= 0, "seed", "must be 0 or more")
    for part in ("sampling", "evaluation"):
        require(config[part].temperature > 0, f"{part}.temperature", "must be positive")
        require(0 < config[part].top_p <= 1, f"{part}.top_p", "must be in (0, 1]")
    for key in ("sampling.max_prompt_tokens", "sampling.max_response_tokens"):
        require(OmegaConf.select(config, key) >= 1, key, "must be at least 1")
    tokens = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    require(
        config.model.context_length is None or tokens <= config.model.context_length,
        "sampling.max_response_tokens",
        f"with sampling.max_prompt_tokens={config.sampling.max_prompt_tokens} a sequence may take {tokens} tokens, but "
        f"model={config.model.name} has {config.model.context_length} positions; lower either, or choose another model",
    )
    require(config.sampling.top_k == -1 or config.sampling.top_k >= 1, "sampling.top_k", "-1 (off) or at least 1")
    require(config.checkpoint.every >= 1, "checkpoint.every", "must be at least 1")
