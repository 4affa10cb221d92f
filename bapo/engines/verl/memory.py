"""What fits into a GPU while verl trains a policy on it, from counts alone. Needs neither torch nor a GPU.

With P parameters on R ranks (FSDP2 shards everything), vocabulary V, width W, L layers and MLP width I, in bytes a GPU:

- the policy: 4 of float32 weights, 4 of gradients and 8 of Adam's moments a parameter; a critic costs the same again;
- the reference policy: nothing but one layer at a time. verl keeps it in host memory, 2 a parameter, pinned, and every
  pass of it streams the model over PCIe once a micro-batch;
- with the actor's ``offload_policy`` all of that policy's 16 lie in host memory; of the head and of two layers, what is
  gathered and its float32 shards on their way, 6 a parameter, are here;
- one micro-batch with fused log-probabilities has two peaks. At the head they are 29 V for each of the 512 tokens whose
  logits are there at a time, 5 V W for the gathered head and its gradient, 8 for a layer's parameter, and 2 L W + 10 W
  a token; in a layer 4 V W, 9 for its parameter, and a token 2 L W of what gradient checkpointing keeps and
  14 I + 43 W of activations;
- one micro-batch with whole logits (vision models, runs with a critic): 16 V + 2 L W a token, and 17 V for each of the
  2,048 tokens that the entropy is computed of at a time. Every token may be an image's: prompts with diagrams and short
  responses are packed together. What the vision tower keeps of it is IMAGE;
- torch's own memory tracker finds up to a seventh less than these sums, and never more (tests/engines/verl);
- at the start of a policy in host memory its float32 weights come to the card, 4 a parameter, and the whole head;
- beside all this 3.5 GB: CUDA's contexts, fragments, and what vLLM keeps while it sleeps. On an H200 all of it but
  CUDA graphs took 2.5 GB, of which the trainer's own process had 2.1;
- vLLM, while it generates: ``verl.gpu_memory_utilization`` of the card, which it gives back before the training. Its
  weights and one response's keys and values must fit there, with PROFILED, and so must its weights with the whole head
  and the bucket that the trainer pushes them in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from omegaconf import OmegaConf

from bapo import methods, tasks
from bapo.experiments.schema import Config
from bapo.validate import wrong

GIGABYTE = 1e9
#: GB of the card that is meant where none is visible: an A100 or H100
CARD = 80.0
#: the share of a card that may be used: an allocator with less room than the rest begins to search and to free
USED = 0.92
#: bytes that the sums leave out while verl trains, and those of its processes while vLLM generates
BESIDE, BESIDE_GENERATING = 3.5e9, 2.1e9
#: bytes a parameter of a trained model while it is trained, and while vLLM generates
TRAINED = 16, 12
#: bytes for each entry of the vocabulary: so many tokens have their logits at a time, and each takes so many bytes
FUSED_CHUNK = 512 * 29
ENTROPY_CHUNK = 2048 * 17
#: bytes that whole logits take a token and entry of the vocabulary, with their gradient and the entropy
LOGITS = 16
#: bytes a token of an image: Qwen2.5-VL's towers of 32 layers have four patches of it, 1280 wide
IMAGE = 420_000
#: on a card of fewer GB the 2 GB of weights that verl sends to vLLM at a time are too many; the MB of both
SMALL, BUCKET, SMALL_BUCKET = 48.0, 2048, 512
#: bytes of vLLM's first pass, by which it sizes its cache, of its CUDA graphs and context: a guess, never measured
PROFILED = 2e9
#: bytes of a sampled token in a checkpoint
ROW_ON_DISK = 48
OFFLOAD = "actor_rollout_ref.actor.fsdp_config.offload_policy"


@dataclass(frozen=True)
class Memory:
    """Counts the bytes of one GPU.

    states: those of training, and what lies beside
    peaks: of one micro-batch, any of which may be the highest: bytes for any tokens, and for each token
    loading: while the policy is loaded
    generating: what stays while vLLM has its share
    vllm: the least that such a share must be
    card: what may be used of the GPU
    """

    states: float
    peaks: tuple[tuple[float, float], ...]
    loading: float
    generating: float
    vllm: float
    card: float

    def training(self, tokens: int) -> float:
        """Return what a micro-batch of ``tokens`` takes, with all that lies beside it."""
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
    vocabulary, width, kept = sizes.vocabulary, sizes.width, 2 * sizes.layers * sizes.width
    head, layer = vocabulary * width, (parameters - vocabulary * width) / sizes.layers
    policy = [6 * (head + 2 * layer), 0] if in_host_memory(config) else shards
    critic = methods.of_run(config).uses_critic
    states, generating = (p + shard * critic for p, shard in zip(policy, shards, strict=True))
    if fused(config):
        at_head = FUSED_CHUNK * vocabulary + 5 * head + 8 * layer, kept + 10 * width
        peaks = [at_head, (4 * head + 9 * layer, kept + 14 * sizes.mlp + 43 * width)]
    else:
        images = IMAGE * tasks.get(config.task.name).images
        peaks = [(ENTROPY_CHUNK * vocabulary, LOGITS * vocabulary + kept + images)]
    # keys and values are no wider than the model
    spread, own = tensor_parallel(config, ranks), _type_width(config)
    sampling, pushing = own * kept * row_tokens(config) / spread + PROFILED, 2**20 * bucket(card) + 4 * head
    return Memory(
        states=states + BESIDE,
        peaks=tuple(peaks),
        loading=4 * (parameters / ranks + head) + BESIDE_GENERATING,
        generating=generating + BESIDE_GENERATING,
        vllm=own * parameters / spread + max(sampling, pushing),
        card=USED * card * GIGABYTE,
    )


def tensor_parallel(config: Config, ranks: int) -> int:
    """Count the GPUs over which one vLLM is spread: two from 7B on where they come in pairs, or what overrides say."""
    pairs = (config.model.parameters or 0) >= 6e9 and ranks % 2 == 0
    return of_rollout(config, "tensor_model_parallel_size") or (2 if pairs else 1)


def of_rollout(config: Config, key: str) -> int | None:
    """Return what ``verl.overrides`` say of the rollout engine."""
    return OmegaConf.select(OmegaConf.create(config.verl.overrides), f"actor_rollout_ref.rollout.{key}")


def bucket(card: float) -> int:
    """Return the MB of weights that verl sends to vLLM at a time from a card of so many GB."""
    return SMALL_BUCKET if card < SMALL else BUCKET


def asked_tokens(config: Config, ranks: int) -> int:
    """Count the tokens of a micro-batch on one of ``ranks`` GPUs that the configuration asks for: whole responses."""
    t = config.train
    return row_tokens(config) * max(1, (t.micro_batch_size or t.mini_batch_size * t.group_size) // ranks)


def row_tokens(config: Config) -> int:
    """Count the tokens of the longest prompt with the longest response: no micro-batch can be smaller."""
    return config.sampling.max_prompt_tokens + config.sampling.max_response_tokens


def gigabytes(config: Config, ranks: int, card: float = CARD) -> tuple[float, float, float]:
    """Return the GB of one of ``ranks`` GPUs while training and while generating, and of host memory of all ranks.

    The model's sizes are known. card: GB of a GPU; where no response fits, the first sum is that of one.
    """
    size = memory_of(config, ranks, card)
    assert size is not None
    micro = max(row_tokens(config), min(asked_tokens(config, ranks), size.most_tokens))
    generating = size.generating + config.verl.gpu_memory_utilization * card * GIGABYTE
    return size.training(micro) / GIGABYTE, generating / GIGABYTE, host_bytes(config, ranks) / GIGABYTE


def fused(config: Config) -> bool:
    """Return whether log-probabilities are computed in chunks, never all logits at once.

    verl's critics and Qwen2.5-VL's packed rows need flash-attn in any case; their runs keep the whole logits.
    """
    return not (tasks.get(config.task.name).images or methods.of_run(config).uses_critic)


def in_host_memory(config: Config) -> bool:
    """Return whether the policy's weights, gradients and optimiser lie in host memory."""
    return bool(OmegaConf.select(OmegaConf.create(config.verl.overrides), OFFLOAD, default=False))


def host_bytes(config: Config, ranks: int) -> float:
    """Count the bytes of host memory that ``ranks`` ranks keep together while verl trains on GPUs, or a few more.

    A parameter has 8 of a delayed rollout policy, whose float32 shards lie there twice from its first push on, and 8 of
    the moments of a policy that is kept there itself. FSDP pins that one's weights and gradients and the reference.
    """
    method, host = methods.of_run(config), in_host_memory(config)
    exact = 8 * (method.delays_rollout_policy + host) * (config.model.parameters or 0)
    return exact + _pinned(config, ranks, 8 * host + 2 * method.needs_reference)


def _pinned(config: Config, ranks: int, width: int) -> float:
    """Count the bytes that FSDP's copies with ``width`` bytes a parameter take, or a few more.

    torch gives each pinned shard the next power of two: known of the MLPs' matrices, at most twice as much elsewhere.
    """
    left, counted, sizes = config.model.parameters or 0, 0.0, config.model.sizes
    if sizes is not None:
        for matrices, size in ((3 * sizes.layers, sizes.width * sizes.mlp), (1, sizes.vocabulary * sizes.width)):
            # weights, gradients and reference round alike, as their widths are powers of two
            counted += matrices * width * 2 ** math.ceil(math.log2(size / ranks)) * ranks
            left -= matrices * size
    return counted + 2 * width * left


def state_width(config: Config) -> int:
    """Count the bytes on disk that a checkpoint of the trainer takes a parameter, with either engine.

    12 of float32 weights and Adam's moments, 4 of a delayed rollout policy, 12 of a critic, and with verl the model
    once more in its own type. What a method replays is not counted.
    """
    method = methods.of_run(config)
    delayed, critic = 4 * method.delays_rollout_policy, 12 * method.uses_critic
    return 12 + delayed + critic + _type_width(config) * (config.engine == "verl")


def disk_bytes(config: Config, parameters: float, models: float, states: int) -> float:
    """Count the bytes on disk of so many published models, and of states of the trainer.

    A state also holds the rows of a window's coming steps, at most: all responses of full length.
    """
    t, steps = config.train, getattr(config.method, "v", 1) - 1 if config.verl.rollout_window else 0
    rows = ROW_ON_DISK * steps * t.batch_size * t.group_size * row_tokens(config)
    return parameters * (models * _type_width(config) + states * state_width(config)) + states * rows


def _type_width(config: Config) -> int:
    """Count the bytes of a parameter in the model's own type."""
    return 2 if "16" in config.model.dtype else 4


def micro_batch_tokens(config: Config, ranks: int, tokens: int, card: float) -> int:
    """Return the tokens of a micro-batch on one GPU: those that ``train.micro_batch_size`` asks for, or what fits.

    ranks: GPUs that share the model; tokens: those that it asks for; card: GB of a GPU. Raises UserError where the
    models and one response of full length do not fit, or leave vLLM less than its share or than it needs.
    """
    needs = memory_of(config, ranks, card)
    if needs is None:
        return tokens
    row = row_tokens(config)
    run = f"on {ranks} GPU{'s' if ranks > 1 else ''} of {card:.0f} GB"
    more = "raise verl.gpus_per_node or verl.gpu_memory"
    if needs.loading > needs.card:
        text = f"{run} takes {needs.loading / GIGABYTE:.0f} GB a GPU while it is loaded"
        raise wrong(None, "model", config.model.name, f"{text}, and {needs.card / GIGABYTE:.0f} can be used; {more}")
    if needs.most_tokens < row:
        text = (
            f"{run} weights, gradients, optimiser and one response take {needs.training(row) / GIGABYTE:.0f} GB a GPU, "
            f"and {needs.card / GIGABYTE:.0f} can be used; {more}, or lower sampling.max_response_tokens"
        )
        text += "" if in_host_memory(config) else f", or set {OFFLOAD}=true in verl.overrides"
        raise wrong(None, "model", config.model.name, text)
    least, most = (size / (card * GIGABYTE) for size in (needs.vllm, needs.card - needs.generating))
    if not least <= (share := config.verl.gpu_memory_utilization) <= most:
        text = f"model={config.model.name} {run} leaves {most:.2f} of each card to vLLM, which needs {least:.2f}"
        raise wrong(None, "verl.gpu_memory_utilization", share, f"{text}; choose a value between them")
    return min(tokens, needs.most_tokens)
