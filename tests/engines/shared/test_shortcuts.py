"""Without ``bapo/engines/fast`` everything works: same responses, scores and values, the library's way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.late import LATE
from support.paths import ROOT

from bapo.engines.shared.shortcuts import shortcut

if LATE:
    import torch

    from bapo.engines.shared import models
    from bapo.engines.shared.rows import Rows
    from bapo.engines.shared.sampling import SamplingParameters, sample
    from bapo.engines.torch.critic import values_of, with_value_head


WITHOUT = """
import importlib.abc, json, sys

class Deleted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("bapo.engines.fast"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Deleted())
sys.path[:0] = sys.argv[1:]
import test_shortcuts
from support import late
late.run(test_shortcuts)
print(json.dumps(test_shortcuts.numbers()))
"""


def numbers() -> dict[str, list]:
    """Which shortcuts are taken, and what a tiny model samples, scores and values."""
    import transformers as hf

    torch.manual_seed(3)
    config = hf.Qwen2Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        initializer_range=0.3,
    )
    model = hf.Qwen2ForCausalLM(config).eval()
    parameters, keys = SamplingParameters(max_tokens=8, eos_ids=(1,)), np.array([1, 2], dtype=np.uint64)
    groups = sample(model, [[5, 6, 7], [8, 9, 10, 11]], 3, keys, 7, parameters)
    ids, starts, lengths = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([3]), torch.tensor([2])
    scored = models.score(model, ids, starts, 2, entropy=True, lengths=lengths)
    critic = with_value_head(model)
    torch.nn.init.normal_(critic.get_output_embeddings().weight)
    values = values_of(critic, Rows(ids, starts, lengths, torch.zeros(1, 2), ["fresh"]))
    return {
        "fast": [shortcut(part, model) is not None for part in ("sampler", "scoring")],
        "tokens": [g.tokens.tolist() for g in groups],
        "numbers": [*scored.logprobs.tolist(), *scored.entropy.tolist(), *values.tolist()],
    }


@pytest.mark.system
def test_the_folder_of_the_fast_forward_can_be_deleted() -> None:
    command = [sys.executable, "-c", WITHOUT, str(Path(__file__).parent), str(ROOT / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    without, expected = json.loads(done.stdout), numbers()
    assert expected["fast"] == [True, True] and without["fast"] == [False, False]
    assert without["tokens"] == expected["tokens"]
    np.testing.assert_allclose(without["numbers"], expected["numbers"], atol=1e-5)


def test_a_model_is_looked_at_once(monkeypatch) -> None:
    from bapo.engines.fast import scoring

    model, looks = torch.nn.Linear(1, 1), []
    monkeypatch.setattr(scoring, "supports", lambda model: looks.append(model) or len(looks) == 1)
    assert [shortcut("scoring", model) for _ in range(2)] == [scoring, scoring] and looks == [model]
    assert shortcut("scoring", torch.nn.Linear(1, 1)) is None  # another one is
