"""Reads a step's rows in TransferQueue as groups for the method, and writes the groups of its batch as rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from bapo.algorithm.rollouts import Group, Samples
from bapo.engines.shared.costs import StepCosts
from bapo.engines.verl import images
from bapo.engines.verl.rollout import Submission
from bapo.store.files import Json

#: verl's partition of TransferQueue
TRAIN = "train"
#: a row's key and its tag
Entry = tuple[str, Json]


@dataclass(frozen=True)
class FinishedRows:
    """Holds the finished rows of a group of the running step.

    prompt_id, rewards: as the rows have them; a method may change both in its groups
    tags: of each row, by its key
    """

    prompt_id: str
    rewards: list[float]
    tags: dict[str, Json]


class StepRows:
    """Keeps the rows that the rollout of the running step has written.

    finished: rows of a group, by its ``Samples.rows``
    prompt_tokens: number of tokens, by the id of a prompt
    """

    def __init__(self, dataset: RLHFDataset, tokenizer: PreTrainedTokenizerBase, processor: ProcessorMixin) -> None:
        self.dataset, self.tokenizer, self.processor = dataset, tokenizer, processor
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the rows of the previous step, which verl has removed."""
        self.finished: dict[tuple[str, ...], FinishedRows] = {}
        self.prompt_tokens: dict[str, int] = {}

    # ------------------------------------------------------------------ rows to groups
    def groups(
        self, meta: KVBatchMeta, submission: Submission, step: int, version: int, origin: str, costs: StepCosts
    ) -> list[Group]:
        """Return finished rows as groups, in the order in which their prompts were submitted.

        Args:
            meta: keys and tags of the rows
            submission: what they are responses to
            step, version, origin: of the groups
            costs: gets the verifier's seconds, and the responses that it was too busy to grade

        Raises RuntimeError if a response is missing.
        """
        tags = dict(zip(meta.keys, meta.tags, strict=True))
        prompts, size = submission.prompts, submission.group_size
        order = [key for keys in submission.by_uid(meta.keys).values() for key in keys]
        fields = ["responses", "rollout_log_probs", "rm_scores", "extra_fields"]
        data = tq.kv_batch_get(keys=order, partition_id=TRAIN, select_fields=fields)
        # unbind, because reading a single row of a nested tensor goes through all of them
        responses, logprobs, scores = ([row.numpy() for row in data[field].unbind()] for field in fields[:3])
        groups = []
        for number, prompt in enumerate(prompts.values()):
            rows = slice(number * size, (number + 1) * size)
            keys = order[rows]
            samples = replace(samples_of(responses[rows], logprobs[rows]), rows=tuple(keys))
            rewards = np.array([row.sum() for row in scores[rows]], dtype=np.float32)
            self.finished[samples.rows] = FinishedRows(prompt.id, rewards.tolist(), {k: tags[k] for k in keys})
            self.prompt_tokens[prompt.id] = tags[keys[0]]["prompt_len"]
            groups.append(Group(prompt, rewards, step, version, samples, origin))
        gradings = [e["reward_extra_info"] for e in data["extra_fields"]]
        costs.seconds["reward"] += sum(g["seconds"] for g in gradings)
        costs.overloaded += sum(g["overloaded"] for g in gradings)
        return groups

    # ------------------------------------------------------------------ groups to rows
    def batch(self, groups: list[Group]) -> KVBatchMeta:
        """Return the rows of a batch in the order of the groups, and remove the step's other rows."""
        unused = dict(self.finished)
        tags_of_groups = [self._take_tags(group, unused) for group in groups]
        new_rows = iter(self.put([g for g, tags in zip(groups, tags_of_groups, strict=True) if tags is None]))
        batch: dict[str, Json] = {}
        for group, tags in zip(groups, tags_of_groups, strict=True):
            batch |= dict(islice(new_rows, group.size)) if tags is None else tags
        self.discard([key for rows in self.finished.values() for key in rows.tags if key not in batch])
        return KVBatchMeta(partition_id=TRAIN, keys=list(batch), tags=list(batch.values()))

    def discard(self, keys: list[str]) -> None:
        if keys:
            tq.kv_clear(keys=keys, partition_id=TRAIN)

    @staticmethod
    def _take_tags(group: Group, unused: dict[tuple[str, ...], FinishedRows]) -> dict[str, Json] | None:
        """Take a group's rows out of ``unused`` and return their tags; None unless the rows agree with the group."""
        rows = unused.get(group.samples.rows)
        if rows is None or (rows.prompt_id, rows.rewards) != (group.prompt.id, group.rewards.tolist()):
            return None
        return unused.pop(group.samples.rows).tags

    def put(self, groups: list[Group]) -> list[Entry]:
        """Write new rows for groups, in their order. Few calls are made, as each passes several of Ray's processes."""
        if not groups:
            return []
        template = self._template()
        rows = [row for group in groups for row in self._rows(group, *template)]
        for names in dict.fromkeys(frozenset(row) for _, row in rows):  # only some prompts may have images
            alike = [(entry, row) for entry, row in rows if frozenset(row) == names]
            tq.kv_batch_put(
                keys=[key for (key, _), _ in alike],
                partition_id=TRAIN,
                fields=list_of_dict_to_tensordict([row for _, row in alike]),
                tags=[tag for (_, tag), _ in alike],
            )
        return [entry for entry, _ in rows]

    def _rows(self, group: Group, template: Json, tag: Json) -> Iterator[tuple[Entry, Json]]:
        """Yield new rows of a group. A field that a method does not keep comes from a row of this step, if any."""
        name = uuid.uuid4().hex
        data = self.dataset[group.prompt.row]
        from_data = {field: value for field, value in data.items() if field in template}
        tokens, pictures = images.encode(self.tokenizer, self.processor, data["raw_prompt"])
        prompt = torch.tensor(tokens, dtype=torch.int64)
        vision = images.vision_inputs(self.tokenizer, self.processor, pictures, prompt)
        for i in range(group.size):
            n = int(group.samples.lengths[i])
            response = torch.from_numpy(group.samples.tokens[i, :n].astype(np.int64))
            ids, ones = torch.cat([prompt, response]), torch.ones(n, dtype=torch.int64)
            scores = torch.zeros(n)
            scores[-1] = float(group.rewards[i])
            row = {
                "uid": name,
                "session_id": i,
                "prompts": prompt,
                "responses": response,
                "input_ids": ids,
                "response_mask": ones,
                "loss_mask": ones,
                "rm_scores": scores,
                **images.row_inputs(self.processor, vision, ids),
                "rollout_log_probs": torch.from_numpy(group.samples.logprobs[i, :n].astype(np.float32)),
            }
            description = {
                "prompt_len": len(prompt),
                "response_len": n,
                "seq_len": len(ids),
                "global_steps": group.step,
                "min_global_steps": group.version,
                "max_global_steps": group.version,
            }
            yield (f"{name}_{i}_0", tag | description), template | from_data | row

    def _template(self) -> tuple[Json, Json]:
        """Return (fields, tag) of some row of this step, or the least that verl needs where there is none."""
        if not self.finished:
            return {}, {"status": "success"}
        key, tag = next(iter(next(iter(self.finished.values())).tags.items()))
        row = tq.kv_batch_get(keys=[key], partition_id=TRAIN)[0]
        return {name: row[name] for name in row.keys()}, tag  # noqa: SIM118 (a TensorDict gives rows)


def samples_of(responses: list[np.ndarray], logprobs: list[np.ndarray]) -> Samples:
    """Return responses of different lengths as one padded block. responses, logprobs: one array [L] each."""
    lengths = np.array([len(r) for r in responses], dtype=np.int32)
    tokens = np.zeros((len(responses), int(lengths.max())), dtype=np.int32)
    values = np.zeros(tokens.shape, dtype=np.float32)
    for i, (response, lp) in enumerate(zip(responses, logprobs, strict=True)):
        tokens[i, : lengths[i]], values[i, : lengths[i]] = response, lp
    return Samples(tokens, lengths, values)
