"""ExGRPO: half of a batch's questions bring back the stored response that the policy is surest of."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from bapo.algorithm.batch import informative
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.replay import ResponseCache, merge
from bapo.algorithm.rollouts import Group, Prompt, above
from bapo.methods.base import Batch, Sampler, Share, Tensor
from bapo.methods.parts.mixed import MixedConfig, MixedMethod, mixed, shaped_loss

#: draws from the stream in search of unretired questions, before retired ones are taken again
TRIES = 4


class ExGRPOConfig(MixedConfig):
    of_clip: ClassVar[tuple[str, ...]] = ()  # the steps before the first replay have GRPO's clip

    #: rho: share of a batch's questions that bring back a response
    experience_ratio: Share = 0.5
    #: replay starts once a batch's mean reward is above this; small models on Countdown never reach the reference's
    #: 0.35, which suits models of 1.5 B and more
    start_reward: float = Field(0.2, ge=0, lt=1)
    bucket_std: PositiveFloat = 1.0  # sigma of the Gaussian over the number correct; its mean is G / 2
    capacity: PositiveInt = 32  # newest correct responses kept per question
    shape: NonNegativeFloat = 0.1  # policy shaping x / (x + shape); 0: the plain ratio


class ExGRPO(MixedMethod):
    """Learning to reason from experience (Zhan et al. 2510.02245; ElliottYan/LUFFY, folder ExGRPO: ``experience/``,
    ``mix_src/mix_core_alg.py`` and ``exp_scripts/run_exgrpo.sh``).

    Replay starts after the first batch whose mean reward is above ``start_reward``. From then on, correct responses to
    questions with 1 to G - 1 right answers are kept, and half of a batch's questions are drawn from those: first a
    bucket (the number right when last seen) by a multinomial with weights N(k; G/2, 1), then questions in it uniformly
    without replacement. Each brings back its response of lowest entropy under the current policy as one of its G.
    Advantages cover the mixed group, without the standard deviation; the ratio of a replayed response is pi_theta to
    the policy that sampled it, shaped by x / (x + 0.1), not clipped; fresh ones lose their clip when replay starts. A
    question whose responses are all right is retired: neither kept nor drawn again.

    Differences from the reference: G responses are generated and the last gives way. Only questions in use are drawn
    from the stream. A response's entropy is estimated by the mean of -log pi over its tokens; the reference averages
    the entropies of the padding behind the responses (``~(responses != pad)``, in the last chunk of eight). At most
    ``capacity`` responses are kept per question. Token losses are averaged, see :class:`MixedConfig`.
    """

    Config = ExGRPOConfig
    config: ExGRPOConfig
    kept: ResponseCache
    title = "+ExGRPO"
    summary = "half of the questions bring back their surest stored response; buckets by correctness"
    source = "Zhan et al. 2510.02245; ElliottYan/LUFFY ExGRPO"
    cost = "1 x rollouts, stored responses scored"
    saved = ("mixing", "correct", "retired", "size")

    def __init__(self, config: ExGRPOConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.mixing = False  # replay has started
        self.kept = ResponseCache(config.capacity)
        self.correct: dict[str, int] = {}  # question with kept responses -> number right when last seen
        self.size = 0  # G
        self.retired: dict[str, None] = {}  # an ordered set
        self.chosen: dict[str, Group] = {}  # question of this step -> the response it brings back

    # ------------------------------------------------------------------ which questions
    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        count = min(len(self.correct), int(self.config.experience_ratio * self.batch_size)) if self.mixing else 0
        names = self.questions(step, count)
        self.chosen = self._surest(names, sampler)
        size, prompts = self.batch_size - count, list[Prompt]()
        for attempt in range(1, TRIES + 1):
            more = sampler.draw(size - len(prompts))
            unused = [p for p in more if p.id not in self.retired and p.id not in self.chosen]
            prompts += more if attempt == TRIES else unused
            if len(prompts) == size:
                break
        return [g.prompt for g in self.chosen.values()] + prompts

    def questions(self, step: int, count: int) -> list[str]:
        """Draw ``count`` of the questions with kept responses."""
        rng = self.random("exgrpo", step)
        buckets: dict[int, list[str]] = {}
        for name, correct in self.correct.items():
            buckets.setdefault(correct, []).append(name)
        keys = sorted(buckets)
        weights = np.exp(-((np.array(keys) - self.size / 2) ** 2) / (2 * self.config.bucket_std**2))
        counts = allocate(count, weights, np.array([len(buckets[k]) for k in keys], dtype=np.int64), rng)
        return [
            buckets[k][i]
            for k, n in zip(keys, counts, strict=True)
            for i in sorted(rng.choice(len(buckets[k]), size=n, replace=False))
        ]

    def _surest(self, names: list[str], sampler: Sampler) -> dict[str, Group]:
        """Return each question's kept response with the highest mean log-probability under the current policy."""
        candidates = [self.kept.of(name) for name in names]
        merged = [merge(responses) for responses in candidates]
        surest = {}
        for name, responses, group, logprobs in zip(names, candidates, merged, sampler.score(merged), strict=True):
            entropy = -logprobs.sum(1, dtype=np.float64) / group.samples.lengths
            surest[name] = responses[int(np.argmin(entropy))]
        return surest

    # ------------------------------------------------------------------ after the rewards
    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        groups = [self._mixed(group) for group in fresh]
        self.chosen = {}
        phase = int(self.mixing)  # replay had started before this batch was drawn, whatever it brought back
        replayed = sum(g.off_policy is not None for g in groups)
        for group, sampled in zip(groups, fresh, strict=True):
            self._keep(group, sampled.version)
        if not self.mixing:
            self.mixing = above(float(np.mean([g.mean for g in groups])), self.config.start_reward)
        return Batch(
            groups,
            metrics={
                "replayed_responses": replayed,
                "experience_questions": len(self.correct),
                "retired_questions": len(self.retired),
            },
            phase=phase,
        )

    def _mixed(self, group: Group) -> Group:
        """Return the group with its stored response, whose policy is the oldest in it."""
        response = self.chosen.pop(group.prompt.id, None)
        return group if response is None else replace(mixed(group, response), version=response.version)

    def _keep(self, group: Group, version: int) -> None:
        """Keep fresh correct responses and update the question's bucket; retire a question answered always right.

        version: that of the policy that sampled the fresh responses.
        """
        name, self.size = group.prompt.id, group.size
        if not above(1.0, group.mean):
            self.retired[name] = None
        if name in self.retired:
            self.correct.pop(name, None)
            self.kept.forget(name)
        elif self.mixing and informative(group):
            self.correct[name] = round(float(group.rewards.sum(dtype=np.float64)))
            texts = {_text(g) for g in self.kept.of(name)}
            for i in np.flatnonzero((group.rewards == 1) & ~group.replayed):
                response = group.select([int(i)])
                if _text(response) not in texts:
                    texts.add(_text(response))
                    self.kept.extend([replace(response, off_policy=None, version=version)])

    # ------------------------------------------------------------------ in each mini-batch
    def clips(self, inputs: LossInputs) -> bool:
        """Return False in all mini-batches once replay has started (mix_trainer_experience: loss_remove_clip)."""
        return self.config.on_policy_clip or not inputs.phase

    def off_policy(self, ratio: Tensor, inputs: LossInputs) -> Tensor:
        return shaped_loss(ratio, inputs, self.config.shape)


def allocate(count: int, weights: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return how many questions each bucket gives, int64 [buckets], by ``WeightedBucketSampler.sample``.

    The draw is multinomial. What exceeds a bucket's size goes to other buckets at random by their weights.

    Args:
        count: questions that are drawn
        weights: float [buckets]
        sizes: questions in each bucket, at least ``count`` in all
        rng: draws
    """
    if not count:
        return np.zeros(len(sizes), dtype=np.int64)
    weights = np.maximum(weights, np.finfo(np.float64).tiny)  # buckets far from the middle of large groups underflow
    counts = np.minimum(rng.multinomial(count, weights / weights.sum()), sizes)
    for _ in range(int(count - counts.sum())):
        open_weights = np.where(counts < sizes, weights, 0.0)
        counts[rng.choice(len(counts), p=open_weights / open_weights.sum())] += 1
    return counts


def _text(response: Group) -> bytes:
    """Return the tokens of a single response, to compare it with others."""
    return response.samples.tokens[0, : response.samples.lengths[0]].tobytes()
