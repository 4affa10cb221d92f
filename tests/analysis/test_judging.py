"""``bapo audit`` and ``bapo claims`` in a project: its paper, its studies and its results folder go without saying."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.pages import example
from support.shared_results import write_results

from analysis.__main__ import main
from analysis.claims import papers
from bapo import init
from bapo.errors import UserError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mine"
    init.write(folder)
    (folder / "bapo.yaml").write_text("scale: smoke\npaper: paper.yaml\n")
    for page in ("table", "paper", "my_claims"):
        (folder / f"{page}.yaml").write_text(example("yaml", f"{page}.yaml"))
    monkeypatch.chdir(folder)
    return folder


def runs(project: Path) -> None:
    home = write_results(project / "results" / "smoke")
    (home / "studies" / "table1.json").rename(home / "studies" / "ordering.json")


def test_they_take_what_the_project_has(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs(project)
    assert main(["audit"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# Audit of A paper") and "## Beside your runs" in printed
    assert main(["claims"]) == 0
    content = json.loads((project / "results/smoke/claims_paper.json").read_text())
    assert content["paper"] == "A paper" and content["claims"][0]["id"] == "grpo_gains_ten_points"
    assert main(["audit", "simplerl_zoo"]) == 0  # another one has no place beside these runs
    assert "Beside your runs" not in capsys.readouterr().out


def test_without_runs_or_a_project_they_say_what_to_name(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["claims"]) == 2
    assert "results/smoke has no study yet; run `snakemake --cores all`" in capsys.readouterr().err
    assert main(["audit"]) == 0 and "Beside" not in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["claims"]) == 2
    assert "--study and --out: name both" in capsys.readouterr().err


def test_a_wrong_claim_ends_the_workflow_before_its_runs(project: Path) -> None:
    papers.check()
    claims = project / "my_claims.yaml"
    claims.write_text(claims.read_text().replace("of: grpo", "of: grop"))
    with pytest.raises(UserError, match=r"my_claims\.yaml: .* query\.of: no such method \(did you mean 'grpo'\?\)"):
        papers.check()
    (project / "bapo.yaml").write_text("paper: papers.yaml\n")
    with pytest.raises(UserError, match=r"bapo\.yaml: paper=papers\.yaml: no such file"):
        papers.check()


def test_the_report_shows_the_projects_paper_alone(project: Path) -> None:
    runs(project)
    assert main(["claims"]) == main(["report", "results/smoke"]) == 0
    page = (project / "results/smoke/report.html").read_text()
    assert "<h1>mine" in page and "python -m bapo audit paper.yaml" in page
    assert 'id="claims"' in page and 'id="audit"' in page and "GRPO gains at least ten points" in page
    (project / "bapo.yaml").write_text("scale: smoke\ntitle: Mine alone\n")
    assert main(["report", "results/smoke"]) == 0
    page = (project / "results/smoke/report.html").read_text()
    assert "<h1>Mine alone" in page and 'id="claims"' not in page and 'id="audit"' not in page
    assert "of the paper" not in page


def test_an_imported_task_that_is_none_of_ours_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "verl.log").write_text("step:1 - critic/score/mean:0.5 - actor/lr:1e-06\n")
    for task, said in (("orderin", "(did you mean 'ordering'?)"), ("ordering", "")):
        assert main(["import", "verl.log", "--task", task, "--model", "m", "--method", "grpo"]) == 0
        printed = capsys.readouterr().out
        assert ("no task of yours" in printed) == bool(said) and said in printed
