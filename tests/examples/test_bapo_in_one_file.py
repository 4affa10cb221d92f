"""The file that shows BAPO computes what the torch engine computes, from the same prompts and responses."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.late import LATE
from support.paths import ROOT
from support.scripted import build, group
from support.world import start_of

from bapo import seeds
from bapo.algorithm.rollouts import ORIGINS, REEVALUATED, Group, Prompt
from bapo.experiments.compose import compose_config

if LATE:
    import torch

    from bapo.algorithm.losses import LossInputs
    from bapo.engines.torch.rollout import ResponseGenerator
    from bapo.engines.torch.trainer import Trainer
    from bapo.methods.bapo import BAPO
    from bapo.tasks.base import Problem

FILE = ROOT / "examples" / "bapo_in_one_file.py"
#: steps 2, 4 and 6 refresh and re-evaluate; step 5 is the first that drops groups for their age
STEPS, SMALL = 6, {"B": 16, "MINI_BATCH": 4, "v": 2, "m": 2}


@dataclass
class Record:
    """What a run computed: ids of X1, X2, X3 by step, arrays by group of a batch, losses and gradients by update."""

    parts: list[list[list[str]]] = field(default_factory=list)
    advantages: list[np.ndarray] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)

    def note_gradients(self, patch: pytest.MonkeyPatch) -> None:
        """Keep each gradient as it is before it is clipped."""
        clip = torch.nn.utils.clip_grad_norm_

        def noted(parameters: Any, most: float) -> torch.Tensor:
            trained = list(parameters)
            self.gradients.append(torch.cat([p.grad.flatten().double() for p in trained]))
            return clip(trained, most)

        patch.setattr(torch.nn.utils, "clip_grad_norm_", noted)


@pytest.fixture
def one_file(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FILE.parent)
    module = importlib.import_module(FILE.stem)
    for name, value in SMALL.items():
        monkeypatch.setattr(module, name, value)
    return module


def engine_run(results: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Record, list[list[Group]]]:
    """Train with the engine; return its record, and what it sampled, a list of groups each time."""
    keys = {"train.batch_size": "B", "train.mini_batch_size": "MINI_BATCH", "method.v": "v", "method.m": "m"}
    sizes = [f"{key}={SMALL[name]}" for key, name in keys.items()] + [f"train.steps={STEPS}"]
    quiet = ["probe.prompts=0", "tracking=none", f"paths.results={results}"]
    config = start_of(["scale=laptop", "task=countdown", "method=bapo", *sizes, *quiet, "seed=7"])
    record, sampled = Record(), list[list[Group]]()
    generate, build_batch, loss = ResponseGenerator.generate, BAPO.build_batch, BAPO.loss

    def noted_generate(self: ResponseGenerator, *args: Any) -> list[Group]:
        groups = generate(self, *args)
        sampled.extend([groups] if groups else [])
        return groups

    def noted_batch(self: BAPO, *args: Any) -> Any:
        batch = build_batch(self, *args)
        record.parts.append([[g.prompt.id for g in batch.groups if g.origin == part] for part in ORIGINS])
        record.advantages += [self.advantages(g) for g in batch.groups]
        record.logprobs += [g.samples.logprobs for g in batch.groups]
        return batch

    def noted_loss(self: BAPO, inputs: Any) -> Any:
        value, metrics = loss(self, inputs)
        record.losses.append(float(value.detach()))
        return value, metrics

    with monkeypatch.context() as patch:
        patch.setattr(ResponseGenerator, "generate", noted_generate)
        patch.setattr(BAPO, "build_batch", noted_batch)
        patch.setattr(BAPO, "loss", noted_loss)
        record.note_gradients(patch)
        Trainer(config, results / "run", "a test").run()
    return record, sampled


def run_of_the_file(one_file: ModuleType, sampled: list[list[Group]], monkeypatch: pytest.MonkeyPatch) -> Record:
    """Train with the file, whose library model answers each time what the engine sampled."""
    record, waiting = Record(), iter(sampled)
    build_batch, loss = one_file.build_batch, one_file.loss

    def answered(self: Any, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        groups = next(waiting)
        assert [[i for i in row if i] for row in input_ids.tolist()] == [list(g.prompt.row.tokens) for g in groups]
        width = max(g.samples.tokens.shape[1] for g in groups)
        responses = [np.pad(g.samples.tokens, ((0, 0), (0, width - g.samples.tokens.shape[1]))) for g in groups]
        return torch.cat([input_ids.repeat_interleave(one_file.G, 0), torch.from_numpy(np.concatenate(responses))], 1)

    def noted_batch(*args: Any) -> Any:
        built = build_batch(*args)
        record.parts.append([[g.x.id for g in part] for part in built])
        record.advantages += [one_file.advantages(g.r).numpy() for part in built for g in part]
        record.logprobs += [g.log_alpha.numpy() for part in built for g in part]
        return built

    def noted_loss(*args: torch.Tensor) -> torch.Tensor:
        value = loss(*args)
        record.losses.append(float(value.detach()))
        return value

    with monkeypatch.context() as patch:
        patch.setattr(one_file.Qwen2ForCausalLM, "generate", answered)
        patch.setattr(one_file, "build_batch", noted_batch)
        patch.setattr(one_file, "loss", noted_loss)
        record.note_gradients(patch)
        model, tokenizer, problems, _ = one_file.load()
        one_file.train(model, tokenizer, problems, STEPS, 7)
    assert next(waiting, None) is None
    return record


def test_it_trains_as_the_torch_engine_does(one_file, tmp_path, monkeypatch):
    theirs, sampled = engine_run(tmp_path, monkeypatch)
    ours = run_of_the_file(one_file, sampled, monkeypatch)
    sizes = np.array([[len(part) for part in parts] for parts in theirs.parts])
    assert (sizes[1::2] > 0).all() and (sizes.sum(1) == SMALL["B"]).any(), "else the comparison would miss a part"
    assert ours.parts == theirs.parts
    np.testing.assert_allclose(np.stack(ours.advantages), np.stack(theirs.advantages), rtol=1e-5)
    for mine, engines in zip(ours.logprobs, theirs.logprobs, strict=True):  # an alpha of another step is 0.01 off
        np.testing.assert_allclose(mine[:, : engines.shape[1]], engines, atol=1e-4)
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-5, atol=1e-6)  # of terms as large as 1
    for mine, engines in zip(ours.gradients, theirs.gradients, strict=True):
        assert float((mine - engines).norm() / engines.norm()) < 3e-5  # 7e-6 where this was written: float32


class Answers:
    """Both samplers: every answer of a prompt in a step is the same number of correct responses."""

    def __init__(self, one_file: ModuleType) -> None:
        self.one_file, self.step = one_file, 0

    def regenerate(self, prompts: list[Prompt], origin: str, policy: str) -> list[Group]:
        assert (origin, policy) == (REEVALUATED, "current")
        return [self.group(p.id, 1).as_origin(origin) for p in prompts]

    def rollout(self, policy: str, _: None, problems: list[Problem], t: int) -> list[Any]:
        assert (policy, t) == ("pi", self.step)
        return [self.ours(self.group(x.id, 1)) for x in problems]

    def group(self, name: str, time: int) -> Group:
        """time: 0 for a fresh answer, 1 for a new one."""
        often = seeds.generator(0, self.step, name, time).integers(0, 9)
        return group(name, min(often, 8), self.step)

    def ours(self, g: Group) -> Any:
        return self.one_file.Group(Problem(g.prompt.id, "", ""), *[None] * 3, torch.tensor(g.rewards), g.step)


def test_sixty_batches_are_the_methods(one_file, monkeypatch):
    """Far more than a run of seconds shows: full buffers, X3 drawn from more than there is room for, solved prompts."""
    monkeypatch.setattr(one_file, "B", 8)
    answers, method = Answers(one_file), build("bapo", 8, seed=3, m=2)
    monkeypatch.setattr(one_file, "rollout", answers.rollout)
    bad, high, seen = {}, [], []
    for t in range(1, 61):
        answers.step = t
        names = [f"p{i}" for i in seeds.generator(1, t).choice(30, size=8, replace=False)]
        fresh = [answers.group(name, 0) for name in names]
        theirs = method.build_batch(t, fresh, answers)
        ours = one_file.build_batch(t, [answers.ours(g) for g in fresh], bad, high, "pi", None, 3)
        for part, origin in zip(ours, ORIGINS, strict=True):
            assert [(g.x.id, g.t) for g in part] == [g.key for g in theirs.groups if g.origin == origin]
        assert list(bad) == [e.key for e in method.bad]
        assert [(g.x.id, g.t) for g in high] == [g.key for g in method.high]
        seen.append((*map(len, ours), theirs.metrics["reevaluated_prompts"]))
    x1, x2, x3, reevaluated = np.array(seen).T
    assert (x1 + x2 + x3 == 8).any() and (x1 + x2 + x3 < 8).any() and (x2 < reevaluated).any() and x2.any()


def test_the_loss_is_the_methods_where_the_policy_has_moved_far(one_file):
    rng, rows, width = np.random.default_rng(0), 6, 5
    mask = torch.from_numpy((np.arange(width) < rng.integers(1, width + 1, rows)[:, None]).astype(float))
    log_alpha = torch.from_numpy(rng.normal(-2, 1, (rows, width))) * mask
    advantage = torch.tensor([1.5, -1.5, 0.5, -0.5, 2.0, -2.0], dtype=torch.float64)
    moved = torch.from_numpy(rng.normal(0, 3, (rows, width)))
    assert (moved < -2.7).any() and (moved > 1.1).any()  # both limits: of the KL, and of a negative advantage
    found = []
    for compute in ("file", "method"):
        log_pi = (log_alpha + moved * mask).requires_grad_()
        entropy = (torch.ones(rows, width, dtype=torch.float64) * mask).requires_grad_()
        if compute == "file":
            value = one_file.loss(log_pi, entropy, log_alpha, advantage, mask)
        else:
            marks = torch.zeros(rows, dtype=torch.bool), torch.ones(rows)
            inputs = LossInputs(log_pi, log_alpha, advantage, mask, *marks, entropy=entropy, nominal_sequences=4 * 8)
            value, _ = build("bapo", 8).loss(inputs)
        value.backward()
        found.append(torch.cat([value.detach()[None], log_pi.grad.flatten(), entropy.grad.flatten()]).numpy())
    np.testing.assert_allclose(*found, rtol=1e-12, atol=1e-15)


def test_it_runs_by_itself(one_file, monkeypatch, capsys):
    """With the library's own responses: to 16 problems before and after, and at 2 steps."""
    *base, problems, held_out = one_file.load()
    monkeypatch.setattr(one_file, "load", lambda: (*base, problems, held_out[:16]))
    monkeypatch.setattr("sys.argv", [FILE.name, "--steps", "2", "--seed", "1"])
    one_file.main()
    before, step, after = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"before: \d+\.\d% of 8 responses to each of 16 problems", before)
    assert re.match(r"step   2  reward 0\.\d{3}  X1 ", step)
    assert after.startswith("after: ")


def test_its_settings_are_the_laptops(monkeypatch):
    monkeypatch.syspath_prepend(FILE.parent)
    module = importlib.import_module(FILE.stem)
    config = compose_config(["scale=laptop", "task=countdown", "method=bapo"])
    train, method = config.train, config.method
    theirs = [train.group_size, train.batch_size, train.mini_batch_size, config.sampling.max_response_tokens]
    assert theirs == [module.G, module.B, module.MINI_BATCH, module.RESPONSE]
    assert (module.v, module.m) == (method.v, method.m)


def test_it_is_short_and_has_the_algorithm_in_itself():
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    imported = {n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and "bapo" in n.module}
    assert imported == {"bapo", "bapo.experiments.compose", "bapo.tasks.base", "bapo.tasks.countdown.task"}
