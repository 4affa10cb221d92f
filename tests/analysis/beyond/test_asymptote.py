"""Sigmoid fits of curves whose parameters are known, and the table and gates that are made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from support.runs import place, write_run, write_study

from analysis import study
from analysis.beyond import asymptote, gates
from analysis.beyond.asymptote import Curves, Fit
from bapo.errors import UserError
from bapo.experiments import places
from bapo.store.files import write_json, write_parquet

SPENT = np.arange(0.0, 25.0)  # thousands of rollouts, say


@pytest.mark.parametrize("known", [Fit(0.1, 0.3, 1.5, 8.0), Fit(0.1, 0.42, 1.0, 30.0), Fit(0.0, 0.9, 3.0, 4.0)])
def test_a_curve_gives_back_its_parameters(known: Fit) -> None:
    found = asymptote.fit(SPENT, known.at(SPENT))
    assert vars(found) == pytest.approx(vars(known), rel=1e-3)
    assert known.at(known.middle) == pytest.approx((known.start + known.asymptote) / 2)
    assert known.at(0.0) == known.start


def test_the_end_is_predicted_from_the_first_half() -> None:
    """A sigmoid's is found; a curve that falls by 0.05 after its half ends 0.05 below what was predicted."""
    rising = Fit(0.1, 0.3, 1.5, 5.0).at(SPENT)
    assert asymptote.prediction_error(SPENT, rising) == pytest.approx(0.0, abs=1e-4)
    assert asymptote.prediction_error(SPENT, rising - 0.05 * (SPENT > 12)) == pytest.approx(0.05, abs=1e-4)


def test_a_fit_needs_a_start_and_as_many_checkpoints_as_parameters() -> None:
    for spent in (SPENT[1:], SPENT[:4]):
        with pytest.raises(UserError, match="a fit needs step 0"):
            asymptote.fit(spent, np.linspace(0.1, 0.2, len(spent)))


def test_a_method_that_hardly_learns_has_a_fit() -> None:
    """A flat curve with noise bends nowhere, so that a fit takes thousands of evaluations, and a bootstrap 400 fits."""
    noise = np.random.default_rng(1).normal(0.3, 0.008, (6, 11))
    flat = Curves(tuple(range(1, 7)), np.tile(np.arange(11.0), (6, 1)), noise)
    assert 0 <= asymptote.estimate(flat, None, "asymptote").mean <= 1


def curves(*asymptotes: float) -> Curves:
    """Return a seed for each asymptote; all reach the half at 6."""
    accuracy = np.stack([Fit(0.1, a, 1.5, 6.0).at(SPENT) for a in asymptotes])
    return Curves(tuple(range(1, len(asymptotes) + 1)), np.tile(SPENT, (len(asymptotes), 1)), accuracy)


def test_the_spread_of_a_fit_is_that_of_its_seeds() -> None:
    """Curves of equal shape: the mean's asymptote is the mean of theirs, and its error is sd / sqrt(S)."""
    of = curves(0.30, 0.32, 0.34, 0.36)
    found = asymptote.estimate(of, None, "asymptote")
    assert (found.mean, found.df) == (pytest.approx(0.33, abs=1e-4), 3)
    assert found.se == pytest.approx(np.std([0.30, 0.32, 0.34, 0.36], ddof=1) / 2, rel=0.1)
    assert np.isnan(asymptote.estimate(curves(0.30), None, "asymptote").se)  # one seed has no spread
    apart = asymptote.estimate(of, curves(0.28, 0.30, 0.32, 0.34), "asymptote")  # drawn together: no spread
    assert (apart.mean, apart.se) == (pytest.approx(0.02, abs=1e-4), pytest.approx(0.0, abs=1e-4))


def test_the_table_and_the_gates_read_evaluated_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRPO levels off at 25% and DAPO at 50%, with 10 rollouts and 100 operations a step."""
    monkeypatch.setattr(places, "file_of", lambda kind, name: tmp_path / f"{name}.yaml")
    end = {"measure": "prediction_error", "of": "grpo", "says": "It predicts", "must": ["mean < 1", "mean > -1"]}
    lead = {"measure": "asymptote", "of": "dapo", "minus": "grpo", "asks": "Is it higher?"}
    rules = {"gates": [end], "decisions": [{**lead, "support": ["low > 0"], "contradiction": ["high < 1"]}]}
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump({"name": "asked", "claim": "it ends higher", **rules}))
    known = {"grpo": Fit(0.0, 0.25, 2.0, 40.0), "dapo": Fit(0.0, 0.5, 2.0, 40.0)}
    each = {"fresh_rollouts": 8, "regenerated_rollouts": 2, "forward_flops": 40.0, "backward_flops": 60.0}
    samples = 10_000
    for method, fit in known.items():
        for seed in (1, 2):
            run = write_run(place(tmp_path, method, seed), {"a": [[1, 0], [1, 1]]}, steps=[each] * 24)
            counts = [round(samples * float(fit.at(10.0 * step))) for step in range(25)]
            rows = {"step": range(25), "problem_id": "p", "samples": samples, "correct": counts}
            write_parquet(run / "curve" / "a.parquet", pd.DataFrame(rows), durable=False)
            write_json(run / "curve" / "summary.json", {"identity": "synthetic", "files": {}}, durable=False)
    cells = [("tiny", method, seed) for method in known for seed in (1, 2)]
    names = {"name": "asked", "reference": "grpo", "curves": list(known)}
    loaded = study.load(write_study(tmp_path, cells, benchmarks=("a",), **names))
    csv, page, _, *pictures = asymptote.write(loaded, tmp_path / "out")
    frame = pd.read_csv(csv).set_index(["against", "method"])
    assert frame.asymptote["rollouts"].to_dict() == pytest.approx({"grpo": 25.0, "dapo": 50.0}, rel=1e-2)
    assert frame.middle["rollouts"].to_dict() == pytest.approx(dict.fromkeys(known, 40.0), rel=2e-2)
    assert frame.middle["flops"].to_dict() == pytest.approx(dict.fromkeys(known, 400.0), rel=2e-2)
    assert frame.minus_reference["rollouts", "dapo"] == pytest.approx(25.0, rel=1e-2)
    assert "against flops" in page.read_text()
    data = pd.read_csv(pictures[-1]).set_index(["against", "method", "spent"])
    half = data.loc[("rollouts", "dapo", 40.0), ["accuracy", "lowest", "highest", "fitted"]]  # of the gain
    assert half.tolist() == pytest.approx([25.0] * 4, abs=0.1)
    end = 100 * float(known["grpo"].at(240.0))
    assert data.loc[("flops", "grpo", 2400.0), "accuracy"] == pytest.approx(end, abs=0.1)
    judged = gates.judge(loaded.blocks, loaded, gates.registered("asked"))
    assert [each["verdict"] for each in judged] == ["passed", "support"]
