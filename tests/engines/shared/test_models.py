"""Models from scratch: what their architecture may name."""

from __future__ import annotations

import pytest
from support.late import LATE

from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.places import options

if LATE:
    from transformers import AutoConfig

    from bapo.engines.shared import models


VISION = ["task=geometry", "model=qwen2.5-vl-325k"]


@pytest.mark.parametrize(("words", "key"), [([], "hiden_size"), (VISION, "text_config.num_hiden_layers")])
def test_a_key_that_the_family_does_not_have_is_refused(words: list[str], key: str) -> None:
    config = compose_config(["scale=smoke", *words, f"model.architecture.{key}=2"])
    with pytest.raises(UserError, match=rf"model\.architecture\.{key}"):
        models.build_scratch(config)


def test_every_model_of_the_suite_and_the_width_of_a_head_are_known() -> None:
    named = [name for name in options("model") if name != "hf"]  # any model, by its path
    composed = [compose_config(["scale=smoke", f"model={name}"]) for name in named]
    scratch = [dict(c.model.architecture) for c in composed if c.model.kind == "scratch"]
    assert len(scratch) > 2
    for architecture in scratch:
        blank = AutoConfig.for_model(architecture.pop("model_type"))
        models._require_known(blank, {**architecture, "head_dim": 32}, "model.architecture")
