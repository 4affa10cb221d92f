"""A run that goes on from a checkpoint must come to the numbers of one that nothing disturbed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from test_trainer import assert_same

from bapo.engines.torch.trainer import train
from bapo.experiments.compose import compose_config
from bapo.experiments.places import run_directory
from bapo.store.files import SUMMARY, TABLES


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
