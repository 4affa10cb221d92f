"""Models from scratch: what their architecture may name."""

from __future__ import annotations

import pytest
from support.late import LATE

from bapo.errors import UserError
from bapo.experiments.compose import compose_config

if LATE:
    from bapo.engines.shared import models


VISION = ["task=geometry", "model=qwen2.5-vl-325k"]


@pytest.mark.parametrize(("words", "key"), [([], "hiden_size"), (VISION, "text_config.num_hiden_layers")])
def test_a_key_that_the_family_does_not_have_is_refused(words: list[str], key: str) -> None:
    config = compose_config(["scale=smoke", *words, f"model.architecture.{key}=2"])
    with pytest.raises(UserError, match=rf"model\.architecture\.{key}"):
        models.build_scratch(config)
