"""Loading transformers without the packages that nothing here uses, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from bapo.engines.shared.imports import UNUSED, load_transformers

transformers = load_transformers()
model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
    vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, bos_token_id=None, eos_token_id=1, pad_token_id=0))
print(sorted(n for n in (*UNUSED, "pandas") if n in sys.modules))

import torch
ids = torch.tensor([[3, 4]])
print(list(model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=2).shape)[0])

import scipy.stats, sklearn.metrics  # free again for everybody else
print(sklearn.metrics.accuracy_score([1, 0], [1, 1]), scipy.stats.norm.cdf(0.0))
"""


@pytest.mark.system
def test_the_unused_packages_stay_out_and_remain_usable():
    pytest.importorskip("sklearn", reason="scikit-learn is what stays out here")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["[]", "1", "0.5 0.5"]
