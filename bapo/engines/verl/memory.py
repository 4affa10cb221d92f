"""What fits into a GPU while verl trains a policy on it, from counts alone. Needs neither torch nor a GPU.

With P parameters on R ranks (FSDP2 shards everything), in bytes a GPU:

- the policy: 4 of float32 weights, 4 of gradients and 8 of Adam's moments a parameter; a critic costs the same again;
- the reference policy: nothing but one layer at a time. verl keeps it in host memory, 2 a parameter, pinned, and every
  pass of it streams the model over PCIe once a micro-batch;
- with the actor's ``offload_policy`` all of that policy's 16 lie in host memory; 2 a parameter are charged for what is
  gathered of it;
- one micro-batch: 16 a token and entry of the vocabulary. The logits are there in bfloat16 and in float32, each with
  its gradient (12), beside what the entropy keeps (4); with gradient checkpointing a layer's activations are small;
- vLLM, while it generates: ``verl.gpu_memory_utilization`` of the card, which it gives back before the training.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import OmegaConf

from bapo import methods
from bapo.experiments.schema import Config
from bapo.validate import wrong

VOCABULARY = 152_000  # Qwen2.5 and Qwen3
LOGITS = 16  # bytes a token and entry of the vocabulary
GIGABYTE = 1e9
CARD = 80.0  # GB of the card that is meant where none is visible: an A100 or H100
#: GB of a card under which a micro-batch takes half of what the states leave: torch's FSDPMemTracker puts the peak of
#: an update up to 4 GB above the sum of this page, and CUDA's contexts take as much of a small card as of a large one
SMALL = 48.0
#: not to be had: CUDA's and NCCL's own, fragments, vLLM's graphs
RESERVE = 0.06, 3e9
OFFLOAD = "actor_rollout_ref.actor.fsdp_config.offload_policy"
#: bytes a parameter of a trained model while it is trained, and while vLLM generates
TRAINED = 16, 12


@dataclass(frozen=True)
class Memory:
    """Bytes a GPU. states: of all models, gradients and optimisers; generating: those that stay while vLLM has the
    card; card: what may be used of it; small: whether it has less than SMALL GB."""

    states: float
    generating: float
    card: float
    small: bool = False

    @property
    def most_tokens(self) -> int:
        """Count the tokens whose logits fill what the states leave."""
        return max(0, int((self.card - self.states) / (LOGITS * VOCABULARY)))

    def tokens(self, row: int) -> int:
        """Count the tokens of one micro-batch: half of the most on a small card, but one response of ``row`` tokens."""
        return min(self.most_tokens, max(row, self.most_tokens // 2)) if self.small else self.most_tokens


def memory_of(config: Config, ranks: int, card: float = CARD) -> Memory | None:
    """Return what a run needs of each of ``ranks`` GPUs with ``card`` GB; None where the model's size is not known."""
    parameters = config.model.parameters
    if not parameters:
        return None
    policy = (2, 0) if in_host_memory(config) else TRAINED
    critics = methods.build(config.method, config.train.batch_size, config.seed).uses_critic
    states, generating = (
        (actor + critic * critics) * parameters / ranks for actor, critic in zip(policy, TRAINED, strict=True)
    )
    share, fixed = RESERVE
    return Memory(states, generating, (1 - share) * card * GIGABYTE - fixed, card < SMALL)


def in_host_memory(config: Config) -> bool:
    """Return whether the policy's weights, gradients and optimiser lie in host memory."""
    return bool(OmegaConf.select(OmegaConf.create(config.verl.overrides), OFFLOAD, default=False))


def micro_batch_tokens(config: Config, ranks: int, asked: int, card: float) -> int:
    """Return the tokens of a micro-batch on one GPU: those that ``train.micro_batch_size`` asks for, or what fits.

    asked: a GPU's. Raises UserError where the models, or one response of full length beside them, do not fit.
    """
    found = memory_of(config, ranks, card)
    if found is None:
        return asked
    row = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    run = f"on {ranks} GPU{'s' if ranks > 1 else ''} of {card:.0f} GB"
    if found.most_tokens < row:
        logits = LOGITS * VOCABULARY * row / GIGABYTE
        text = (
            f"{run} weights, gradients and optimiser take {found.states / GIGABYTE:.0f} GB a GPU, and the logits of "
            f"one response {logits:.0f} GB; raise verl.gpus_per_node or verl.gpu_memory, lower "
            f"sampling.max_response_tokens, or set {OFFLOAD}=true in verl.overrides"
        )
        raise wrong(None, "model", config.model.name, text)
    left = (found.card - found.generating) / (card * GIGABYTE)
    if (share := config.verl.gpu_memory_utilization) > left:
        text = f"model={config.model.name} {run} leaves {left:.2f} of each card to vLLM; lower it"
        raise wrong(None, "verl.gpu_memory_utilization", share, text)
    return min(asked, found.tokens(row))
