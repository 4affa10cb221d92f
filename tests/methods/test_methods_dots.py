"""MoPPS, rollout replay and DOTS: the predictions by hand, which prompts are drawn and when, what is replayed."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from support.late import LATE
from support.scripted import NoSampler, ScriptedSampler, fresh, group, ids
from support.scripted import build as built

from bapo import seeds
from bapo.algorithm.rollouts import FRESH, REPLAYED, Prompt
from bapo.experiments.compose import compose_config
from bapo.methods.dots import DOTS
from bapo.methods.parts.difficulty import agreement, attend, calibrated, distinct, fit_platt, standardised
from bapo.tasks.job import data_folder

if LATE:
    import torch
    from support.sampling import step_sampler

    from bapo.engines.shared import models
    from bapo.engines.shared.prompts import Embedder, read_prompts


B = 4


build, mopps, replay = (partial(built, name, B) for name in ("dots", "mopps", "dots_rr"))


def names(prompts):
    return [p.id for p in prompts]


class World(ScriptedSampler):
    """Prompts "p000", ... whose embedding says whether they are easy (even numbers, 7 of 8) or hard (1 of 8)."""

    def __init__(self, count=400, answers=None):
        super().__init__(stream=[f"p{i:03d}" for i in range(count)])
        self.corrects = answers or (lambda name: 7 if easy(name) else 1)
        self.drawn, self.embedded = [], []

    def draw(self, count):
        prompts = super().draw(count)
        self.drawn.append([p.id for p in prompts])
        return prompts

    def regenerate(self, prompts, origin):
        self.asked.append([p.id for p in prompts])
        return [group(p.id, self.corrects(p.id), self.step).as_origin(origin) for p in prompts]

    def embed(self, prompts):
        self.embedded.append([p.id for p in prompts])
        return np.array([[1.0, 0.1 * k] if easy(p.id) else [-1.0, 0.1 * k] for k, p in enumerate(prompts)])


def easy(name):
    return int(name[1:]) % 2 == 0


def test_the_attention_by_hand():
    """Scores are q . z / sqrt(2) / attention_temperature; two references of values 1 and 0."""
    queries, references = np.array([[2.0, 0.0], [0.0, 3.0]]), np.array([[1.0, 0.0], [-1.0, 0.0]])
    found = attend(queries, references, np.array([1.0, 0.0]), 1.0)
    # scores sqrt(2) and -sqrt(2): 1 / (1 + exp(-2 sqrt(2))) = 0.944; the second query is equally near to both
    assert found == pytest.approx([0.94419, 0.5], abs=1e-5)
    assert attend(queries, references, np.array([1.0, 0.0]), 2.0)[0] == pytest.approx(0.80443, abs=1e-5)
    three = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    # left out, the first sees 0.2 at score 1 / sqrt(2) and 0.8 at -1 / sqrt(2)
    left_out = attend(three, three, np.array([1.0, 0.2, 0.8]), 1.0, skip_self=True)
    assert left_out[0] == pytest.approx(0.2 * 0.80443 + 0.8 * 0.19557, abs=1e-5)
    assert left_out[2] == pytest.approx(0.6)
    far = attend(np.array([[2e3, 0.0], [-1.0, 0.0]]), references, np.array([1.0, 0.0]), 1.0)  # exp(1414) is no number
    assert far == pytest.approx([1.0, 1 - 0.80443], abs=1e-5)
    assert calibrated(np.array([0.0, 1.0, 0.5]), 1.0, 0.0) == pytest.approx([1e-4, 1 - 1e-4, 0.5])


def test_standardised():
    found = standardised(np.array([[1, 5, 2], [3, 5, 4]], dtype=np.float32))
    assert found.tolist() == [[-1, 0, -1], [1, 0, 1]]


def test_platt_scaling_by_hand():
    # what is predicted is right: the prior (1, 0) stays
    p = np.array([0.1, 0.4, 0.5, 0.8])
    assert fit_platt(p, p) == pytest.approx((1, 0), abs=1e-6)
    # with many observations the prior vanishes: logits of -1 and 1 for frequencies of sigmoid(-3) and sigmoid(1)
    x, y = calibrated(np.array([0.5]), 1, -1)[0], calibrated(np.array([0.5]), 1, -3)[0]
    predicted = np.repeat([x, 1 - x], 100_000)
    realised = np.repeat([y, 1 - x], 100_000)  # 2 logit - 1
    assert fit_platt(predicted, realised) == pytest.approx((2, -1), abs=1e-2)
    x, y = calibrated(np.array([0.5]), 1, -2)[0], calibrated(np.array([0.5]), 1, -1)[0]
    assert fit_platt(np.repeat([x, 1 - x], 10_000), np.repeat([y, 1 - y], 10_000)) == pytest.approx((0.5, 0), abs=1e-2)
    # predictions that are worse than none: w = 0, and b is the logit of the mean, drawn to 0 by one observation
    w, b = fit_platt(np.array([0.1, 0.9] * 50), np.array([0.8, 0.4] * 50))
    assert w == 0 and b == pytest.approx(math.log(0.6 / 0.4), abs=0.03) and 0 < b < math.log(1.5)
    # no signal at all: rewards that are all zero
    w, b = fit_platt(np.zeros(16), np.zeros(16))
    assert w >= 0 and 0 <= calibrated(np.zeros(1), w, b)[0] < 1e-3
    assert calibrated(np.array([0.8]), 0.5, 0.0) == pytest.approx([2 / 3])  # odds of 4 become 2


def test_a_problem_comes_twice_only_where_there_are_too_few():
    drawn = [Prompt("a"), Prompt("b"), Prompt("a")]
    assert [names(distinct(drawn, wanted)) for wanted in (2, 3)] == [["a", "b"], ["a", "b", "a"]]


def test_agreement():
    assert agreement(np.array([0.0, 0.5, 1.0]), np.array([0.25, 0.5, 0.75])) == pytest.approx((1, 1 / 6))
    # deviations -1, 0, 1 and -1/3, 2/3, -1/3 have no covariance
    assert agreement(np.array([0.0, 0.5, 1.0]), np.array([0.0, 1.0, 0.0])) == pytest.approx((0, 0.5))
    correlation, error = agreement(np.full(3, 0.5), np.array([0.0, 0.5, 1.0]))
    assert math.isnan(correlation) and error == pytest.approx(1 / 3)


def test_a_selection_serves_every_steps():
    """B = 4, sigma = 1/2: 4 + 4 prompts for steps 1 and 2, then 2 a step."""
    method, world = build(every=2, reference_share=1.0, candidates=3, capacity=8), World()
    first = method.draw_prompts(1, world)
    assert [len(d) for d in world.drawn] == [4, 3 * 8] and world.asked == [world.drawn[0]]
    assert world.embedded == [world.drawn[0] + world.drawn[1]]
    assert len(first) == 4 and set(names(first)) < set(world.drawn[1]) and len(method.queue) == 4
    second = method.draw_prompts(2, world)
    assert len(world.drawn) == 2 and not set(names(first)) & set(names(second)) and not method.queue
    third = method.draw_prompts(3, world)
    assert [len(d) for d in world.drawn[2:]] == [4, 3 * 4] and len(third) == 2 and len(method.queue) == 2
    assert build(every=3, reference_share=0.1).references == 3
    one = World()
    build(every=1, candidates=2).draw_prompts(1, one)
    assert [len(d) for d in one.drawn] == [3, 2 * 4]


def test_target_and_selection_temperature():
    chosen = {}
    for target in (0.1, 0.9):
        method = build(target=target, reference_share=4.0)
        chosen[target] = names([p for step in (1, 2) for p in method.draw_prompts(step, World())][:8])
    assert not any(easy(n) for n in chosen[0.1]) and all(easy(n) for n in chosen[0.9])
    # a high temperature does not look at the prediction
    method = build(target=0.9, reference_share=4.0, selection_temperature=100.0, candidates=40)
    picked = [easy(n) for n in names(method.draw_prompts(1, World(800)) + method.draw_prompts(2, World()))]
    assert 0 < sum(picked) < 8


def test_the_draw_has_the_probabilities_of_the_formula():
    """One of two prompts: exp(-|p - alpha| / tau), normalised."""
    config = build(every=1, candidates=2, selection_temperature=0.5, target=0.9, reference_share=4.0).config
    count, chosen, predicted = 400, [], {}
    for seed in range(count):
        method = DOTS(config, 1, seed)
        (prompt,) = method.draw_prompts(1, World(6))
        chosen.append(prompt.id)
        predicted[prompt.id] = method.predicted[0]
    assert predicted["p004"] - predicted["p005"] > 0.2
    weights = {name: math.exp(-abs(p - 0.9) / 0.5) for name, p in predicted.items()}
    expected = weights["p004"] / sum(weights.values())
    assert abs(chosen.count("p004") / count - expected) < 3 * math.sqrt(expected * (1 - expected) / count)


def test_metrics_say_how_good_the_prediction_was():
    method, world = build(reference_share=4.0), World()
    prompts = method.draw_prompts(1, world)
    batch = method.build_batch(1, [group(p.id, 7 if easy(p.id) else 1) for p in prompts], world)
    m = batch.metrics
    assert m["reference_correlation"] > 0.95 and 0 <= m["reference_error"] < 0.2 and m["replay_buffer"] == 4
    realised = np.array([7 / 8 if easy(p.id) else 1 / 8 for p in prompts])
    assert m["prediction_error"] == pytest.approx(np.abs(np.array(method.predicted) - realised).mean())
    assert m["predicted_mean"] == pytest.approx(np.mean(method.predicted))
    method.draw_prompts(2, world)
    again = method.build_batch(2, fresh(2, [4, 4, 4, 4]), world).metrics
    assert math.isnan(again["reference_correlation"]) and math.isnan(again["prediction_correlation"])
    # and the replay is rollout replay's
    method.draw_prompts(3, world)
    batch = method.build_batch(3, fresh(3, [4, 4]), world)
    assert ids(batch.groups)[:2] == ["3a", "3b"] and [g.origin for g in batch.groups[2:]] == [REPLAYED] * 2


def test_with_few_problems_some_come_twice():
    method, world = build(candidates=1), World(30)
    world.stream = ["p000"] * 3 + ["p001", "p002"] * 4
    assert sorted(names(method.draw_prompts(1, world) + method.draw_prompts(2, world))) == ["p001"] * 4 + ["p002"] * 4


def test_embeddings_are_means_of_the_last_hidden_states(tiny_world, tmp_path):
    config = compose_config([*tiny_world, "seed=1"])
    model, tokenizer = models.load_start(config, models.device_of(config))
    prompts = read_prompts(data_folder(config) / "train.parquet", tokenizer, 16)
    assert len({len(p.row.tokens) for p in prompts}) > 1
    loaded = []
    embedder, again = (Embedder(lambda: loaded.append(1) or model, prompts, tmp_path / "vectors.npy") for _ in "ab")
    sampler = step_sampler(model, None, 1, embedder=embedder)
    found = sampler.embed(prompts[5:9])
    assert found.dtype == np.float32 and found.shape == (4, model.config.hidden_size)
    for prompt, vector in zip(prompts[5:9], found, strict=True):
        with torch.no_grad():
            states = model(torch.tensor([prompt.row.tokens]), output_hidden_states=True).hidden_states[-1]
        np.testing.assert_allclose(vector, states[0].mean(0), atol=1e-5)
    assert np.array_equal(sampler.embed([prompts[6], prompts[5]]), found[[1, 0]])
    assert np.array_equal(again(prompts[5:9]), found) and again.tokens == embedder.tokens  # a resumed run
    # once in a run; a later step is charged nothing: tests/engines/shared/test_step_sampler.py
    assert loaded == [1] and sampler.costs.forward_tokens == sum(len(p.row.tokens) for p in prompts)


# --------------------------------------------------------------------------------------------------- MoPPS


def stream(count=40):
    return ScriptedSampler(stream=[f"p{i:02d}" for i in range(count)])


def test_the_posterior_forgets_and_counts():
    method = mopps(memory=0.5)
    method.build_batch(1, [group("a", 6), group("b", 0)], NoSampler())
    assert method.posteriors == {"a": (0.5 * 1 + 0.5 * 1 + 6, 1 + 2), "b": (1.0, 9.0)}
    method.build_batch(2, [group("a", 8)], NoSampler())
    assert method.posteriors["a"] == (0.5 * 7 + 0.5 + 8, 0.5 * 3 + 0.5)  # (12, 2)


def test_memory_one_forgets_nothing():
    method = mopps(memory=1.0, prior_successes=2.0)
    for correct in (3, 5):
        method.build_batch(1, [group("a", correct)], NoSampler())
    assert method.posterior("a") == (2 + 3 + 5, 1 + 5 + 3)
    assert method.posterior("never seen") == (2.0, 1.0)


def test_it_takes_the_prompts_nearest_to_one_half_of_rho_times_b():
    method = mopps(candidates=3)
    for i in range(12):  # sharp posteriors: p03, p07, p08 and p11 are near 1/2, the others at the ends
        half = i in (3, 7, 8, 11)
        method.posteriors[f"p{i:02d}"] = (4000.0, 4000.0) if half else (8000.0, 80.0) if i % 2 else (80.0, 8000.0)
    sampler = stream(100)
    assert sorted(p.id for p in method.draw_prompts(5, sampler)) == ["p03", "p07", "p08", "p11"]
    assert len(sampler.stream) == 100 - 12  # three candidates a place


def test_another_target_finds_other_prompts():
    method = mopps(candidates=2, target=1.0)
    for i in range(8):
        method.posteriors[f"p{i:02d}"] = (10_000.0 * (i + 1), 10_000.0 * (8 - i))
    assert [p.id for p in method.draw_prompts(1, stream(8))] == ["p07", "p06", "p05", "p04"]  # the nearest first


def test_the_thompson_samples_are_those_of_the_posterior():
    method = mopps(candidates=2, prior_successes=3.0, prior_failures=2.0)  # Beta(3, 2) for every prompt
    expected = seeds.generator(1, "mopps", 9).beta(np.full(8, 3.0), np.full(8, 2.0))
    nearest = np.argsort((expected - 0.5) ** 2)[:B]
    assert [p.id for p in method.draw_prompts(9, stream(8))] == [f"p{i:02d}" for i in nearest]


@pytest.mark.parametrize(("drawn", "different"), [("abacdabe", B), ("abababab", 2)])
def test_a_prompt_is_a_candidate_once_where_there_are_enough(drawn, different):
    chosen = names(mopps(candidates=2).draw_prompts(1, ScriptedSampler(stream=drawn)))
    assert (len(chosen), len(set(chosen))) == (B, different)


# --------------------------------------------------------------------------------------------------- rollout replay


def test_it_generates_sigma_of_the_batch_after_the_first_steps():
    rr = replay(first_steps=2)
    assert [len(rr.draw_prompts(step, stream())) for step in (1, 2, 3, 4)] == [4, 4, 2, 2]
    shares = {0.25: 1, 1.0: B}
    assert {share: len(replay(fresh_share=share).draw_prompts(3, stream())) for share in shares} == shares


def test_the_rest_is_replayed_from_informative_groups():
    rr = replay(first_steps=1)
    rr.build_batch(1, fresh(1, [0, 8, 3, 5]), NoSampler())
    batch = rr.build_batch(2, fresh(2, [4, 0]), NoSampler())
    assert ids(batch.groups) == ["2a", "2b", "1c", "1d"]
    assert [g.origin for g in batch.groups] == [FRESH] * 2 + [REPLAYED] * 2
    assert ids(rr.kept) == ["1c", "1d", "2a"] and batch.metrics == {"replay_buffer": 3}


def test_a_prompt_is_in_the_buffer_once_with_its_newest_group():
    rr = replay()
    rr.build_batch(1, [group("a", 3), group("b", 4)], NoSampler())
    newest = group("a", 5, step=2)
    rr.build_batch(2, [newest], NoSampler())
    assert ids(rr.kept) == ["b", "a"] and rr.kept[1] is newest
    rr.build_batch(2, [group("b", 8, 2)], NoSampler())  # learnt: nothing left to learn from it
    assert ids(rr.kept) == ["a"]


def test_the_buffer_is_bounded_and_drops_the_oldest():
    rr = replay(capacity=3)
    rr.build_batch(1, fresh(1, [1, 2, 3, 4]), NoSampler())
    assert ids(rr.kept) == ["1b", "1c", "1d"]


def test_with_too_little_to_replay_the_batch_is_smaller():
    rr = replay(first_steps=1)
    rr.build_batch(1, fresh(1, [0, 0, 0, 1]), NoSampler())
    assert ids(rr.build_batch(2, fresh(2, [0, 8]), NoSampler()).groups) == ["2a", "2b", "1d"]
