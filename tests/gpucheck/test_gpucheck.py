"""The table of ``gpu-check`` and what its rows are made from; a whole check takes real vLLM (test_gpucheck_runs.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.late import LATE
from support.paths import ROOT

from bapo.__main__ import main
from bapo.gpu import devices
from bapo.gpu.environment import Check
from bapo.gpucheck import command, rows, world
from bapo.gpucheck.rows import FINE, SKIPPED, WRONG, Row

if LATE:
    from support import gpu_check_job

    from bapo.gpucheck import engine


GOOD = Row("vllm", FINE, "can be imported")


def test_the_table_names_what_is_wrong_with_its_cure() -> None:
    bad = Row("driver", WRONG, "535, CUDA 13.0 takes 580 or newer", "have the driver updated")
    text = rows.table([GOOD, bad, Row("vLLM asleep", SKIPPED, "not on CPU cores")])
    assert "NOT  driver       535" in text and "fine vllm " in text and "-    vLLM asleep" in text
    assert "driver: have the driver updated" in text and text.endswith("gpu-check: 1 of 3 are not fine\n")
    assert (rows.status([GOOD, bad]), rows.status([GOOD])) == (1, 0)
    assert rows.table([GOOD]).endswith("nothing that was looked at stands in a run's way\n")


def test_differences_and_clipped_ratios() -> None:
    one, other = [np.array([-1.0, -2.0]), np.array([-0.5])], [np.array([-1.0, -2.5]), np.array([-0.5])]
    gap = engine.difference(one, other)
    assert (gap.mean, gap.maximum, gap.tokens) == (pytest.approx(0.5 / 3), 0.5, 3)
    assert gap.clipped == pytest.approx(1 / 3)  # exp(0.5) = 1.65
    assert engine.difference(one, one).clipped == 0


def test_a_machine_that_cannot_run_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def checks(gpus: int, modules: tuple[str, ...]) -> list[Check]:
        assert modules[:2] == ("vllm", "verl")
        return [Check("driver", gpus == 0, "535", "have it updated"), *(Check(m, True, "ok") for m in modules)]

    monkeypatch.setattr(command.environment, "checks", checks)
    monkeypatch.setattr(command, "_job", lambda *_, **__: pytest.fail("a job was started"))
    assert main(["gpu-check"]) == 1
    text = capsys.readouterr().out
    assert "NOT  driver" in text and "driver: have it updated" in text and "flash_attn" in text
    assert [row.name for row in command.machine("cpu")] == ["vllm", "verl", "CPU cores"]


def test_a_failed_job_ends_the_check_with_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "machine", lambda device: [GOOD])
    script = "print('starting'); raise SystemExit('no such kernel')"
    monkeypatch.setattr(command, "BAPO", (sys.executable, "-c", script))
    found = command.checked("cpu", tmp_path, lambda text: None)
    assert [r.state for r in found] == [FINE, WRONG]
    assert found[1].found == "no such kernel" and str(tmp_path / "data.log") in found[1].cure


def test_the_last_error_is_quoted(tmp_path: Path) -> None:
    script = "print('ValueError: first'); print('torch.OutOfMemoryError: CUDA out of memory'); print('bye'); exit(1)"
    with pytest.raises(command.Failed) as failed:
        command._job(command.Place(tmp_path, "cpu"), "job", [sys.executable, "-c", script], "training")
    row = failed.value.args[0]
    assert row.found == "torch.OutOfMemoryError: CUDA out of memory"
    assert row.cure == f"see {tmp_path / 'job.log'}"
    assert command.last_error("") == "no output"


def test_a_small_gpu_is_told_and_checked_all_the_same(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(1, memory=16_000)
    monkeypatch.setattr(command.environment, "checks", lambda *_: [])
    (row,) = (row for row in command.machine("cuda") if row.name == "memory")
    assert row.state == FINE and row.found.startswith("17 GB; under 24 GB no model of the paper can be trained")


@pytest.mark.system
def test_every_job_takes_the_one_gpu_that_was_free(machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The check itself holds no lock, which its own jobs would wait for; another user's GPU is let be."""
    machine(3)
    script = [sys.executable, str(Path(gpu_check_job.__file__)), str(devices.FOLDER)]
    monkeypatch.setattr(command, "machine", lambda device: [GOOD])
    monkeypatch.setattr(command, "BAPO", tuple(script))
    monkeypatch.setattr(command, "ENGINE", (*script, "engine"))
    with devices.taken(1):  # as another user has one
        monkeypatch.delenv(devices.VISIBLE)
        found = command.checked("cuda", tmp_path, lambda text: None, limit=120)
    assert not rows.status(found), rows.table(found)
    seen = (tmp_path / "seen").read_text(encoding="ascii").split("\n")
    assert seen == ["data ", "base 1", "engine 1", "train 1", "train 1", "evaluate 1", ""]


@pytest.mark.system
def test_a_job_is_killed_by_force_when_it_says_so(tmp_path: Path) -> None:
    script = f"import time; print('step 2/4', flush=True); time.sleep(600); open({str(tmp_path / 'through')!r}, 'w')"
    place = command.Place(tmp_path, "cpu")
    assert command._job(place, "train", [sys.executable, "-c", script], "training", until="step 2/")
    assert not (tmp_path / "through").exists()
    assert not command._job(place, "short", [sys.executable, "-c", "pass"], "training", until="step 2/")


@pytest.mark.system
def test_a_job_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    script = "import time; time.sleep(600)"
    with pytest.raises(command.Failed) as failed:
        command._job(command.Place(tmp_path, "cpu", limit=1), "slow", [sys.executable, "-c", script], "slow")
    assert failed.value.args[0].found == "not done after 1 s"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_world_of_the_check_is_a_run_that_verl_can_be_given(tmp_path: Path, device: str) -> None:
    pytest.importorskip("verl")
    from bapo.engines.verl import verl_config

    config = world.config_of(tmp_path, device)
    assert (config.method.v, config.checkpoint.every) == (2, 1)
    assert config.model.dtype == {"cpu": "float32", "cuda": "bfloat16"}[device]
    ages = command.expected_ages(config)
    assert len(ages) == world.STEPS and sorted(set(ages)) == [0, 1]  # both: pushed fresh, and pushed delayed
    heads = config.model.architecture
    assert heads.hidden_size // heads.num_attention_heads >= 32  # vLLM's attention on CPU cores knows no smaller head
    rollout = verl_config.resolve(config, device).actor_rollout_ref.rollout
    assert rollout.name == "vllm" and (device == "cpu" or rollout.gpu_memory_utilization == world.SHARE)


def test_the_page_counts_the_packages_of_the_gpu_environment() -> None:
    lock = (ROOT / "containers" / "lock-gpu.txt").read_text(encoding="utf-8")
    packages = [line for line in lock.splitlines() if "==" in line and not line.startswith("#")]
    page = (ROOT / "docs" / "provenance.md").read_text(encoding="utf-8")
    assert f"the {len(packages)} packages of `containers/lock-gpu.txt`" in page
