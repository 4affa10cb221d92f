"""verl's custom reward function: the task's own verifier, 0 or 1."""

from __future__ import annotations

import time

from bapo.store.files import Json


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Json | None = None, task: str = "", **_: object
) -> Json:
    """verl's signature; ``task`` comes from ``reward.custom_reward_function.reward_kwargs``.

    Raises ValueError for a reward outside [0, 1]: the thresholds c1, c2 and c3 compare mean rewards.
    """
    from bapo import tasks
    from bapo.graders.verdict import OVERLOADED

    begun = time.perf_counter()
    verdict = tasks.get(task or data_source).verify(solution_str, ground_truth)
    score = float(verdict.correct)
    if not 0 <= score <= 1:
        raise ValueError(f"{task}: reward {score} is outside [0, 1]")
    return {
        "score": score,
        "acc": score,
        "problem": str((extra_info or {}).get("id", "")),
        "overloaded": int(verdict.reason == OVERLOADED),
        "seconds": time.perf_counter() - begun,
    }
