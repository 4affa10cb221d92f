"""A job of ``gpu-check`` that takes its GPU as the real one does and leaves what the check reads, without CUDA.

``python gpu_check_job.py LOCKS COMMAND [KEY=VALUE ...]``
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from omegaconf import DictConfig
from safetensors.torch import save_file

from bapo import __main__ as bapo
from bapo.experiments.compose import composed
from bapo.experiments.places import base_directory, data_directory, run_directory
from bapo.gpu import devices
from bapo.gpucheck import command, engine, world
from bapo.store.files import STEPS, SUMMARY, write_json, write_parquet

#: the functions of bapo/plan/resources.py that say what a job takes
NEEDED = {"data": "problems", "base": "base_model", "train": "training", "evaluate": "evaluation"}


def data(config: DictConfig) -> None:
    write_json(data_directory(config) / SUMMARY, {})


def base(config: DictConfig) -> None:
    write_json(base_directory(config) / SUMMARY, {})


def train(config: DictConfig) -> None:
    home = run_directory(config)
    if not home.exists():
        home.mkdir(parents=True)
        print(f"step {world.KILLED_AFTER}/{world.STEPS}", flush=True)
        time.sleep(600)
    print(f"going on after step {world.KILLED_AFTER}")
    steps = {"step": range(1, world.STEPS + 1), "staleness": command.expected_ages(config)}
    write_parquet(
        home / STEPS, pd.DataFrame(steps).assign(updates=1, clip_fraction=0.0, mismatch_mean=0.0, mismatch_max=0.0)
    )
    checkpoint = home / "checkpoints" / "step_000004"
    checkpoint.mkdir(parents=True)
    save_file({"weight": torch.zeros(2, dtype=torch.bfloat16)}, checkpoint / "model.safetensors")
    write_json(home / SUMMARY, {"checkpoint": "checkpoints/step_000004"})


def evaluate(config: DictConfig) -> None:
    result = {"problems": world.PROMPTS, "accuracy": 0.5}
    write_json(run_directory(config) / "eval" / SUMMARY, {"benchmarks": {world.BENCHMARK: result}})


def note(name: str) -> None:
    with open(devices.FOLDER.parent / "seen", "a", encoding="ascii") as seen:
        print(name, os.environ[devices.VISIBLE], file=seen)


def run_engine(folder: Path, device: str) -> None:
    def compare(*_: Any) -> None:
        note("engine")
        write_json(folder / engine.FILE, [])

    engine._main = compare
    engine.main(folder, device)


def main(locks: str, name: str, words: list[str]) -> None:
    devices.FOLDER = Path(locks)
    if name == "engine":
        return run_engine(Path(words[0]), words[1])
    config = composed(words)
    with bapo._own_gpus(config, NEEDED[name]):
        note(name)
        globals()[name](config)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
