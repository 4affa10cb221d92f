"""Short real runs of LUFFY, ExGRPO and ReLIFT: what they record, and that a resumed run is the same run."""

from __future__ import annotations

import pytest
from support.late import LATE

from bapo.experiments.compose import compose_config
from bapo.experiments.places import run_directory
from bapo.store.files import GROUPS, MANIFEST, STEPS, read_json, read_table

if LATE:
    from support.resumed import assert_resumes_bit_for_bit

    from bapo.engines.torch.trainer import train


#: so that in six steps of eight prompts each does what it is for
OPTIONS = {"luffy": [], "exgrpo": ["method.start_reward=0.0"], "relift": ["method.buffer_share=0.75"]}


@pytest.mark.parametrize("name", OPTIONS)
def test_it_trains_records_and_resumes_bit_for_bit(tiny_world, name):
    overrides = [*tiny_world, f"method={name}", *OPTIONS[name], "seed=5"]
    config = compose_config(overrides)
    summary = train(config)
    folder = run_directory(config)
    steps, groups = (read_table(folder / table) for table in (STEPS, GROUPS))

    demonstrated = groups[groups["origin"] == "demonstration"]
    assert (steps["x1"] == 8).all() and (steps["x2"] + steps["x3"] == 0).all()
    assert (steps["fresh_rollouts"] == 64).all() and summary["totals"]["rollouts"] == 6 * 64
    assert (steps["reward_mean"] < 1).all() and steps["updates"].sum() >= 12
    marked = groups[groups["origin"] == "fresh"].groupby("step")["replayed"].sum()
    if name == "luffy":
        assert (marked == 8).all() and (steps["demonstrations"] == 8).all() and not len(demonstrated)
        assert (steps["updates"] == 2).all()
    elif name == "exgrpo":
        assert marked.tolist() == steps["replayed_responses"].tolist() and marked.sum() >= 4
        assert (steps["batch_age"] > 0).any()
        scored = steps["replayed_responses"] > 0  # their scoring is a cost
        extra = steps["forward_flops"] - 2.0 * parameters(folder) * (
            steps["generated_tokens"] + steps["trained_tokens"]
        )
        assert extra[scored].min() > extra[~scored].max()
    else:
        assert not marked.any() and len(demonstrated) == steps["demonstrations"].sum() > 0
        assert (steps["batch_groups"] == 8 + steps["demonstrations"]).all() and (steps["batch_age"] == 0).all()
        assert (steps["updates"] == 2 + (steps["demonstrations"] > 0)).all()  # one supervised update
        assert (demonstrated["rewards"].map(list) == [[1.0]] * len(demonstrated)).all()

    assert_resumes_bit_for_bit(folder, overrides)


def parameters(folder) -> int:
    return read_json(folder / MANIFEST)["parameters"]
