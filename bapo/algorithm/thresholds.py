"""The moving thresholds c2 and c3 of "high-quality" replayed groups (paper, eq. 8)."""

from __future__ import annotations


def linear_threshold(r_tot: float, low: float, high: float, direction: str = "rising") -> float:
    """Return c_i = r_tot * (c_high - c_low) + c_low (eq. 8). Raises ValueError for r_tot outside [0, 1].

    As printed, the threshold *rises* with the average reward, toward easier groups. The sentence above eq. 8 says
    "from easier to harder", and the authors' code falls; ``direction="falling"`` gives that.
    """
    if not 0 <= r_tot <= 1:
        raise ValueError(f"r_tot is a mean reward in [0, 1], got {r_tot}")
    share = r_tot if direction == "rising" else 1.0 - r_tot
    return share * (high - low) + low


def next_average_reward(previous: float | None, batch_mean: float, kind: str, decay: float) -> float:
    """Return the new r_tot of eq. 8, which the paper calls "global average performance" and does not define.

    kind "moving-average": exponential, with weight ``decay`` on the past; any other: ``batch_mean`` itself.
    """
    if kind != "moving-average" or previous is None:
        return batch_mean
    return decay * previous + (1.0 - decay) * batch_mean
