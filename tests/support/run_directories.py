"""Small synthetic run directories in the contract of ``bapo.store.runs``, for tests of the analysis only.

No model is trained: every prompt has a difficulty, a policy has one skill that grows with the step, and rewards are
coin flips. Every manifest says ``"synthetic": true``, every prompt id begins with ``synthetic-``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from bapo.store.files import TABLES, fingerprints, write_json, write_parquet

G = 8
METHODS = {  # method: (title, type, final skill, rollout batches a step)
    "grpo": ("+GRPO", "on", 1.00, 1.0),
    "dapo": ("+DAPO", "on", 1.15, 2.2),
    "grpo_v5": ("+GRPO (v = 5)", "off", 0.90, 1.0),
    "repo": ("+RePO", "off", 0.97, 1.0),
    "bapo_without_x2": ("+BAPO w/o X2 (Ours)", "off", 0.85, 1.0),
    "bapo_without_x3": ("+BAPO w/o X3 (Ours)", "off", 0.92, 1.2),
    "bapo": ("+BAPO (Ours)", "off", 0.95, 1.2),
}
#: the methods of other studies than Table 1's usual rows
OTHERS = {
    "mopps": ("+MoPPS", "on", 1.02, 1.0),
    "remix": ("+Remix-GRPO", "off", 0.98, 1.0),
    "bapo+v10": ("+BAPO, v = 10", "off", 0.93, 1.2),
    "bapo+m1": ("+BAPO, m = 1", "off", 0.96, 1.2),
    "bapo+fixed_0_2": ("+BAPO, c2 = 0, c3 = 0.25", "off", 0.9, 1.2),
    "bapo+gaussian": ("+BAPO, Gaussian filter", "off", 0.9, 1.2),
    "bapo+uniform": ("+BAPO, uniform filter", "off", 0.88, 1.2),
}
CURVES = ("grpo", "dapo", "bapo")  # methods whose kept checkpoints are all evaluated
BENCHMARKS = {"cd34": ("CD-34", 1.6), "cd4": ("CD-4", 2.4)}  # name: (title, mean difficulty[, the paper's name])


def _generator(*key: object) -> np.random.Generator:
    return np.random.default_rng([sum(ord(c) * 31**i for i, c in enumerate(str(k))) % 2**32 for k in key])


def _ids(kind: str, count: int) -> list[str]:
    return [f"synthetic-{kind}-{i:04d}" for i in range(count)]


def _chance(skill: np.ndarray | float, difficulty: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(difficulty - skill))


def _difficulty(kind: str, count: int, mean: float = 1.8) -> np.ndarray:
    return _generator("difficulty", kind).normal(mean, 1.8, count)


def write_evaluation(
    folder: Path,
    skill: float,
    seed: object,
    problems: int = 40,
    samples: int = 8,
    benchmarks: Mapping[str, tuple[Any, ...]] = BENCHMARKS,
) -> None:
    """eval/: one parquet a benchmark and the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, (_, mean, *_) in benchmarks.items():
        chance = _chance(skill, _difficulty(name, problems, mean))
        correct = (
            _generator("eval", folder.parent.parent.name, seed, name).random((problems, samples)) < chance[:, None]
        )
        frame = pd.DataFrame(
            {
                "problem_id": np.repeat(_ids(name, problems), samples),
                "sample": np.tile(np.arange(samples), problems),
                "correct": correct.ravel(),
                "parsed": True,
                "reason": "",
                "tokens": 12,
                "seed": 1234,
                "response": "synthetic",
            }
        )
        write_parquet(folder / f"{name}.parquet", frame)
        found[name] = {"accuracy": float(correct.mean()), "problems": problems, "samples": samples}
    files = fingerprints(folder, [f"{name}.parquet" for name in benchmarks])
    write_json(folder / "summary.json", {"identity": "synthetic", "benchmarks": found, "files": files})


def write_curve(
    folder: Path,
    skill: np.ndarray,
    seed: object,
    problems: int = 40,
    samples: int = 8,
    benchmarks: Mapping[str, tuple[Any, ...]] = BENCHMARKS,
) -> None:
    """curve/: the correct samples of each problem at step 0 and four more, on the benchmarks and the split "probe"."""
    folder.mkdir(parents=True, exist_ok=True)
    last = len(skill) - 1
    steps = sorted({round(last * i / 4) for i in range(5)})
    names = {**{name: mean for name, (_, mean, *_) in benchmarks.items()}, "probe": 1.8}
    for name, mean in names.items():
        difficulty = _difficulty(name, problems, mean)
        method = folder.parent.parent.name
        write_parquet(
            folder / f"{name}.parquet",
            pd.concat(
                [
                    pd.DataFrame(
                        {
                            "step": step,
                            "problem_id": _ids(name, problems),
                            "samples": samples,
                            "correct": _generator("curve", name, step, *((method, seed) if step else ())).binomial(
                                samples, _chance(skill[step], difficulty)
                            ),
                        }
                    )
                    for step in steps
                ]
            ),
        )
    files = fingerprints(folder, [f"{name}.parquet" for name in names])
    write_json(
        folder / "summary.json", {"identity": "synthetic", "steps": steps, "validation": "probe", "files": files}
    )


def write_run(
    folder: Path,
    method: str,
    seed: int,
    steps: int = 20,
    batch: int = 16,
    prompts: int = 200,
    probed: int = 60,
    **evaluation: Any,
) -> None:
    """One finished training run with its evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    _, _, final, batches = (METHODS | OTHERS)[method]
    final += _generator("seed", method, seed).normal(0, 0.08)
    skill = final * (1 - np.exp(-3 * np.arange(steps + 1) / steps)) / (1 - np.exp(-3))
    steps_frame, groups = _training(method, seed, skill, batch, prompts, batches)
    write_parquet(folder / "steps.parquet", steps_frame)
    write_parquet(folder / "groups.parquet", groups)
    write_parquet(folder / "probe.parquet", _probe(seed, method, skill, probed))
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed, "train": {"batch_size": batch, "group_size": G}}))
    write_json(folder / "manifest.json", {"identity": "synthetic", "synthetic": True, "seed": seed})
    fresh, again = int(steps_frame.fresh_rollouts.sum()), int(steps_frame.regenerated_rollouts.sum())
    totals = {
        "rollouts": fresh + again,
        "fresh_rollouts": fresh,
        "regenerated_rollouts": again,
        "generated_tokens": int(steps_frame.generated_tokens.sum()),
        "seconds": float(steps_frame.seconds_total.sum()),
    }
    summary = {"identity": "synthetic", "steps": steps, "totals": totals, "files": fingerprints(folder, TABLES)}
    write_evaluation(folder / "eval", float(skill[-1]), seed, **evaluation)
    if method in CURVES:
        write_curve(folder / "curve", skill, seed, **evaluation)
    write_json(folder / "summary.json", summary)


def _training(
    method: str, seed: int, skill: np.ndarray, batch: int, prompts: int, batches: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    random, difficulty = _generator("train", method, seed), _difficulty("train", prompts)
    delay = 5 if method.startswith("bapo") or method == "grpo_v5" else 1
    rows, groups = [], []
    for step in range(1, len(skill)):
        version = (step // delay) * delay if delay > 1 else step - 1
        count = batch if method != "dapo" else batch * int(random.integers(1, 4 if batches > 1 else 2))
        chosen = random.choice(prompts, size=min(count, prompts), replace=False)
        chance = _chance(skill[min(version, len(skill) - 1)], difficulty[chosen])
        rewards = (random.random((len(chosen), G)) < chance[:, None]).astype(float)
        mean = rewards.mean(axis=1)
        x1 = int(((mean > 0) & (mean < 1)).sum())
        again = batch // 2 if method in ("bapo", "bapo_without_x3") and step % 5 == 0 else 0
        x2 = int(random.binomial(again, 0.3)) if again else 0
        x3 = int(min(batch - x1 - x2, random.integers(1, 5))) if method in ("bapo", "bapo_without_x2") else 0
        used = x1 + x2 + max(0, x3) if method.startswith("bapo") else min(batch, len(chosen))
        seconds = dict(zip(("rollout", "regenerate", "reward", "update", "probe"), random.random(5) / 10, strict=True))
        rows.append(
            {
                "step": step,
                "policy_version": step - 1,
                "rollout_version": version,
                "staleness": step - 1 - version,
                "reward_mean": mean.mean(),
                "groups_fresh": len(chosen),
                "groups_none_correct": int((mean == 0).sum()),
                "groups_all_correct": int((mean == 1).sum()),
                "batch_groups": used,
                "x1": x1,
                "x2": x2,
                "x3": max(0, x3),
                "generation_batches": len(chosen) // batch,
                "reevaluated_prompts": again,
                "c2": 0.2,
                "c3": 0.325,
                "r_tot": mean.mean(),
                "bad_buffer": 8,
                "high_buffer": 4,
                "updates": used // 4,
                "loss": random.normal(0, 0.01),
                "gradient_norm": 0.5,
                "clip_fraction": 0.01,
                "kl": 0.001 * step,
                "entropy": 1 / (1 + 0.02 * step),
                "response_length": 14.0,
                "fresh_rollouts": len(chosen) * G,
                "regenerated_rollouts": again * G,
                "generated_tokens": (len(chosen) + again) * G * 14,
                "trained_tokens": used * G * 14,
                **{f"seconds_{k}": v for k, v in seconds.items()},
                "seconds_total": sum(seconds.values()),
            }
        )
        groups += [
            {
                "step": step,
                "prompt_id": f"synthetic-train-{i:04d}",
                "origin": "fresh",
                "version": version,
                "generated_step": step,
                "rewards": r.tolist(),
                "mean": r.mean(),
                "used": 0 < r.mean() < 1,
                "reason": "",
            }
            for i, r in zip(chosen, rewards, strict=True)
        ]
    return pd.DataFrame(rows), pd.DataFrame(groups)


def _probe(seed: int, method: str, skill: np.ndarray, probed: int) -> pd.DataFrame:
    """At step 0 all methods of a seed see the same samples of the base model, as real runs do."""
    parts = []
    last = len(skill) - 1
    for probe_set in ("train", "probe"):
        difficulty = _difficulty(probe_set, probed)
        for step in sorted({round(last * i / 4) for i in range(5)}):
            random = _generator("probe", probe_set, step, seed, method if step else "base")
            correct = random.binomial(G, _chance(skill[step], difficulty))
            parts.append(
                pd.DataFrame(
                    {
                        "step": step,
                        "set": probe_set,
                        "prompt_id": _ids(probe_set, probed),
                        "correct": correct,
                        "samples": G,
                        "mean": correct / G,
                    }
                )
            )
    return pd.concat(parts, ignore_index=True)


def write_study(
    root: Path,
    methods: Sequence[str] = tuple(METHODS),
    seeds: Sequence[int] = (1, 2, 3),
    model: str = "synthetic-112k",
    scale: str = "laptop",
    steps: int = 20,
    extra: Mapping[str, Any] | None = None,
    task: str = "countdown",
    task_title: str = "Countdown",
    **sizes: Any,
) -> Path:
    """A study of one task and model under ``root``; returns the study file.

    sizes: problems, samples, batch, probed, benchmarks.
    """
    place = root / "results" / scale / task / model
    evaluation = {k: v for k, v in sizes.items() if k in ("problems", "samples", "benchmarks")}
    write_evaluation(place / "base" / "eval", 0.0, "base", **evaluation)
    cells = []
    for method in methods:
        title, kind = (METHODS | OTHERS)[method][:2]
        for seed in seeds:
            folder = place / method / f"seed{seed}"
            write_run(folder, method, seed, steps=steps, **sizes)
            cells.append(
                {
                    "task": task,
                    "task_title": task_title,
                    "model": model,
                    "model_title": "Synthetic 112k",
                    "method": method,
                    "method_title": title,
                    "kind": kind,
                    "seed": seed,
                    "run": str(folder),
                }
            )
    study = {
        "scale": scale,
        "note": "Synthetic numbers for tests: they show nothing.",
        "cells": cells,
        "bases": [{"task": task, "model": model, "model_title": "Synthetic 112k", "run": str(place / "base")}],
        "benchmarks": {
            task: [[name, title, *role] for name, (title, _, *role) in sizes.get("benchmarks", BENCHMARKS).items()]
        },
        "curves": [m for m in methods if m in CURVES],
        **(extra or {}),
    }
    path = root / "study.json"
    path.write_text(json.dumps(study, indent=1))
    return path
