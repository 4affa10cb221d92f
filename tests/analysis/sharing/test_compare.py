"""Two results whose numbers are known: what agrees, what differs, what cannot be said, and the exit status."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.shared_results import USUAL, K, N, accuracy, bits, write_results

from analysis import statistics
from analysis.__main__ import main
from analysis.sharing import comparing, places, wording
from analysis.sharing.comparing import AGREES, DIFFERS, IDENTICAL, NO_INTERVAL, ONLY
from bapo.errors import UserError


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return write_results(tmp_path / "a" / "laptop")


def states(found: comparing.Comparison) -> dict[tuple[str, str], str]:
    return {(line.method, line.column): line.state for line in found.lines}


def test_the_same_results_are_identical(a: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(a, tmp_path / "elsewhere" / "renamed")
    found = comparing.compare(a, moved)
    assert found.agree and set(states(found).values()) == {IDENTICAL}
    assert {line.column for line in found.lines} == {"cd", "avg", "rollouts", "updates"}


def test_each_side_is_read_from_its_own_folder(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both study files say results/laptop/..., which also exists where the command is given."""
    b = write_results(tmp_path / "b" / "laptop", {**USUAL, "bapo": 7})
    write_results(tmp_path / "results" / "laptop", {**USUAL, "bapo": 1})
    monkeypatch.chdir(tmp_path)
    line = next(x for x in comparing.compare(a, b).lines if (x.method, x.column) == ("bapo", "cd"))
    assert 100 * line.a.estimate.mean == pytest.approx(accuracy(5))
    assert 100 * line.b.estimate.mean == pytest.approx(accuracy(7)) and line.state == DIFFERS


def test_other_seeds_agree_and_another_level_differs(a: Path, tmp_path: Path) -> None:
    b = write_results(tmp_path / "b", {**USUAL, "bapo": 7}, seeds=(3, 4), shift=5)
    found = states(comparing.compare(a, b))
    assert found[("grpo", "cd")] == AGREES and found[("bapo", "cd")] == DIFFERS
    assert found[("bapo", "rollouts")] == DIFFERS  # 500 in every run against 700


def test_the_difference_is_that_of_the_paired_problems(a: Path, tmp_path: Path) -> None:
    b = write_results(tmp_path / "b", seeds=(3, 4), shift=5)
    line = next(x for x in comparing.compare(a, b).lines if (x.method, x.column) == ("grpo", "cd"))
    tables = [
        [np.mean([bits(3, s, shift) for s in seeds], axis=2) for seeds in [seeds]]
        for seeds, shift in (((1, 2), 0), ((3, 4), 5))
    ]
    expected = statistics.difference_over_seeds(*tables).both
    assert line.paired and line.difference.mean == pytest.approx(expected.mean)
    assert line.difference.half_width == pytest.approx(expected.half_width)
    assert line.difference.low <= 0 <= line.difference.high


def test_other_problems_are_not_paired(a: Path, tmp_path: Path) -> None:
    from bapo.store.files import SUMMARY, fingerprints, read_json, read_table, write_json, write_parquet

    b = write_results(tmp_path / "b", seeds=(3, 4), shift=5)
    for path in b.rglob("cd.parquet"):
        frame = read_table(path)
        write_parquet(path, frame.assign(problem_id="other" + frame["problem_id"]))
        summary = read_json(path.parent / SUMMARY)
        write_json(path.parent / SUMMARY, {**summary, "files": fingerprints(path.parent, ["cd.parquet"])})
    found = {(x.method, x.column): x for x in comparing.compare(a, b).lines}
    line = found[("grpo", "cd")]
    one, two = line.a.estimate, line.b.estimate
    assert not line.paired and line.difference.se == pytest.approx((one.se**2 + two.se**2) ** 0.5)
    assert found[("base", "cd")].state == AGREES  # the same answers to other problems are not the same number


def test_what_only_one_side_has_is_listed_and_does_not_count(a: Path, tmp_path: Path) -> None:
    b = write_results(tmp_path / "b", {"base": 1, "grpo": 3, "dapo": 4})
    found = comparing.compare(a, b)
    assert found.agree and states(found)[("bapo", "cd")] == ONLY[0] and states(found)[("dapo", "cd")] == ONLY[1]
    assert "B: all shared numbers agree\n" in wording.as_text(found, ("A", "B"))
    assert "B: all agree\n" in wording.as_text(comparing.compare(a, a), ("A", "B"))


def test_a_crate_that_was_changed_is_said(a: Path, tmp_path: Path) -> None:
    crate = tmp_path / "crate"
    assert main(["export", str(a), "--out", str(crate)]) == 0
    assert comparing.compare(a, crate).faults == ([], [])
    (crate / "added.txt").write_text("x")
    found = comparing.compare(a, crate)
    assert found.agree and wording.as_json(found, ("A", "B"))["faults"]["b"]
    text = wording.as_text(found, ("A", "B"))
    assert "Warning: B is not as it was packed: added.txt is not in manifest-sha256.txt" in text
    (crate / "manifest-sha256.txt").unlink()
    assert "manifest-sha256.txt is missing" in wording.as_text(comparing.compare(a, crate), ("A", "B"))


def test_one_seed_is_marked_and_its_costs_have_no_interval(a: Path, tmp_path: Path, capsys) -> None:
    b = write_results(tmp_path / "b", {**USUAL, "bapo": 7}, seeds=(1,))
    found = {(x.method, x.column): x for x in comparing.compare(a, b).lines}
    assert not found[("bapo", "cd")].several_seeds and found[("bapo", "updates")].state == NO_INTERVAL
    assert main(["compare", str(a), str(b)]) == 1
    assert "differs (*)" in capsys.readouterr().out


def test_unfinished_runs_are_left_out(a: Path, tmp_path: Path) -> None:
    b = write_results(tmp_path / "b")
    (b / "countdown/tiny/bapo/seed2/summary.json").unlink()
    (b / "countdown/tiny/grpo/seed1/eval/summary.json").unlink()
    (b / "countdown/tiny/grpo/seed2/eval/summary.json").unlink()
    found = {(x.method, x.column): x for x in comparing.compare(a, b).lines}
    assert found[("bapo", "cd")].b.seeds == 1 and found[("grpo", "cd")].state == ONLY[0]


def test_many_lines_are_corrected_unless_each_is_asked_for(a: Path, tmp_path: Path) -> None:
    lines = comparing.compare(a, write_results(tmp_path / "b", {**USUAL, "bapo": 7}, seeds=(3, 4))).lines
    tested = [x for x in lines if np.isfinite(x.p)]
    assert [x.adjusted for x in tested] == pytest.approx(statistics.holm([x.p for x in tested]))
    for strict in (False, True):
        again = comparing.compare(a, tmp_path / "b", strict).lines
        for x in (x for x in again if np.isfinite(x.p)):
            assert (x.state == DIFFERS) == ((x.p if strict else x.adjusted) < 0.05)


def test_the_text_names_what_differs_and_the_json_holds_everything(a: Path, tmp_path: Path, capsys) -> None:
    b = write_results(tmp_path / "b", {**USUAL, "bapo": 7}, config={"train": {"rate": 2}})
    ledger = json.loads((b / "claims.json").read_text())
    ledger["claims"][0]["verdict"] = "underpowered"
    (b / "claims.json").write_text(json.dumps(ledger))
    assert main(["compare", str(a), str(b)]) == 1
    shown = capsys.readouterr().out
    assert "| countdown | tiny | bapo | cd |" in shown and "| grpo |" not in shown
    assert "train.rate" in shown and "better countdown tiny: reproduced; underpowered" in shown
    assert main(["compare", str(a), str(b), "--all"]) == 1 and "| grpo |" in capsys.readouterr().out
    assert main(["compare", str(a), str(b), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    line = next(x for x in content["numbers"] if (x["method"], x["column"]) == ("bapo", "cd"))
    assert line["difference"]["mean"] == pytest.approx(accuracy(5) - accuracy(7)) and not content["agree"]
    assert line["configuration_differs"] == ["train.rate"] and content["verdicts"][0]["b"] == "underpowered"
    assert line["a"]["seeds"] == 2 and sum(content["counts"].values()) == len(content["numbers"])


def test_nothing_in_common_and_wrong_places_are_errors(a: Path, tmp_path: Path, capsys) -> None:
    other = write_results(tmp_path / "b", {"dapo": 3})
    assert main(["compare", str(a), str(other)]) == 2
    assert "no number in common" in capsys.readouterr().err
    assert main(["compare", str(a), str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["compare", str(a), str(tmp_path / "empty")]) == 2
    assert "holds no studies/*.json" in capsys.readouterr().err


def test_a_zip_file_that_leads_out_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        packed.writestr("../evil", "x")
    with pytest.raises(UserError, match="leads out of the archive"), places.opened(tmp_path / "bad.zip"):
        pass
    assert not (tmp_path.parent / "evil").exists()


def test_a_damaged_run_is_named(a: Path, tmp_path: Path) -> None:
    b = write_results(tmp_path / "b")
    (b / "countdown/tiny/bapo/seed1/eval/cd.parquet").write_bytes(b"x")
    with pytest.raises(UserError, match=r"bapo/seed1/eval/cd\.parquet has 1 bytes instead"):
        comparing.compare(a, b)


def test_the_sizes_of_the_made_up_results() -> None:
    assert np.shape(bits(3, 1)) == (N, K) and accuracy(5) > accuracy(3) + 20
