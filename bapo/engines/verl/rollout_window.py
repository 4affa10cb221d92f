"""The rollouts of a window: of the running step, and of coming steps whose rollout policy is the same."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transfer_queue as tq
from safetensors.torch import load_file, save_file
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from bapo.algorithm.rollouts import Prompt
from bapo.engines.verl.rollout import PromptSource, Submission
from bapo.engines.verl.transfer_rows import TRAIN, Entry
from bapo.store.files import Json, read_json, write_text


@dataclass(frozen=True)
class StepRollout:
    """Holds the finished rollout of one step.

    submission: the prompts that its rows answer
    entries: keys and tags of the rows, which lie in TransferQueue
    seconds: this step's share of the window's time, by its tokens
    passed: seconds that this step waited: for the whole window in its first step, 0 in the others
    """

    submission: Submission
    entries: list[Entry]
    seconds: float
    passed: float

    @property
    def meta(self) -> KVBatchMeta:
        keys, tags = map(list, zip(*self.entries, strict=True))
        return KVBatchMeta(partition_id=TRAIN, keys=keys, tags=tags)


class RolloutWindow:
    """Submits the rollouts of one step or of several, waits for all of them, and hands them out step by step."""

    def __init__(
        self,
        source: PromptSource,
        submit: Callable[[TensorDict], object],
        collect: Callable[[int, str, int], tuple[KVBatchMeta, Json]],
    ) -> None:
        """source, submit, collect: as in ``VerlSetup``."""
        self.source, self._submit, self._collect = source, submit, collect
        self.under_way: dict[int, Submission] = {}
        self.finished: dict[int, StepRollout] = {}
        self._start = 0.0

    def __contains__(self, step: int) -> bool:
        return step in self.finished

    def submit(self, prompts: Mapping[int, list[Prompt]], group_size: int, budget: int | None) -> None:
        """Submit prompts to the rollout engine.

        Args:
            prompts: by step
            group_size: responses to each
            budget: tokens after which a response is cut off; None: no limit
        """
        self._start = time.perf_counter()
        for step, step_prompts in prompts.items():
            rows, self.under_way[step] = self.source.batch(step_prompts, group_size, step, ("rollout",), budget)
            self._submit(rows)

    def take(self, step: int, prompts: list[Prompt]) -> StepRollout:
        """Return the rollout of a step, once all rollouts under way have finished.

        Raises RuntimeError if its prompts are not those that the step has drawn.
        """
        if self.under_way:
            self._wait(step)
        rollout = self.finished.pop(step)
        if [p.id for p in rollout.submission.prompts.values()] != [p.id for p in prompts]:
            text = "the method draws prompts while it builds a batch; leave verl.rollout_window out"
            raise RuntimeError(f"step {step}: {text}")
        return rollout

    def _wait(self, step: int) -> None:
        """Wait for the rollouts under way. Raises RuntimeError for a missing response, before any checkpoint has it."""
        count = sum(len(submission.prompts) for submission in self.under_way.values())
        meta, _ = self._collect(step, TRAIN, count)
        passed = time.perf_counter() - self._start
        step_of = {uid: s for s, submission in self.under_way.items() for uid in submission.prompts}
        entries: dict[int, list[Entry]] = {s: [] for s in self.under_way}
        for key, tag in zip(meta.keys, meta.tags, strict=True):
            entries[step_of[key.split("_")[0]]].append((key, tag))
        for s, submission in self.under_way.items():
            submission.by_uid([key for key, _ in entries[s]])
        tokens = {s: sum(tag["response_len"] for _, tag in rows) for s, rows in entries.items()}
        for s, submission in self.under_way.items():
            share = passed * tokens[s] / sum(tokens.values())
            self.finished[s] = StepRollout(submission, entries[s], share, passed if s == step else 0.0)
        self.under_way = {}

    # ------------------------------------------------------------------ checkpoints
    def save(self, path: Path) -> None:
        """Write the rollouts of the coming steps with their rows; without any, write nothing."""
        entries = [entry for rollout in self.finished.values() for entry in rollout.entries]
        if not entries:
            return
        steps = {}
        for step, r in self.finished.items():
            ids = {uid: prompt.id for uid, prompt in r.submission.prompts.items()}
            steps[step] = (ids, r.submission.group_size, r.entries, r.seconds)
        rows = tq.kv_batch_get(keys=[key for key, _ in entries], partition_id=TRAIN)
        fields = [{name: row[name] for name in row.keys()} for row in rows]  # noqa: SIM118 (a TensorDict gives rows)
        tensors, shapes = dict[str, torch.Tensor](), dict[str, list[list[int]]]()
        for name in [n for n, value in fields[0].items() if isinstance(value, torch.Tensor)]:
            values = [row.pop(name) for row in fields]
            tensors[name] = torch.cat([value.reshape(-1) for value in values])
            shapes[name] = [list(value.shape) for value in values]
        save_file(tensors, path)
        text = json.dumps({"steps": steps, "shapes": shapes, "rows": fields}, default=lambda value: value.tolist())
        write_text(path.with_suffix(".json"), text)

    def load(self, path: Path) -> None:
        """Read what :meth:`save` wrote, and put the rows into TransferQueue."""
        if not path.exists():
            return
        saved, tensors = read_json(path.with_suffix(".json")), load_file(path)
        for name, shapes in saved["shapes"].items():
            values = tensors[name].split([math.prod(shape) for shape in shapes])
            for row, value, shape in zip(saved["rows"], values, shapes, strict=True):
                row[name] = value.reshape(shape)
        for step, (ids, size, entries, seconds) in saved["steps"].items():
            submission = Submission({uid: self.source.by_id[name] for uid, name in ids.items()}, size)
            self.finished[int(step)] = StepRollout(submission, [(key, tag) for key, tag in entries], seconds, 0.0)
        keys, tags = map(list, zip(*(e for r in self.finished.values() for e in r.entries), strict=True))
        tq.kv_batch_put(keys=keys, partition_id=TRAIN, fields=list_of_dict_to_tensordict(saved["rows"]), tags=tags)
