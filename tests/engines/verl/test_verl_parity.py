"""The same recorded groups give the same batch, advantages, loss and gradients in both engines."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("verl", reason="verl is not installed (extra `verl`)")

import torch
from omegaconf import OmegaConf
from support.training import tiny
from support.verl_rows import (
    MINI,
    PROMPTS,
    SEED,
    STEPS,
    TRAIN,
    B,
    Engine,
    G,
    accumulated,
    as_batch,
    batches,
    fullest,
    nested,
    padded_rows,
    record,
    rows_of,
    torch_learner,
    verl_logprobs,
    verl_rows,
)
from transformers import Qwen2ForCausalLM
from verl.workers.utils.padding import response_to_nested

from bapo import methods
from bapo.algorithm.batch import mini_batches
from bapo.algorithm.losses import LossInputs
from bapo.algorithm.rollouts import DEMONSTRATED, FRESH, ORIGINS, REEVALUATED, REPLAYED, Group
from bapo.engines.shared.loss_inputs import Denominators
from bapo.engines.torch.learner import MetricMeans
from bapo.engines.verl.batch_layout import (
    LAYOUT,
    advantages_by_token,
    has_token_advantages,
    kept_step_logprobs,
    lay_out,
    marks_of,
)
from bapo.engines.verl.learner import policy_loss, terms_of_responses

OPTIONS = yaml.safe_load(Path(__file__).with_name("parity.yaml").read_text(encoding="utf-8"))
COMMON, METHODS = OPTIONS["with_kl"], OPTIONS["methods"]


def verl_update(
    method: methods.Method,
    groups: list[Group],
    model: Qwen2ForCausalLM,
    reference: Qwen2ForCausalLM,
    ranks: int,
    step: int,
    phase: int,
) -> tuple[float, list[torch.Tensor], torch.Tensor]:
    """(loss, gradients, advantages [N, T] of the real rows) of one mini-batch on ``ranks`` data-parallel ranks."""
    layout = lay_out(method, [groups], OmegaConf.create(TRAIN), ranks, step, phase)
    whole = as_batch(padded_rows(groups, layout))
    padded_mask = whole.select("response_mask").to_padded_tensor()["response_mask"]
    estimated = advantages_by_token(layout.advantages, padded_mask)
    whole["advantages"] = response_to_nested(estimated, whole["response_mask"])
    whole["old_log_probs"] = verl_logprobs(model, whole) if method.needs_step_policy else whole["rollout_log_probs"]
    if method.keeps_step_logprobs:
        own, given = kept_step_logprobs([groups]), whole["old_log_probs"].unbind()
        whole["old_log_probs"] = nested(
            [own[row] if row < len(own) else values for row, values in zip(layout.order, given, strict=True)]
        )
    whole["ref_log_prob"] = verl_logprobs(reference, whole)
    whole[LAYOUT] = nested(list(torch.from_numpy(layout.columns)))
    rows = rows_of(whole)

    share = len(rows) // ranks
    shares = [rows[rank * share : (rank + 1) * share] for rank in range(ranks)]
    cut = not method.judges_micro_batches
    total, gradients, _ = accumulated(Engine, model, shares, partial(policy_loss, method=method), cut)
    places = torch.tensor([i for i, row in enumerate(layout.order) if row < layout.rows])
    order = torch.tensor([row for row in layout.order if row < layout.rows])
    return total, list(gradients.values()), estimated[places][torch.argsort(order)]


#: what the batches of the methods hold beside fresh groups, so that all of it is compared
ALL = ("bapo", "bapo, a sum of two expectations", "bapo, masked sequence weights", "bapo_code", "bapo_released")
STALE = ("areal", "grpo_stale", "m2po", "bapo_xi")
REPLAY = ("repo", "bapo_without_x2", "dots_rr", "dots", "freshper", "fifo_replay", "remix", *STALE)
HOLDS = {name: set(ORIGINS) for name in (*ALL, "bapo_duplicates", "bapo_shuffled")}
HOLDS |= {name: {FRESH, REPLAYED} for name in REPLAY}
HOLDS |= {"bapo_without_x3": {FRESH, REEVALUATED}, "relift": {FRESH, DEMONSTRATED}}


#: on eight ranks, too: padding beside replays, parts of groups, advantages of each token and single responses; and
#: mixed groups. Not every method, since eight ranks make four times the passes of two
ON_EIGHT = ("repo", "bapo_code", "partial_rollouts", "relift", "luffy")


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        *((name, ranks) for name in METHODS for ranks in (1, 2) if (name, ranks) != ("m2po", 2)),
        *((name, 8) for name in ON_EIGHT),
    ],
)  # M2PO decides on each rank's micro-batches, which the torch engine does not have
def test_advantages_losses_and_gradients_agree(name: str, ranks: int) -> None:
    model, reference = tiny(0), tiny(1)
    method, made = batches({"algorithm": name, **METHODS[name]})
    every = [g for batch in made for g in batch.groups]
    assert {g.origin for g in every} == HOLDS.get(name, {FRESH})
    mixed = any(g.off_policy is not None for g in every)
    assert mixed == (name in ("arpo", "luffy", "exgrpo"))
    step = fullest(made)
    if name == "partial_rollouts":
        step = STEPS - 1
        assert any(g.step < STEPS for g in made[step].groups)  # responses that went on
    groups, phase = made[step].groups, made[step].phase
    for part in mini_batches(method, OmegaConf.create(TRAIN), SEED, step + 1, groups):
        learner = torch_learner(method, model, reference)
        metrics = MetricMeans()
        learner._one_update(step + 1, learner._with_step_logprobs(part)[0], phase, metrics, defaultdict(list))
        loss, gradients, advantage = verl_update(method, part, model, reference, ranks, step + 1, phase)
        own = [values for g in part for values in method.advantages(g)]
        lengths = np.concatenate([g.samples.lengths for g in part])
        for values, row, n in zip(own, advantage.numpy(), lengths, strict=True):
            expected = np.broadcast_to(values, (n,)) if values.ndim == 0 else values[:n]
            np.testing.assert_allclose(row[:n], expected, atol=1e-5)
        assert loss == pytest.approx(metrics.means()["loss"], abs=1e-5)
        assert max(float(g.abs().max()) for g in gradients) > 1e-3
        for gradient, parameter in zip(gradients, learner.parameters, strict=True):
            torch.testing.assert_close(gradient, parameter.grad, atol=1e-5, rtol=1e-5)


def test_verl_gets_sums_and_numbers_and_the_largest_of_each_term() -> None:
    terms = {"tv_x1": torch.tensor([0.5, 0.25]), "ratio_x1": torch.tensor([2.0, 0.5]), "ratio_x2": torch.tensor([])}
    assert {name: metric.aggregate() for name, metric in terms_of_responses(terms).items()} == {
        **{"bapo/tv_x1_sum": 0.75, "bapo/tv_x1_count": 2.0},
        **{"bapo/ratio_x1_sum": 2.5, "bapo/ratio_x1_count": 2.0, "bapo/ratio_max_x1": 2.0},
        **{"bapo/ratio_x2_sum": 0.0, "bapo/ratio_x2_count": 0.0, "bapo/ratio_max_x2": 0.0},
    }


@pytest.mark.parametrize(("ranks", "width"), [(2, 12), (8, 16)])
def test_mini_batches_of_other_sizes_keep_their_rows_and_flags_apart(ranks: int, width: int) -> None:
    """Three mixed groups of four, then two single solutions: the second mini-batch is mostly padding."""
    mixed = [record(PROMPTS[i], 1, 0, FRESH) for i in range(3)]
    for group in mixed:
        group.off_policy = np.array([False, False, False, True])
    solutions = [record(PROMPTS[i], 1, 9, DEMONSTRATED, group_size=1) for i in range(2)]
    method = methods.build({"algorithm": "grpo"}, batch_size=B, seed=SEED)
    layout = lay_out(method, [mixed, solutions], OmegaConf.create(TRAIN), ranks=ranks, step=7)
    assert (layout.rows, layout.rows_per_update, len(layout.order)) == (14, width, 2 * width)
    columns = layout.columns[np.argsort(layout.order)]  # rows of the groups, then padding
    origin, replayed = columns[:, 0].tolist(), columns[:, 2].tolist()
    added = width - 12  # rows of padding in the first mini-batch
    assert origin == [0, 0, 0, 3] * 3 + [3, 3] + [-1] * (added + width - 2)
    # padding of a supervised mini-batch looks like the rest
    assert replayed == [0, 0, 0, 1] * 3 + [1, 1] + [0] * added + [1] * (width - 2)
    lengths = [g.samples.lengths for g in mixed]
    first, second = (marks_of(torch.from_numpy(columns[rows])) for rows in (slice(1), slice(12, 13)))
    tokens = sum(int(n[:3].sum()) for n in lengths), sum(int(n[3]) for n in lengths)
    assert first.denominators == Denominators(MINI * G, sum(tokens), (9, 3), tokens)
    assert (first.step, first.phase, has_token_advantages(torch.from_numpy(columns))) == (7, 0, False)
    assert second.denominators.part_sequences == (0, 2) and second.denominators.part_tokens[0] == 0
    runs = np.reshape(layout.order, (ranks, 2, width // ranks))  # each rank: the first mini-batch, then the second
    assert all(row < 12 or 14 <= row < 14 + added for row in runs[:, 0].flat)
    assert [sum(row in (12, 13) for row in run) for run in runs[:, 1]] == [1, 1] + [0] * (ranks - 2)
    # the longest responses are dealt to the ranks in turn
    longest = np.concatenate(lengths)
    assert longest[runs[:, 0, 0]].tolist() == sorted(longest.tolist(), reverse=True)[:ranks]
    found = layout.advantages[np.argsort(layout.order)]
    np.testing.assert_allclose(found[:4], method.advantages(mixed[0]))
    assert not found[14:].any()


def test_metrics_are_sums_over_the_mini_batch() -> None:
    """However verl cuts a mini-batch, entropy, clip fraction and a loss's own metric come out as token means."""
    from bapo.engines.verl.recorder import update_metrics

    method, made = batches({"algorithm": "grpo", **COMMON})
    loss = method.loss

    def own(inputs: LossInputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        value, metrics = loss(inputs)
        mask = inputs.recorded_mask
        return value, metrics | {"max_surprise": -(inputs.logprobs * mask).sum() / mask.sum()}  # nan without a token

    method.loss = own
    model = tiny(0)
    rows = verl_rows(made[0].groups[:MINI])
    for row in rows:
        row["old_log_probs"], row["advantages"] = row["rollout_log_probs"], torch.ones(len(row["responses"]))
        row["ref_log_prob"] = row["rollout_log_probs"]
        row[LAYOUT] = torch.tensor([0, 1, 0, 1, 16, 16, 0, 40, 0, 0, 0], dtype=torch.float64)

    def metrics(cuts: list[int]) -> dict[str, float]:
        loss_function = partial(policy_loss, method=method)
        sums = {"actor/grad_norm": 1.0}
        for part in np.split(np.arange(len(rows)), cuts):
            micro = as_batch([rows[i] for i in part], dp_size=1, calculate_entropy=True)
            with torch.no_grad():
                _, output = Engine(model).forward_step(micro, loss_function, forward_only=True)
            for key, metric in output["metrics"].items():
                before = sums.get(f"actor/{key}", 0.0)
                sums[f"actor/{key}"] = max(before, metric.aggregate()) if "max" in key else before + metric.aggregate()
        return update_metrics(sums)

    whole, cut = metrics([]), metrics([3, 10])
    assert set(whole) >= {"loss", "clip_fraction", "kl", "entropy", "tv_x1", "ratio_max_x1"}
    assert whole == pytest.approx(cut, rel=1e-5)
    assert 0 < whole["clip_fraction"] < 1
    assert whole["entropy"] > 0.1
    assert whole["max_surprise"] > 0.1
    # an expert's rows (3: none of X1, X2, X3) are left out of both, as where they were not there
    fresh = rows[:5]
    for row in rows[5:]:
        row[LAYOUT] = row[LAYOUT].clone()
        row[LAYOUT][0] = 3
    mixed = metrics([])
    assert metrics([5]) == pytest.approx(mixed, rel=1e-5)  # the second micro-batch has no other rows
    rows[:] = fresh
    alone = metrics([])
    measured = ("clip_fraction", "kl", "entropy", "max_surprise")
    assert all(mixed[n] == pytest.approx(alone[n], rel=1e-5) for n in measured)
    assert mixed["entropy"] != pytest.approx(whole["entropy"], rel=1e-6)
