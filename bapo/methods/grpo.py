"""GRPO: the base class unchanged."""

from __future__ import annotations

from bapo.methods.base import Method


class GRPO(Method):
    """Group Relative Policy Optimization (Shao et al. 2024), as in the paper's equations 1 and 2.

    Objective: sequence-mean of token-means of the clipped surrogate, minus beta * KL(pi || pi_ref) by the
    low-variance estimator. verl's defaults differ in three options: ``aggregation=token-mean``,
    ``advantage_std=unbiased``, ``advantage_eps_inside=false``.
    """

    title = "+GRPO"
    summary = "group-relative advantages, on policy"
    source = "Shao et al. 2024; paper eq. 1-2"
