"""Estimates the memory of a GPU on which verl trains a policy, from counts alone. It needs neither torch nor a GPU.

The model has P parameters on R ranks (FSDP2 shards everything), vocabulary V, width W, L layers and MLP width I. A GPU
holds these numbers of bytes:

- The policy takes 16 a parameter: 4 of float32 weights, 4 of gradients and 8 of Adam's moments. A critic takes the same
  again.
- The reference policy takes one layer at a time. verl keeps it in pinned host memory, 2 a parameter, and each pass
  streams it over PCIe once a micro-batch.
- With the actor's ``offload_policy`` the policy's 16 lie in host memory. The card then holds 6 for each parameter of
  the head and of two layers: what is gathered, and the float32 shards on their way.
- A micro-batch with fused log-probabilities has two peaks. The peak at the head is 29 V for each of the 512 tokens
  whose logits exist at a time, 5 V W for the gathered head and its gradient, 8 for each parameter of a layer, and
  2 L W + 10 W a token. The peak in a layer is 4 V W, 9 for each of its parameters, and for each token 2 L W that
  gradient checkpointing keeps and 14 I + 43 W of activations.
- A micro-batch with whole logits (vision models, runs with a critic) takes 16 V + 2 L W a token, and 17 V for each of
  the 2,048 tokens whose entropy is computed at a time. Every token may belong to an image, as prompts with diagrams and
  short responses are packed together. The vision tower keeps IMAGE for such a token.
- torch's memory tracker finds up to a seventh less than these sums, and never more (tests/engines/verl).
- While a policy in host memory is loaded, the card holds its float32 weights, 4 a parameter, and the whole head.
- All else takes 3.5 GB: CUDA's contexts, fragments, and what vLLM keeps while it sleeps. On an H200 it took 2.5 GB
  without CUDA graphs, of which the trainer's own process had 2.1.
- While vLLM generates, it has ``verl.gpu_memory_utilization`` of the card, which it gives back before the training. Its
  weights must fit there twice: with one response's keys and values and PROFILED, and with the whole head and the bucket
  in which the trainer pushes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from bapo import methods, tasks
from bapo.experiments.schema import Config
from bapo.validate import wrong

GIGABYTE = 1e9
#: GB of the card that is assumed where none is visible: an A100 or H100
CARD = 80.0
#: the share of a card that may be used: with less room left, the allocator begins to search and to free
USED = 0.92
#: bytes that the sums leave out while verl trains, and those of its processes while vLLM generates
BESIDE, BESIDE_GENERATING = 3.5e9, 2.1e9
#: bytes a parameter of a trained model while it is trained, and while vLLM generates
TRAINED = 16, 12
#: bytes for each entry of the vocabulary: the number of tokens whose logits exist at a time, times the bytes of each
FUSED_CHUNK = 512 * 29
ENTROPY_CHUNK = 2048 * 17
#: bytes that whole logits take a token and entry of the vocabulary, with their gradient and the entropy
LOGITS = 16
#: bytes a token of an image: Qwen2.5-VL's towers of 32 layers have four patches of it, 1280 wide
IMAGE = 420_000
#: verl sends weights to vLLM in buckets of BUCKET MB, or of SMALL_BUCKET where a card has fewer than SMALL GB
SMALL, BUCKET, SMALL_BUCKET = 48.0, 2048, 512
#: bytes of vLLM's CUDA graphs and context, and of the first pass that sizes its cache: a guess, never measured
PROFILED = 2e9
#: bytes of a sampled token in a checkpoint
ROW_ON_DISK = 48
#: verl's keys of the rollout engine, and the one that moves the policy to host memory
ROLLOUT, OFFLOAD = "actor_rollout_ref.rollout", "actor_rollout_ref.actor.fsdp_config.offload_policy"


@dataclass(frozen=True)
class Memory:
    """Counts the bytes of one GPU.

    states: weights, gradients and moments, and what lies beside them
    peaks: of one micro-batch, any of which may be the highest: bytes whatever the tokens, and bytes for each token
    loading: what is held while the policy is loaded
    generating: what stays while vLLM has its share
    vllm: the smallest share with which vLLM works
    card: what may be used of the GPU
    """

    states: float
    peaks: tuple[tuple[float, float], ...]
    loading: float
    generating: float
    vllm: float
    card: float

    def training(self, tokens: int) -> float:
        """Return the bytes held while a micro-batch of ``tokens`` is trained."""
        return self.states + max(batch + token * tokens for batch, token in self.peaks)

    @property
    def most_tokens(self) -> int:
        """Count the tokens of the largest micro-batch that fits."""
        return max(0, int(min((self.card - self.states - batch) / token for batch, token in self.peaks)))


def memory_of(config: Config, ranks: int, card: float = CARD) -> Memory | None:
    """Return what a run needs of each of ``ranks`` GPUs with ``card`` GB; None where the model's sizes are unknown."""
    parameters, sizes = config.model.parameters, config.model.sizes
    if not parameters or sizes is None:
        return None
    shards = [width * parameters / ranks for width in TRAINED]
    vocabulary, width, checkpointed = sizes.vocabulary, sizes.width, 2 * sizes.layers * sizes.width
    head, layer = vocabulary * width, (parameters - vocabulary * width) / sizes.layers
    policy = [6 * (head + 2 * layer), 0] if in_host_memory(config) else shards
    critic = methods.of_run(config).uses_critic
    states, generating = (p + shard * critic for p, shard in zip(policy, shards, strict=True))
    if fused(config):
        at_head = FUSED_CHUNK * vocabulary + 5 * head + 8 * layer, checkpointed + 10 * width
        peaks = [at_head, (4 * head + 9 * layer, checkpointed + 14 * sizes.mlp + 43 * width)]
    else:
        images = IMAGE * tasks.get(config.task.name).images
        peaks = [(ENTROPY_CHUNK * vocabulary, LOGITS * vocabulary + checkpointed + images)]
    engine_gpus, type_width = tensor_parallel(config, ranks), _type_width(config)
    # keys and values are no wider than the model
    sampling = type_width * checkpointed * config.sampling.max_tokens / engine_gpus + PROFILED
    pushing = 2**20 * bucket(card) + 4 * head
    return Memory(
        states=states + BESIDE,
        peaks=tuple(peaks),
        loading=4 * (parameters / ranks + head) + BESIDE_GENERATING,
        generating=generating + BESIDE_GENERATING,
        vllm=type_width * parameters / engine_gpus + max(sampling, pushing),
        card=USED * card * GIGABYTE,
    )


def tensor_parallel(config: Config, ranks: int) -> int:
    """Count the GPUs of one vLLM engine: as ``verl.overrides`` say, or two for 7B on an even number, else one."""
    pairs = (config.model.parameters or 0) >= 6e9 and ranks % 2 == 0
    return override(config, f"{ROLLOUT}.tensor_model_parallel_size") or (2 if pairs else 1)


def override(config: Config, key: str) -> Any:
    """Return the value that ``verl.overrides`` gives a key of verl's configuration, or None."""
    return OmegaConf.select(OmegaConf.create(config.verl.overrides), key)


def bucket(card: float) -> int:
    """Return the MB of weights that verl sends to vLLM at a time. card: GB of the GPU."""
    return SMALL_BUCKET if card < SMALL else BUCKET


def asked_tokens(config: Config, ranks: int) -> int:
    """Count the tokens that the configuration's micro-batch may have on one of ``ranks`` GPUs."""
    t = config.train
    return config.sampling.max_tokens * max(1, (t.micro_batch_size or t.mini_batch_size * t.group_size) // ranks)


def gigabytes(config: Config, ranks: int, card: float = CARD) -> tuple[float, float, float]:
    """Return the GB of one of ``ranks`` GPUs while training and while generating, and of the host memory of all ranks.

    The model's sizes must be known. Where no response fits into the card, the first number is that of one response.
    """
    size = memory_of(config, ranks, card)
    assert size is not None
    micro = max(config.sampling.max_tokens, min(asked_tokens(config, ranks), size.most_tokens))
    generating = size.generating + config.verl.gpu_memory_utilization * card * GIGABYTE
    return size.training(micro) / GIGABYTE, generating / GIGABYTE, host_bytes(config, ranks) / GIGABYTE


def fused(config: Config) -> bool:
    """Return whether log-probabilities are computed in chunks, never all logits at once.

    verl's critics and Qwen2.5-VL's packed rows need flash-attn in any case; their runs keep the whole logits.
    """
    return not (tasks.get(config.task.name).images or methods.of_run(config).uses_critic)


def in_host_memory(config: Config) -> bool:
    """Return whether the policy's weights, gradients and optimiser lie in host memory."""
    return bool(override(config, OFFLOAD))


def host_bytes(config: Config, ranks: int) -> float:
    """Count the bytes of host memory that ``ranks`` ranks keep together while verl trains on GPUs, or a few more.

    What a method replays is not counted: RePO's cache takes 8 a token, 16 responses per prompt.
    A delayed rollout policy takes 8 a parameter, as its float32 shards lie there twice from its first push on. A policy
    in host memory takes 8 for its moments. FSDP pins that policy's weights and gradients, and the reference.
    """
    method, host = methods.of_run(config), in_host_memory(config)
    exact = 8 * (method.delays_rollout_policy + host) * (config.model.parameters or 0)
    return exact + _pinned(config, ranks, 8 * host + 2 * method.needs_reference)


def _pinned(config: Config, ranks: int, width: int) -> float:
    """Count the bytes that FSDP's copies with ``width`` bytes a parameter take, or a few more.

    torch rounds each pinned shard up to a power of two. That is computed for the MLPs' matrices and the head, and
    counted as twice the size for all others.
    """
    others, pinned, sizes = config.model.parameters or 0, 0.0, config.model.sizes
    if sizes is not None:
        for matrices, size in ((3 * sizes.layers, sizes.width * sizes.mlp), (1, sizes.vocabulary * sizes.width)):
            # weights, gradients and reference round alike, as their widths are powers of two
            pinned += matrices * width * 2 ** math.ceil(math.log2(size / ranks)) * ranks
            others -= matrices * size
    return pinned + 2 * width * others


def state_width(config: Config) -> int:
    """Count the bytes on disk for each parameter in a checkpoint of the trainer, with either engine.

    Float32 weights and Adam's moments take 12, a delayed rollout policy 4, a critic 12. verl also writes the model in
    its own type. What a method replays is not counted.
    """
    method = methods.of_run(config)
    delayed, critic = 4 * method.delays_rollout_policy, 12 * method.uses_critic
    return 12 + delayed + critic + _type_width(config) * (config.engine == "verl")


def disk_bytes(config: Config, parameters: float, models: float, states: int) -> float:
    """Count the bytes on disk of published models and of states of the trainer; ``models``, ``states``: their numbers.

    A state also holds the rows of the coming steps of a rollout window. All responses are counted at full length.
    """
    t, steps = config.train, getattr(config.method, "v", 1) - 1 if config.verl.rollout_window else 0
    rows = ROW_ON_DISK * steps * t.batch_size * t.group_size * config.sampling.max_tokens
    return parameters * (models * _type_width(config) + states * state_width(config)) + states * rows


def _type_width(config: Config) -> int:
    """Count the bytes of a parameter in the model's own type."""
    return 2 if "16" in config.model.dtype else 4


def micro_batch_tokens(config: Config, ranks: int, tokens: int, card: float) -> int:
    """Return the tokens of a micro-batch on one GPU: ``tokens``, or as many as fit.

    Args:
        config: of the run
        ranks: GPUs that share the model
        tokens: those that ``train.micro_batch_size`` asks for
        card: GB of a GPU

    Raises UserError where the models and one response of full length do not fit, or leave vLLM less than its share or
    than it needs.
    """
    needs = memory_of(config, ranks, card)
    if needs is None:
        return tokens
    row = config.sampling.max_tokens
    run = f"on {ranks} GPU{'s' if ranks > 1 else ''} of {card:.0f} GB"
    cure = "raise verl.gpus_per_node or verl.gpu_memory"
    if needs.loading > needs.card:
        text = f"{run} takes {needs.loading / GIGABYTE:.0f} GB a GPU while it is loaded"
        raise wrong(None, "model", config.model.name, f"{text}, and {needs.card / GIGABYTE:.0f} can be used; {cure}")
    if needs.most_tokens < row:
        text = (
            f"{run} weights, gradients, optimiser and one response take {needs.training(row) / GIGABYTE:.0f} GB a GPU, "
            f"and {needs.card / GIGABYTE:.0f} can be used; {cure}, or lower sampling.max_response_tokens"
        )
        text += "" if in_host_memory(config) else f", or set {OFFLOAD}=true in verl.overrides"
        raise wrong(None, "model", config.model.name, text)
    lowest, highest = (size / (card * GIGABYTE) for size in (needs.vllm, needs.card - needs.generating))
    if not lowest <= (share := config.verl.gpu_memory_utilization) <= highest:
        text = f"model={config.model.name} {run} leaves {highest:.2f} of each card to vLLM, which needs {lowest:.2f}"
        raise wrong(None, "verl.gpu_memory_utilization", share, f"{text}; choose a value between them")
    return min(tokens, needs.most_tokens)
