"""The rollout of one response, with a prompt tokenised and a random seed chosen as in the torch engine."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.utils.profiler import simple_timer

from bapo import seeds
from bapo.engines.shared.models import chats
from bapo.engines.verl import cpu, images, settings

#: name in ``actor_rollout_ref.rollout.agent.default_agent_loop`` and in ``agent_loops.yaml``
NAME = "bapo_single_turn"


class SeededSingleTurn(AgentLoopBase):
    """Samples one response to one prompt, from its beginning or from where an earlier step cut it off.

    ``draw_key`` and ``part`` come with the prompt (see ``prompts.PromptSource.batch``); validation prompts have none,
    and use one key for every step, so that changes of their accuracy come from the policy.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        chats.prepare(self.tokenizer, self.config.bapo.config)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        prompt_ids, pictures = await self.loop.run_in_executor(
            None, images.encode, self.tokenizer, self.processor, row["raw_prompt"]
        )
        if not 0 < len(prompt_ids) <= self.rollout_config.prompt_length:
            raise ValueError(
                f"problem {row['extra_info']['id']} has {len(prompt_ids)} prompt tokens, allowed are 1 to "
                f"{self.rollout_config.prompt_length}; raise sampling.max_prompt_tokens (prompts are never truncated)"
            )
        part = row.get("part") or {}
        begun, logprobs = list(part.get("tokens", ())), list(part.get("logprobs", ()))
        parameters = self._seeded(sampling_params, row)
        if begun or part.get("max_tokens"):
            left = self.rollout_config.response_length - len(begun)
            parameters["max_tokens"] = min(left, part.get("max_tokens") or left)
        metrics: dict[str, Any] = {}
        with simple_timer("generate_sequences", metrics):
            output = await self.server_manager.generate(
                request_id=uuid4().hex,
                prompt_ids=[*prompt_ids, *begun],
                sampling_params=parameters,
                image_data=pictures or None,
            )
        metrics["num_preempted"] = -1 if output.num_preempted is None else output.num_preempted
        tokens = [*begun, *output.token_ids][: self.rollout_config.response_length]
        tokens = images.ended(tokens, self.processor, self.tokenizer)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=tokens,
            response_mask=[1] * len(tokens),
            response_logprobs=[*logprobs, *output.log_probs][: len(tokens)] if output.log_probs else None,
            multi_modal_data={"images": pictures} if pictures else {},
            num_turns=2,
            metrics=AgentLoopMetrics(**metrics),
            extra_fields={**output.extra_fields, "turn_scores": [], "tool_rewards": []},
        )

    def _seeded(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        if ends := chats.more_ends(self.tokenizer):
            sampling_params = {**sampling_params, "stop_token_ids": list(ends)}
        key = row.get("draw_key") or seeds.key64(self.config.bapo.seed, "probe", row["data_source"], 0)
        prompt_key = int(row.get("prompt_key") or seeds.key64(row["extra_info"]["id"]))
        number = int((row.get("part") or {}).get("number", row["session_id"]))
        if self.rollout_config.name == cpu.ROLLOUT:
            return {**sampling_params, "draw": (int(key), prompt_key, number)}
        config = self.config.bapo.config
        if not settings.get(config, "seed_requests", False):
            return dict(sampling_params)
        return {**sampling_params, "seed": seeds.key64(key, prompt_key, number) % 2**63}
