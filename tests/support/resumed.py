"""A run that goes on from a checkpoint must come to the numbers of one that nothing disturbed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bapo.engines.torch.trainer import train
from bapo.experiments.compose import compose_config
from bapo.experiments.places import run_directory
from bapo.store.files import SUMMARY, TABLES, TIME_COLUMNS, sha256


def numbers(folder: Path) -> dict[str, pd.DataFrame]:
    """Every table of a run without the columns that measure time."""
    tables = {name: pd.read_parquet(folder / name) for name in TABLES}
    return {n: t[[c for c in t if not c.startswith(TIME_COLUMNS)]] for n, t in tables.items()}


def weights(folder: Path) -> str:
    return sha256(folder / "checkpoints" / "step_000006" / "model.safetensors")


def assert_same(first: Path, second: Path) -> None:
    one, two = numbers(first), numbers(second)
    for name in one:
        pd.testing.assert_frame_equal(one[name], two[name], check_exact=True)
    assert weights(first) == weights(second)


def assert_resumes_bit_for_bit(undisturbed: Path, overrides: Sequence[str]) -> None:
    """The finished run of the ``overrides``, again from its last checkpoint but one, under another label."""
    twin = compose_config([*overrides, "method.name=resumed"])
    copy = run_directory(twin)
    shutil.copytree(undisturbed, copy)
    last = max((copy / "checkpoints").glob("step_*"))
    shutil.rmtree(last)
    for table in (SUMMARY, *TABLES):
        (copy / table).unlink()
    train(twin)
    assert_same(undisturbed, copy)
    shutil.rmtree(copy)
