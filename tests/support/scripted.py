"""A sampler with scripted rewards, and short ways to write groups, for the tests of the methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from bapo import methods
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.replay import HardPrompt
from bapo.algorithm.rollouts import DEMONSTRATED, ORIGINS, Group, Prompt, Samples
from bapo.methods import Batch

G = 8


def rewards(correct: int, size: int = G) -> np.ndarray:
    """``correct`` ones, then zeros."""
    return (np.arange(size) < correct).astype(np.float32)


def samples(values: Sequence[float], mark: float = 0.0) -> Samples:
    """Two tokens a response; the log-probabilities are recognisable by ``mark`` and the response's number."""
    n = len(values)
    logprobs = -(mark + np.arange(2 * n, dtype=np.float32).reshape(n, 2) / 100)
    return Samples(np.full((n, 2), 7, dtype=np.int32), np.full(n, 2, dtype=np.int32), logprobs)


def group(prompt_id: str, correct: int, step: int = 1, size: int = G) -> Group:
    return Group(Prompt(prompt_id), rewards(correct, size), step, step - 1, samples(rewards(correct, size), step))


def fresh(step: int, corrects: Sequence[int], size: int = G) -> list[Group]:
    """The fresh groups of a step: prompts "<step>a", "<step>b", ... with the given numbers of correct responses."""
    return [group(f"{step}{chr(ord('a') + i)}", c, step, size) for i, c in enumerate(corrects)]


class ScriptedSampler:
    """The Sampler protocol: ``stream`` is what draw() hands out, ``answers[id]`` the numbers correct, one a call."""

    def __init__(self, answers: dict[str, list[int]] | None = None, stream: Sequence[str] = ()) -> None:
        self.answers = {k: list(v) for k, v in (answers or {}).items()}
        self.stream = list(stream)
        self.step = 1
        self.asked: list[list[str]] = []  # one list of prompt ids for each call of regenerate()
        self.policies: list[str] = []  # and the policy it was to sample from

    def draw(self, count: int) -> list[Prompt]:
        taken, self.stream = self.stream[:count], self.stream[count:]
        return [Prompt(i) for i in taken]

    def regenerate(self, prompts: list[Prompt], origin: str, policy: str = "current") -> list[Group]:
        self.asked.append([p.id for p in prompts])
        self.policies.append(policy)
        return [group(p.id, self.answers[p.id].pop(0), self.step, G).as_origin(origin) for p in prompts]


def expert(prompt_id: str, step: int = 1) -> Group:
    """An expert's solution of three tokens, as ``Sampler.demonstrate`` gives it."""
    solution = Samples(np.full((1, 3), 9, dtype=np.int32), np.array([3], dtype=np.int32), np.zeros((1, 3), np.float32))
    return Group(Prompt(prompt_id), np.ones(1), step, step - 1, solution, DEMONSTRATED)


class ExpertSampler(ScriptedSampler):
    """Also knows solutions of all prompts but ``unknown``; ``asked`` lists for which it was asked."""

    def __init__(self, unknown: Sequence[str] = (), stream: Sequence[str] = ()) -> None:
        super().__init__(stream=stream)
        self.unknown = unknown

    def demonstrate(self, prompts: list[Prompt]) -> list[Group | None]:
        self.asked.append([p.id for p in prompts])
        return [None if p.id in self.unknown else expert(p.id, self.step) for p in prompts]


class NoSampler:
    """For methods that must not generate anything while they build a batch."""

    def draw(self, count: int) -> list[Prompt]:
        raise AssertionError("draw() was called")

    def regenerate(self, prompts: list[Prompt], origin: str, policy: str = "current") -> list[Group]:
        raise AssertionError("regenerate() was called")


def ids(groups: Iterable[Group]) -> list[str]:
    return [g.prompt.id for g in groups]


def parts(batch: Batch) -> tuple[list[str], ...]:
    """Prompt ids of X1, X2, X3."""
    return tuple(ids(g for g in batch.groups if g.origin == origin) for origin in ORIGINS)


def build(algorithm: str, batch_size: int, seed: int = 1, **options: object) -> Any:
    """Build a method as a run does whose setting has Table 3's coefficients."""
    setting = OmegaConf.create({"kl_coef": 0.001, "entropy_coef": 0.001, "batch_size": batch_size})
    return methods.build(methods.config_of({"algorithm": algorithm, **options}).of_setting(setting), batch_size, seed)


def with_bad(names: Iterable[str], batch_size: int = 6, **options: object) -> Any:
    """BAPO with these prompts in B_bad, in their order."""
    method = build("bapo", batch_size, **options)
    for name in names:
        method.bad.add(HardPrompt(name, Prompt(name)))
    return method


def loss_inputs(
    now: Sequence[Sequence[float]],
    stored: Sequence[Sequence[float]],
    advantages: Sequence[float],
    mask: Sequence[Sequence[float]] | None = None,
    second_part: Sequence[bool] | None = None,
    **more: Any,
) -> LossInputs:
    """One mini-batch from probabilities [N][T]: the current policy's, which carry the gradient, and the stored ones.

    ``reference`` and ``pi_k`` are the probabilities of these policies.
    """
    import torch

    names = {"reference": "reference_logprobs", "pi_k": "step_logprobs"}
    policies = {names[n]: torch.tensor(more.pop(n)).log() for n in names if n in more}
    logprobs = torch.tensor(now).log().requires_grad_()
    marks = torch.tensor(second_part if second_part is not None else [False] * len(now))
    ones = torch.ones_like(logprobs) if mask is None else torch.tensor(mask)
    given = torch.tensor(stored).log(), torch.tensor(advantages)
    return LossInputs(logprobs, *given, ones.detach(), marks, torch.ones(len(now)), **policies, **more)
