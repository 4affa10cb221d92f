"""Prompt Replay: prompts near half right come back, answered anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from pydantic import PositiveInt, model_validator

from bapo.algorithm.rollouts import Group, Prompt, between
from bapo.methods.base import Batch, Method, MethodConfig, Sampler, Share, State


class PromptReplayConfig(MethodConfig):
    share: Share = 0.75  # epsilon: largest share of a batch that comes back
    lowest: Share = 0.25  # p_min: pass rate of a prompt that may come back
    highest: Share = 0.75  # p_max
    cooldown: PositiveInt = 10  # C: steps until a prompt may come back
    uses: PositiveInt = 15  # R: times that a prompt comes back at most

    @model_validator(mode="after")
    def _rates(self) -> Self:
        self.require(self.lowest <= self.highest, "lowest", f"must be at most method.highest={self.highest}")
        return self


class PromptReplay(Method):
    """Prompt Replay (Baroian & Berger 2603.21177): prompts come back, never responses, so GRPO stays on policy.

    After a step, prompts with p_min <= p <= p_max right answers enter a buffer, and all others of the step leave it.
    At most epsilon * B prompts of a step come from there, the smallest |p - 1/2| first; the stream fills the rest. A
    prompt waits at least C steps after it was trained on, and comes back at most R times.

    The paper's algorithm could not be read. Rules and values follow a survey's summary. Chosen here: ties come back in
    the order of their entry, the buffer has no capacity, and a prompt that the stream draws again keeps its count.
    """

    Config = PromptReplayConfig
    config: PromptReplayConfig
    title = "+Prompt Replay"
    summary = "prompts a quarter to three quarters right come back after 10 steps, for new answers"
    source = "Baroian & Berger 2603.21177"
    saved = ("buffer",)

    def __init__(self, config: PromptReplayConfig, batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.buffer: dict[str, tuple[float, int, int]] = {}  # prompt id -> pass rate, its step, times it came back
        self.prompts: dict[str, Prompt] = {}
        self.chosen: list[str] = []

    def draw_prompts(self, step: int, sampler: Sampler) -> list[Prompt]:
        c = self.config
        ready = [name for name, (_, last, uses) in self.buffer.items() if step - last >= c.cooldown and uses < c.uses]
        count = min(len(ready), int(c.share * self.batch_size))
        fresh = sampler.draw(self.batch_size - count)
        fresh_ids = {p.id for p in fresh}
        ready.sort(key=lambda name: abs(self.buffer[name][0] - 0.5))
        self.chosen = [name for name in ready if name not in fresh_ids][:count]
        return [self.prompts[n] for n in self.chosen] + fresh + sampler.draw(count - len(self.chosen))

    def build_batch(self, step: int, fresh: list[Group], sampler: Sampler) -> Batch:
        for group in fresh:
            name = group.prompt.id
            _, _, uses = self.buffer.pop(name, (0.0, 0, 0))
            if between(group.mean, self.config.lowest, self.config.highest):
                self.buffer[name], self.prompts[name] = (group.mean, step, uses + (name in self.chosen)), group.prompt
        return Batch(
            list(fresh), metrics={"replayed_prompts": len(self.chosen), "prompt_buffer": float(len(self.buffer))}
        )

    def restore(self, state: State, groups: list[Group], prompt: Callable[[str], Prompt]) -> None:
        super().restore(state, groups, prompt)
        self.prompts = {name: prompt(name) for name in self.buffer}
