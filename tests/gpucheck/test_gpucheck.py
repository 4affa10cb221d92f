"""The table of ``gpu-check`` and what its rows are made from; a whole check of verl takes real vLLM (the last test)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.paths import ROOT
from support.vllm_cpu import needs_vllm

from bapo.__main__ import main
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import data_identity
from bapo.experiments.places import base_directory, data_directory
from bapo.gpucheck import command
from bapo.gpucheck.command import Check, CheckResult
from bapo.store.files import SUMMARY, write_json

GOOD = CheckResult("vllm", True, "can be imported", "")


def test_a_machine_that_cannot_run_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A torch without a driver, a package that works, one that does not and one that ends its process."""
    torch = 'print("no answer")\nclass cuda:\n    def init(): raise RuntimeError("The NVIDIA driver is too old")\n'
    packages = {"torch": torch, "vllm": "raise ImportError('libcudart.so.12')", "verl": "", "flash_attn": "import os; "}
    packages["flash_attn"] += "os.abort()"
    for name, text in packages.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(command, "_job", lambda *_, **__: pytest.fail("a job was started"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert main(["gpu-check"]) == 1
    assert not any((tmp_path / "temporary").iterdir())
    lines = capsys.readouterr().out.splitlines()
    rows = {line[5:].split("  ")[0].strip(): line[:4].strip() for line in lines[:4]}
    assert rows == dict.fromkeys(("CUDA", "vllm", "flash_attn"), "NOT") | {"verl": "fine"}
    assert "RuntimeError: The NVIDIA driver is too old" in lines[0] and "ImportError: libcudart" in lines[1]
    assert [line for line in lines if line.startswith("vllm, flash_attn: containers/install_gpu")], "one cure, once"
    assert {row.name for row in command.machine(Check(tmp_path, "cpu"))} == {"vllm", "verl"}
    (tmp_path / "flash_attn.py").unlink()
    rows = command.machine(Check(tmp_path, "cuda"))
    assert [row.fine for row in rows if row.name == "flash_attn"] == [True]
    # the torch engine's asks for torch alone
    rows = command.machine(Check(tmp_path, "cuda", "torch"))
    assert [(row.name, row.fine) for row in rows] == [("CUDA", False), ("torch", True)]


def test_only_problems_and_a_base_of_this_check_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kept folder: on another device, or with another version of the suite, the base model is another one."""
    check = Check(tmp_path, "cpu")
    config, commands = command.config_of(check), []
    monkeypatch.setattr(command, "_job", lambda check, name, text: commands.append(name))
    for folder, identity in ((data_directory(config), data_identity(config)), (base_directory(config), "another")):
        folder.mkdir(parents=True)
        write_json(folder / SUMMARY, {"identity": identity})
    command.make_world(check)
    assert commands == ["base"]


def test_a_card_without_bfloat16_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = "__version__ = ''\nclass version: cuda = ''\nclass cuda:\n    init = get_device_name = lambda *_: ''\n"
    for major, minor in ((7, 5), (8, 0)):
        # a folder each, since Python takes a rewritten module of one size in one second for the old one
        (folder := tmp_path / str(major)).mkdir()
        (folder / "torch.py").write_text(f"{torch}    get_device_capability = lambda: ({major}, {minor})\n")
        monkeypatch.setenv("PYTHONPATH", str(folder))
        row = command.machine(Check(tmp_path, "cuda"))[0]
        assert (row.name, row.fine) == ("CUDA", major == 8) and (row.fine or "capability (7, 5), and" in row.state)
    assert command.machine(Check(tmp_path, "cuda", "torch"))[0].fine


def test_a_temporary_folder_stays_only_with_the_log_of_a_job_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(command, "machine", lambda check: [GOOD])
    assert main(["gpu-check", "task=chess"]) == 2 and not any(tmp_path.iterdir())  # no such run
    monkeypatch.setattr(command, "PYTHON", (sys.executable, "-c", "exit(1)"))
    assert main(["gpu-check", "--engine", "torch", "--device", "cpu"]) == 1
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == ["data.log"]


def test_a_failed_job_ends_the_check_with_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "machine", lambda check: [GOOD])
    script = "print('ValueError: first'); print('torch.OutOfMemoryError: no memory'); print('bye'); exit(1)"
    monkeypatch.setattr(command, "PYTHON", (sys.executable, "-c", script))
    first, last = command.results_of(Check(tmp_path, "cpu"))
    assert (first, last.fine, last.state) == (GOOD, False, "torch.OutOfMemoryError: no memory")
    assert last.cure == f"see {tmp_path / 'data.log'}"


@pytest.mark.parametrize(("line", "smaller"), [("error: not tried with images", False), ("OutOfMemoryError: x", True)])
def test_a_smaller_micro_batch_cures_what_is_no_error_of_ours(
    line: str, smaller: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PYTHON", (sys.executable, "-c", f"print({line!r}); exit(1)"))
    with pytest.raises(command.Failed) as failed:
        command.try_micro_batch(Check(tmp_path, "cpu"))
    (row,) = failed.value.args
    assert row.state == line and ("micro_batch_size" in row.cure) == smaller


@pytest.mark.system
def test_a_job_is_killed_by_force_when_it_says_so_or_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"import time; print('step 2/4', flush=True); time.sleep(600); open({str(tmp_path / 'through')!r}, 'w')"
    monkeypatch.setattr(command, "PYTHON", (sys.executable, "-c", script))
    assert command._job(Check(tmp_path, "cpu"), "train", "training", until="step 2/")
    monkeypatch.setattr(command, "LIMIT", 1)
    with pytest.raises(command.Failed, match="not done after 1 s"):
        command._job(Check(tmp_path, "cpu"), "train", "slow")
    monkeypatch.setattr(command, "PYTHON", (sys.executable, "-c", "pass"))
    monkeypatch.setattr(command, "LIMIT", 600)
    assert not command._job(Check(tmp_path, "cpu"), "train", "training", until="step 2/")
    assert not (tmp_path / "through").exists()


@pytest.mark.system
def test_the_torch_engine_is_fine_on_cpu_cores(tmp_path: Path) -> None:
    """Made, killed, resumed, evaluated; and the micro-batch of a run that the words name, not of the check's world."""
    words = ["--engine", "torch", "--device", "cpu", "--keep", str(tmp_path)]
    run = ["scale=smoke", "task=mathematics", "train.micro_batch_size=8", "method=grpo"]
    done = subprocess.run(
        [sys.executable, "-m", "bapo", "gpu-check", *words, *run], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = ("torch", "BAPO steps", "killed and resumed", "evaluation", "micro-batch")
    assert [line[:4] + line.split("  ")[0][4:] for line in done.stdout.splitlines()[:5]] == [f"fine {n}" for n in names]
    assert "8 rows of 64 tokens, qwen2-112k" in done.stdout


@pytest.mark.parametrize(
    ("words", "task", "scale", "micro_batch"),
    [
        ((), "mathematics", "single_gpu", 16),
        (("train.micro_batch_size=3",), "mathematics", "single_gpu", 3),  # the table's own cure
        (("task=countdown",), "countdown", "single_gpu", 16),
        (("scale=laptop", "method=grpo"), "countdown", "laptop", None),
    ],
)
def test_words_change_the_run_that_is_tried(
    tmp_path: Path, words: tuple[str, ...], task: str, scale: str, micro_batch: int | None
) -> None:
    config = compose_config(command.run_of(Check(tmp_path, "cuda", run=words)))
    assert (config.task.name, config.scale.name, config.engine, config.device) == (task, scale, "verl", "cuda")
    assert micro_batch in (None, config.train.micro_batch_size)
    assert config.method.name == ("grpo" if "method=grpo" in words else "bapo")


def test_engine_and_device_are_options_of_the_check(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"device=.*--device"):
        command.run_of(Check(tmp_path, "cuda", run=("device=cpu",)))


@pytest.mark.verl
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_world_of_the_check_is_a_run_that_verl_can_be_given(tmp_path: Path, device: str) -> None:
    pytest.importorskip("verl")
    from bapo.engines.verl import verl_config

    config = command.config_of(Check(tmp_path, device))
    ages = command.expected_ages(config)
    assert len(ages) == command.STEPS["verl"] and sorted(set(ages)) == [0, 1]  # both: pushed fresh, and pushed delayed
    heads = config.model.architecture
    assert heads.hidden_size // heads.num_attention_heads >= 32  # vLLM's attention on CPU cores knows no smaller head
    rollout = verl_config.resolve(config, device).actor_rollout_ref.rollout
    assert rollout.name == "vllm" and (device == "cpu" or rollout.gpu_memory_utilization == command.SHARE)


@pytest.mark.slow
@pytest.mark.verl
@needs_vllm
def test_a_machine_with_vllm_is_fine(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bapo", "gpu-check", "--device", "cpu", "--keep", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    names = ("BAPO steps", "rollouts in training", "killed and resumed", "evaluation", "micro-batch")
    assert [name for name in names if f"fine {name}" not in done.stdout] == []
