"""Published evaluations in their true formats, merged into one place and shown beside own runs in the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.shared_results import write_results

from analysis.__main__ import main
from analysis.imports import evaluations
from analysis.products import imported
from analysis.report import others, provenance
from bapo.errors import UserError
from bapo.store.files import SUMMARY, read_json, read_table

DATE = "2026-01-02T03-04-05.678901"
LM_EVAL = {
    "results": {
        "gsm8k": {
            "alias": "gsm8k",
            "exact_match,strict-match": 0.5,
            "exact_match_stderr,strict-match": 0.02,
            "exact_match,flexible-extract": 0.6,
            "exact_match_stderr,flexible-extract": 0.03,
        },
        "wikitext": {"alias": "wikitext", "word_perplexity,none": 12.5, "word_perplexity_stderr,none": "N/A"},
        "leaderboard_ifeval": {"alias": "ifeval", "a,none": 0.1, "b,none": 0.2},
    },
    "n-samples": {"gsm8k": {"original": 1319, "effective": 600}},
    "configs": {"gsm8k": {"task": "gsm8k"}},
    "model_name": "some/model",
}
LIGHTEVAL = {
    "config_general": {"lighteval_sha": "2", "model_name": "org/model", "max_samples": None},
    "results": {
        "lighteval|math_500|0": {"extractive_match": 0.75, "extractive_match_stderr": 0.01},
        "all": {"extractive_match": 0.75, "extractive_match_stderr": 0.01},
    },
    "config_tasks": {"lighteval|math_500": {"name": "math_500", "effective_num_docs": 500}},
}


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return path


def samples(folder: Path, extra: str = "") -> Path:
    """Two filters of four problems each; strict finds two right, flexible three."""
    common = {"doc": {"question": "?"}, "target": "3", "resps": [["3"]], "filtered_resps": ["3"], "doc_hash": "a"}
    right = {"strict-match": 2, "flexible-extract": 3}
    rows = [
        {"doc_id": i, **common, "filter": name, "metrics": ["exact_match"], "exact_match": float(i < count)}
        for name, count in right.items()
        for i in range(4)
    ]
    path = folder / f"samples_gsm8k_{DATE}.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows) + extra, encoding="utf-8")
    return path


def test_results_of_lm_eval(tmp_path: Path) -> None:
    found, log = evaluations.read(write(tmp_path / f"results_{DATE}.json", LM_EVAL))
    assert (found.format, found.model) == ("lm-eval results", "some/model")
    assert found.scores == {"gsm8k": evaluations.Score("exact_match,strict-match", 0.5, 0.02, 600)}
    refused = dict(log.refused)
    assert refused["results.wikitext"] == "word_perplexity,none is 12.5, which is no share of right answers"
    assert "has the metrics a,none, b,none; choose one with --metric" in refused["results.leaderboard_ifeval"]


def test_a_metric_may_be_named_with_its_filter(tmp_path: Path) -> None:
    path = write(tmp_path / "results.json", LM_EVAL)
    found, _ = evaluations.read(path, "exact_match,flexible-extract")
    assert found.scores["gsm8k"].accuracy == 0.6 and found.scores["gsm8k"].standard_error == 0.03
    with pytest.raises(UserError, match=r"results\.gsm8k: has no metric f1; it has exact_match,strict-match"):
        evaluations.read(path, "f1")


def test_samples_of_lm_eval(tmp_path: Path) -> None:
    again = '{"doc_id": 1, "target": "3", "filter": "strict-match", "exact_match": 1.0}\n'
    found, log = evaluations.read(samples(tmp_path, again + '{"doc_id": 9, "target": "3"}\n{broken\n'))
    score = found.scores["gsm8k"]
    assert (score.metric, score.accuracy, score.problems) == ("exact_match,strict-match", 0.5, 4)
    assert score.standard_error == pytest.approx(np.std([1, 1, 0, 0], ddof=1) / 2)
    assert [place for place, _ in log.refused] == ["line 9", "line 10", "line 11"]
    assert log.said()[0].endswith("line 9: problem 1 is there before")


def test_samples_of_another_filter_are_passed_over(tmp_path: Path) -> None:
    found, log = evaluations.read(samples(tmp_path), "exact_match,flexible-extract")
    assert found.scores["gsm8k"].accuracy == 0.75 and (log.refused, log.passed) == ([], 4)
    with pytest.raises(UserError, match="no line has the filter none; there are strict-match, flexible-extract"):
        evaluations.read(samples(tmp_path), "exact_match,none")


def test_a_number_that_no_float_holds_is_refused(tmp_path: Path) -> None:
    huge = '{"doc_id": 9, "target": "3", "filter": "strict-match", "exact_match": 1%s}\n' % ("0" * 400)
    found, log = evaluations.read(samples(tmp_path, huge))
    assert found.scores["gsm8k"].problems == 4 and log.refused == [("line 9", "has no metric")]


def test_results_of_lighteval(tmp_path: Path) -> None:
    found, _ = evaluations.read(write(tmp_path / f"results_{DATE}.json", LIGHTEVAL))
    assert found.scores == {"lighteval|math_500|0": evaluations.Score("extractive_match", 0.75, 0.01, 500)}


@pytest.mark.parametrize("column", ["metric", "metrics"])  # now; in version 1 of the leaderboard
def test_details_of_lighteval(tmp_path: Path, column: str) -> None:
    rows = [{"acc": 1.0, "acc_norm": 0.0}, {"acc": 0.0, "acc_norm": 0.0}, {"acc": 1.0, "acc_norm": 1.0}]
    path = tmp_path / f"details_leaderboard|arc:challenge|25_{DATE}.parquet"
    pd.DataFrame({column: rows, "doc": [{"id": str(i)} for i in range(3)]}).to_parquet(path)
    found, _ = evaluations.read(path)
    assert list(found.scores) == ["leaderboard|arc:challenge|25"]
    score = found.scores["leaderboard|arc:challenge|25"]
    assert (score.metric, score.problems) == ("acc", 3) and score.accuracy == pytest.approx(2 / 3)
    assert evaluations.read(path, "acc_norm")[0].scores[next(iter(found.scores))].accuracy == pytest.approx(1 / 3)


def test_rows_without_metrics_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "details_x_2026-01-02T03-04-05.parquet"
    pd.DataFrame({"metrics": ['{"em": 1.0}', None, '{"em": 3.0}', "{"]}).to_parquet(path)
    found, log = evaluations.read(path)
    assert found.scores["x"].problems == 1 and [place for place, _ in log.refused] == ["row 2", "row 3", "row 4"]


def test_wrong_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(UserError, match=r"a\.parquet: not readable as parquet"):
        evaluations.read(tmp_path / "a.parquet")
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(UserError, match="has no column metric or metrics; its columns are x"):
        evaluations.read(tmp_path / "b.parquet")
    with pytest.raises(UserError, match="no results of lm-eval or lighteval"):
        evaluations.read(write(tmp_path / "c.json", {"a": 1}))
    with pytest.raises(UserError, match=r"results\.t: must be an object of metrics \(all 1 records"):
        evaluations.read(write(tmp_path / "d.json", {"results": {"t": 1}}))


# ------------------------------------------------------------------------------------------------ beside own runs


def bring(folder: Path, file: Path, *more: str) -> int:
    names = [
        "--task",
        "countdown",
        "--model",
        "big",
        "--method",
        "theirs",
        "--out",
        str(folder / "results" / "imported"),
    ]
    return main(["import", str(file), *names, *more])


def test_two_files_become_one_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = write(tmp_path / f"results_{DATE}.json", LIGHTEVAL)
    assert bring(tmp_path, samples(tmp_path), "--benchmark", "gsm8k=cd") == 0
    assert bring(tmp_path, results) == 0 and bring(tmp_path, results) == 0
    folder = tmp_path / "results/imported/countdown/big/theirs/seed1/eval"
    content = read_json(folder / SUMMARY)
    assert set(content["benchmarks"]) == {"cd", "lighteval|math_500|0"}
    assert content["benchmarks"]["cd"]["source"] == samples(tmp_path).name
    assert read_table(folder / "cd.parquet")["mean"].sum() == 2
    assert len(read_json(folder / "manifest.json")["imported"]) == 2  # the same file counts once
    assert bring(tmp_path, results, "--reward", "x") == 2
    assert "is an evaluation, --reward is for training logs" in capsys.readouterr().err
    assert bring(tmp_path, results, "--benchmark", "math500=x") == 2
    assert "--benchmark: no benchmark 'math500'" in capsys.readouterr().err


def test_another_name_for_a_file_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert bring(tmp_path, samples(tmp_path), "--benchmark", f"gsm8k={name}") == 0
    folder = tmp_path / "results/imported/countdown/big/theirs/seed1/eval"
    content = read_json(folder / SUMMARY)
    assert list(content["benchmarks"]) == ["second"] and list(content["files"]) == ["second.parquet"]
    assert not (folder / "first.parquet").exists()


def test_seeds_of_one_evaluation_are_one_row(tmp_path: Path) -> None:
    for seed, accuracy in (("1", 0.5), ("2", 0.75)):
        content = {**LIGHTEVAL, "results": {"m|0": {"em": accuracy, "em_stderr": 0.02}}}
        assert bring(tmp_path, write(tmp_path / f"r{seed}.json", content), "--seed", seed) == 0
    (table,) = others.collect(tmp_path / "results" / "laptop", []).tables
    assert [r.cells for r in table.rows] == [{"m|0": (62.5, "em, 2 seeds")}]


def test_the_report_shows_them_beside_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = write_results(Path("results") / "laptop")
    assert bring(tmp_path, samples(tmp_path, "{broken\n"), "--benchmark", "gsm8k=cd") == 0
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(json.dumps({"step": i, "critic/score/mean": i / 9}) + "\n" for i in range(1, 8)), encoding="utf-8"
    )
    assert bring(tmp_path, log) == 0
    for run in home.glob("countdown/tiny/*/seed*"):
        evaluated = run / "eval" / SUMMARY
        evaluated.write_text(json.dumps({**read_json(evaluated), "benchmarks": {"cd": {"accuracy": 0.25}}}))
    assert len(imported(home)) == 2
    found = others.collect(home, provenance.collect(home).runs)
    (table,) = found.tables
    assert table.benchmarks == ("cd",) and [(r.method, r.origin) for r in table.rows] == [
        ("grpo", "own"),
        ("bapo", "own"),
        ("theirs", "imported"),
    ]
    assert table.rows[0].cells["cd"] == (25.0, "2 seeds") and table.rows[2].cells["cd"][0] == 50.0
    assert {(s.format, s.refused) for s in found.sources} == {("lm-eval samples", 1), ("verl", 0)}
    assert found.figures and found.figures[0].image.startswith("data:image/svg+xml")
    assert main(["report", str(home)]) == 0
    page = (home / "report.html").read_text(encoding="utf-8")
    assert "Results of others" in page and "line 9: is no JSON" in page and 'href="#others"' in page


def test_without_imports_the_report_has_no_such_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = write_results(Path("results") / "laptop")
    assert others.collect(home, []) == others.Others()
    assert main(["report", str(home)]) == 0
    assert "Results of others" not in (home / "report.html").read_text(encoding="utf-8")
