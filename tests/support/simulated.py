"""Studies whose runs are simulated, seeded and small: every table, figure and claim finds something in them.

No model is trained. A prompt has a difficulty, a policy one skill that grows with the step, and answers are coin flips.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from bapo.algorithm.rollouts import FRESH, REEVALUATED
from bapo.store.files import SUMMARY, fingerprints, write_json, write_parquet
from support.runs import PHASES, write_curve, write_evaluation, write_run

G = 8
STEPS, BATCH, PROMPTS, PROBED, PROBLEMS = 12, 8, 60, 30, 12
HELD_OUT = "probe"
METHODS, VARIANTS, TASKS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).values()
MODEL = "qwen2-112k"


def generator(*key: object) -> np.random.Generator:
    """Return the random numbers of a purpose."""
    return np.random.default_rng([zlib.crc32(str(part).encode()) for part in key])


def _difficulty(name: str, count: int, mean: float = 1.0) -> np.ndarray:
    return generator("difficulty", name).normal(mean, 1.6, count)


def _chance(skill: np.ndarray | float, difficulty: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(difficulty - skill))


@dataclass(frozen=True)
class Run:
    """One run to simulate. weaker: what its base model lacks in skill; steps: T."""

    task: str
    model: str
    method: str
    seed: int
    weaker: float = 0.0
    steps: int = STEPS

    @property
    def family(self) -> str:
        return self.method.split("+")[0]

    @property
    def variants(self) -> list[str]:
        return self.method.split("+")[1:]

    @property
    def title(self) -> str:
        return ", ".join([METHODS[self.family][0], *(VARIANTS[v][0] for v in self.variants)])

    @property
    def of_bapo(self) -> bool:
        return self.family.startswith(("bapo", "ba_ppo"))

    @property
    def rate(self) -> float:
        return next((float(v.removeprefix("rate_")) for v in self.variants if v.startswith("rate_")), 2e-4)

    def random(self, *purpose: object) -> np.random.Generator:
        return generator(self.task, self.model, self.method, self.seed, *purpose)

    @property
    def skill(self) -> np.ndarray:
        """Return the skill at each step [T + 1]."""
        final = METHODS[self.family][2] + sum(VARIANTS[v][1] for v in self.variants)
        final += self.random("final").normal(0, 0.15)
        return final * (1 - np.exp(-3 * np.arange(self.steps + 1) / self.steps)) / (1 - np.exp(-3)) - self.weaker

    def write(self, folder: Path, evaluated: bool = True, curve: bool = False) -> None:
        steps, groups = self._training()
        totals = {name: float(steps[name].sum()) for name in ("fresh_rollouts", "regenerated_rollouts", "updates")}
        totals |= {name: float(steps[name].sum()) for name in ("generated_tokens", "trained_tokens")}
        totals["rollouts"] = totals["fresh_rollouts"] + totals["regenerated_rollouts"]
        totals["seconds"] = float(steps["seconds_total"].sum() - steps["seconds_probe"].sum())
        totals["forward_flops"] = 2e5 * (totals["generated_tokens"] + totals["trained_tokens"])
        totals["backward_flops"] = 4e5 * totals["trained_tokens"]
        budget = {"kind": "rollouts", "reached": self.seed != 2} if "rollouts" in self.variants else None
        bits = self._evaluation() if evaluated else None
        write_run(folder, bits, totals, steps, self.config(), self._probe(), groups, budget)
        if curve:
            self._curve(folder / "curve")

    def config(self) -> dict[str, Any]:
        title, benchmarks = TASKS[self.task]
        sizes = {"train": PROMPTS, **dict.fromkeys(benchmarks, 12)}
        method: dict[str, Any] = {"algorithm": "bapo" if self.of_bapo else self.family, "name": self.method}
        method |= {"title": self.title, "kind": METHODS[self.family][1], "kl_coef": 0.001, "clip_low": 0.2}
        method["kl_to"] = "rollout" if self.of_bapo else "reference"
        method |= {"v": 5, "m": 5, "c1": 0.25} if self.of_bapo else {}
        method |= {"v": 2} if "v2" in self.variants else {}
        return {
            "seed": self.seed,
            "task": {"name": self.task, "title": title},
            "data": {"source": "generated", "seed": 0, "split_sizes": sizes},
            "model": {"name": self.model, "title": self.model, "architecture": {"hidden_size": 8}},
            "base": {"seed": int(self.model.endswith("base_2")), "iterations": 100 - round(20 * self.weaker)},
            "sampling": {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 20},
            "train": {
                "steps": self.steps,
                "batch_size": BATCH,
                "mini_batch_size": 4,
                "group_size": G,
                "learning_rate": self.rate,
                "weight_decay": 0.0,
            },
            "probe": {"prompts": PROBED, "samples": G},
            "evaluation": {"benchmarks": list(benchmarks), "samples": 32, "backend": "torch"},
            "method": method,
        }

    def _evaluation(self) -> dict[str, np.ndarray]:
        bits = {}
        for name, (_, mean, samples, _) in TASKS[self.task][1].items():
            chance = _chance(self.skill[-1], _difficulty(name, PROBLEMS, mean))
            bits[name] = self.random("eval", name).random((PROBLEMS, samples)) < chance[:, None]
        return bits

    def _curve(self, folder: Path) -> None:
        steps = self._spaced(4)
        means = {name: mean for name, (_, mean, *_) in TASKS[self.task][1].items()} | {HELD_OUT: 1.0}
        correct = {}
        for name, mean in means.items():
            chances = [_chance(self.skill[step], _difficulty(name, PROBLEMS, mean)) for step in steps]
            correct[name] = [self.random("curve", name, s).binomial(G, c) for s, c in zip(steps, chances, strict=True)]
        write_curve(folder, steps, correct, G, HELD_OUT)

    def _spaced(self, parts: int) -> list[int]:
        return sorted({round(self.steps * i / parts) for i in range(parts + 1)})

    def _probe(self) -> pd.DataFrame:
        """Return the probes; at step 0 all methods of a seed see the same samples of the base model."""
        rows = []
        for probed, count in (("train", PROBED), (HELD_OUT, PROBLEMS)):
            difficulty = _difficulty(probed, count)
            for step in self._spaced(4):
                random = self.random(probed, step) if step else generator(self.task, self.model, self.seed, probed)
                correct = random.binomial(G, _chance(self.skill[step], difficulty))
                rows += [
                    {"step": step, "set": probed, "prompt_id": f"{probed}{i:02d}", "correct": c, "samples": G}
                    for i, c in enumerate(correct)
                ]
        frame = pd.DataFrame(rows)
        return frame.assign(mean=frame["correct"] / G)

    def _training(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return steps.parquet and groups.parquet."""
        random, skill, difficulty = self.random("train"), self.skill, _difficulty("train", PROMPTS)
        delay = self.config()["method"].get("v", 5 if self.family == "grpo_v5" else 1)
        hard: dict[int, int] = {}  # prompt -> the step that stored it
        rows, groups = [], []

        def group(prompt: int, origin: str, version: int, step: int, born: int, used: bool | None = None) -> np.ndarray:
            rewards = (random.random(G) < _chance(skill[version], difficulty[prompt])).astype(float)
            mean = float(rewards.mean())
            old = G if origin != FRESH or (self.family == "repo" and step % 2 == 0) else 0
            groups.append(
                {
                    "step": step,
                    "prompt_id": f"train{prompt:02d}",
                    "origin": origin,
                    "version": version,
                    "generated_step": born,
                    "rewards": rewards.tolist(),
                    "mean": mean,
                    "used": bool(0 < mean < 1 if used is None else used and 0.25 < mean < 1),
                    "replayed": 0 if origin == REEVALUATED else old,
                    "reason": "",
                }
            )
            return rewards

        for step in range(1, self.steps + 1):
            version = (step - 1) // delay * delay
            again = [p for p in sorted(hard) if hard[p] < step][:4] if self.of_bapo and step % 3 == 0 else []
            admitted = [0.25 < group(p, REEVALUATED, step - 1, step, step, True).mean() < 1 for p in again]
            count = BATCH * (2 if self.family == "dapo" and step % 3 else 1)
            chosen = random.choice(PROMPTS, size=count, replace=False)
            means = np.array([group(int(p), FRESH, version, step, step).mean() for p in chosen])
            hard |= {int(p): step for p, m in zip(chosen, means, strict=True) if m <= 0.25}
            x1, x2 = int(((means > 0) & (means < 1)).sum()), sum(admitted)
            x3 = int(min(2, max(0, BATCH - x1 - x2))) if self.family in ("bapo", "bapo_without_x2") else 0
            used = max(1, x1 + x2 + x3) if self.of_bapo else BATCH
            seconds = {f"seconds_{p}": float(s) for p, s in zip(PHASES, random.random(5), strict=True)}
            moved = abs(random.normal(0.02 * (step - version), 0.01))
            rows.append(
                {
                    "step": step,
                    "staleness": step - 1 - version,
                    "reward_mean": float(means.mean()),
                    "groups_fresh": count,
                    "groups_none_correct": int((means == 0).sum()),
                    "groups_all_correct": int((means == 1).sum()),
                    "batch_groups": used,
                    "x1": x1,
                    "x2": x2,
                    "x3": x3,
                    **{f"tv_x{i}": moved * i if n else np.nan for i, n in enumerate((x1, x2, x3), 1)},
                    **{f"k{i}": 1.0 + 0.1 * i if n else np.nan for i, n in enumerate((x1, x2, x3), 1)},
                    **{f"surrogate_x{i}": moved * i * 1.5 if n else np.nan for i, n in enumerate((x1, x2, x3), 1)},
                    **{f"clipped_x{i}": moved * i / 2 if n else np.nan for i, n in enumerate((x1, x2, x3), 1)},
                    **{f"ess_x{i}": 1 / (1 + moved * i) if n else np.nan for i, n in enumerate((x1, x2, x3), 1)},
                    "r_tot": float(means.mean()),
                    "updates": -(-used // 4),
                    "loss": random.normal(0, 0.01),
                    "gradient_norm": abs(random.normal(0.5, 0.1)),
                    "clip_fraction": 0.01,
                    "kl": 0.001 * step,
                    "entropy": abs(random.normal(1 / (1 + 0.05 * step), 0.01)),
                    "response_length": 14.0 + random.normal(0, 0.5),
                    "fresh_rollouts": count * G,
                    "regenerated_rollouts": len(again) * G,
                    "generated_tokens": (count + len(again)) * G * 14,
                    "trained_tokens": used * G * 14,
                    **seconds,
                    "seconds_total": sum(seconds.values()) + 0.25,
                }
            )
        return pd.DataFrame(rows), pd.DataFrame(groups)


def write_data(folder: Path, benchmarks: Sequence[str]) -> None:
    """Write the problem files of a task; one training problem is there twice and stands in a benchmark too."""
    files = []
    for split, count in {"train": PROMPTS, **dict.fromkeys(benchmarks, PROBLEMS)}.items():
        ids = [f"{split}{i:02d}" for i in range(count - 1)] + ["train00"]
        rows = [{"prompt": [{"role": "user", "content": f"what is {i}?"}], "extra_info": {"id": i}} for i in ids]
        write_parquet(folder / f"{split}.parquet", pd.DataFrame(rows), durable=False)
        files.append(f"{split}.parquet")
    write_json(
        folder / SUMMARY,
        {"identity": "synthetic", "problems": {"train": {"even": 30, "odd": 30}}, "files": fingerprints(folder, files)},
    )


def write_simulated(
    home: Path,
    name: str,
    parts: Mapping[tuple[str, str], Sequence[str]],
    seeds: Sequence[int] = (1, 2),
    curves: Sequence[str] = (),
    evaluated: bool = True,
    **extra: Any,
) -> Path:
    """Write a study and its runs under ``home``. parts: (task, model) -> methods. Returns the study's file."""
    cells, bases = [], []
    for (task, model), methods in parts.items():
        weaker = 0.8 if model.endswith("hard") else 0.0
        title, benchmarks = TASKS[task]
        common = {"task": task, "task_title": title, "model": model, "model_title": model.replace("qwen2", "Qwen2")}
        folder = home / task / model
        bits = Run(task, model, "grpo", 0, weaker, steps=1)
        bases.append({**common, "run": str(folder / "base")})
        if not (folder / "base").exists():
            chances = {n: _chance(-weaker, _difficulty(n, PROBLEMS, mean)) for n, (_, mean, *_) in benchmarks.items()}
            samples = {n: b[2] for n, b in benchmarks.items()}
            found = {n: bits.random(n).random((PROBLEMS, samples[n])) < c[:, None] for n, c in chances.items()}
            write_evaluation(folder / "base" / "eval", found)
        if not (home / task / "data").exists():
            write_data(home / task / "data", list(benchmarks))
        for method in methods:
            for seed in seeds:
                run = Run(task, model, method, seed, weaker)
                place = folder / method / f"seed{seed}"
                if not place.exists():
                    run.write(place, evaluated, method in curves)
                cell = {**common, "method": method, "method_title": run.title, "kind": METHODS[run.family][1]}
                cells.append({**cell, "seed": seed, "run": str(place)})
    columns = {task: [[n, title, role] for n, (title, _, _, role) in TASKS[task][1].items()] for task, _ in parts}
    content = {"name": name, "title": name.capitalize(), "scale": "laptop", "note": "Simulated: it shows nothing."}
    content |= {"reference": "grpo", "cells": cells, "bases": bases, "benchmarks": columns, "curves": list(curves)}
    path = home / "studies" / f"{name}.json"
    write_json(path, content | extra, durable=False)
    return path


ALL_OF_TABLE1 = ("grpo", "dapo", "grpo_v5", "repo", "bapo_without_x2", "bapo_without_x3", "bapo")


def write_all(home: Path) -> dict[str, Path]:
    """Write the studies that all tables, figures and claims are made from; returns their files by name."""
    hard, second = f"{MODEL}+hard", f"{MODEL}+base_2"
    budgets = ("grpo", "bapo", "bapo+rollouts", "bapo+updates", "bapo+compute")
    three, maths, countdown = ("grpo", "dapo", "bapo"), ("mathematics", MODEL), ("countdown", MODEL)
    rates = ("grpo", "grpo+rate_4e-4", "bapo", "bapo+rate_4e-4", "bapo+v2")
    table1 = {maths: (*three, "mopps", "remix"), countdown: ALL_OF_TABLE1}
    ablations = ("bapo+v10", "bapo+m1", "bapo+fixed_0_2", "bapo_without_x2", "bapo_without_x3", "bapo")
    filters = ("bapo+gaussian", "bapo+uniform", "bapo")
    tried = ("grpo", "grpo+rate_1e-4", "bapo", "bapo+rate_4e-4", "bapo+v2")
    chosen = {"countdown": {"bapo": ["v2"]}}
    files = (
        write_simulated(home, "table1", table1, curves=three),
        write_simulated(home, "figure5", {maths: (*three, "bapo+mini")}, curves=(*three, "bapo+mini")),
        write_simulated(home, "figure6", {countdown: ablations}, reference="bapo"),
        write_simulated(home, "figure10", {maths: filters}, reference="bapo"),
        write_simulated(home, "figure16", {maths: ("ppo", "ba_ppo")}, curves=("ppo", "ba_ppo"), reference="ppo"),
        write_simulated(home, "regimes", {countdown: budgets, ("countdown", hard): budgets}, (1, 2, 3)),
        write_simulated(home, "bases", {countdown: budgets[:3], ("countdown", second): budgets[:3]}),
        write_simulated(home, "drift", {countdown: rates}),
        write_simulated(home, "tuning", {countdown: tried}, (101, 102), evaluated=False, chosen=chosen),
    )
    return {path.stem: path for path in files}
