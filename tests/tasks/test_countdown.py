"""Countdown's search, generators, splits, sets of the hub and prompts."""

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from bapo import seeds, tasks
from bapo.errors import UserError
from bapo.tasks import files
from bapo.tasks.countdown import generator as generators
from bapo.tasks.countdown import grammar
from bapo.tasks.countdown import problems as countdown_problems
from bapo.tasks.countdown.problems import solve_steps, to_expression
from bapo.tasks.generated import to_chain

SIZES = {"base": 6000, "train": 300, "probe": 64, "cd34": 100, "cd4": 100}
countdown = tasks.get("countdown")


def configuration(sizes=SIZES, prompt="chain", folder=None, noise=0.5, **data):
    generator = {"number_max": 12, "value_max": 60, "target_min": 10, "three_number_share": 0.4, "noise": noise}
    defaults = {"source": "generated", "generator": generator if prompt == "chain" else {}, "hub": {}, "seed": 0}
    data = {**defaults, "prompt": prompt, "split_sizes": dict(sizes), **data}
    return OmegaConf.create({"data": data, "paths": {"data_folder": folder and str(folder)}})


def base_documents(**options) -> tuple[list[dict], dict]:
    """The base model's documents as (fields, counts)."""
    made, counts = countdown.documents(configuration(**options).data, seeds.generator(0, "countdown", "base"))
    return [vars(document) for document in made], counts


def written(config, folder: Path) -> dict[str, list]:
    counts = countdown.write_data(config, folder)
    return {split: files.read_problems(folder / f"{split}.parquet") for split in counts}


def parts(identity: str) -> tuple[list[int], int]:
    _, numbers, target = identity.split(":")
    return [int(n) for n in numbers.split("-")], int(target)


def solve(numbers: Sequence[int], target: int) -> str | None:
    """Return an expression that solves the problem, or None if the search finds none."""
    steps = solve_steps(numbers, target)
    return None if steps is None else to_expression(numbers, steps)


def solve_chain(numbers: Sequence[int], target: int, value_max: int | None = None) -> str | None:
    """Return a chain that solves the problem with results in 0..value_max, or None if there is none."""
    steps = solve_steps(numbers, target, value_max)
    return None if steps is None else to_chain(steps)


def reachable(numbers: Sequence[int], value_max: int) -> set[int]:
    """Return every value that some chain makes of all ``numbers`` with results in 0..value_max."""
    if len(numbers) == 1:
        return set(numbers)
    values: set[int] = set()
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers):
            if i != j:
                rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
                results = [a + b, a - b, a * b, *([a // b] if b and a % b == 0 else [])]
                for result in {r for r in results if 0 <= r <= value_max}:
                    values |= reachable((*rest, result), value_max)
    return values


def test_search_agrees_with_hand_worked_problems():
    assert solve((44, 19, 35), 98) is not None  # 44 + 19 + 35
    assert solve((3, 3, 8, 8), 24) is None  # only 8 / (3 - 8/3), which needs a fraction
    assert solve((1, 1, 1), 10) is None
    assert solve((24,), 24) == "24"
    assert solve_chain((12, 7, 3), 9, value_max=60) is not None  # 3 * 7 = 21 , 21 - 12 = 9
    assert solve_chain((9, 8, 6), 12, value_max=60) is None  # only 9 * 8 / 6, beyond 60 on the way
    assert solve_chain((9, 8, 6), 12) == "9 * 8 = 72 , 72 / 6 = 12"
    assert solve((9, 8, 6), 12) == "(9 * 8) / 6"


def test_search_finds_exactly_the_reachable_targets():
    rng = seeds.generator(0, "test search")
    for _ in range(12):
        numbers = rng.integers(1, 13, 4).tolist()
        assert {t for t in range(61) if solve_chain(numbers, t, 60) is not None} == reachable(numbers, 60)


def test_reduced_generator_reaches_every_problem_and_no_other():
    generator = generators.ReducedGenerator(number_max=5, value_max=20, target_min=10)
    possible = {
        countdown_problems.problem_id(numbers, target)
        for numbers in itertools.combinations_with_replacement(range(1, 6), 3)
        for target in reachable(numbers, 20)
        if target >= 10
    }
    chains = generator.draw(seeds.generator(0, "test all"), 60_000, 3)
    assert chains.steps[..., 3].min() >= 0 and chains.steps[..., 3].max() <= 20
    assert {countdown_problems.problem_id(i.numbers, i.target) for i in generators._instances(chains)} == possible


def test_owner_depends_on_the_multiset_and_target_alone():
    for numbers, target in [((3, 4, 7, 12), 24), ((5, 5, 9), 19), ((1, 2, 3), 10)]:
        owners = {countdown_problems.owner(p, target) for p in itertools.permutations(numbers)}
        assert len(owners) == 1
    assert countdown_problems.problem_id((12, 3, 7, 4), 24) == "countdown:3-4-7-12:24"
    assert all(sum(shares.values()) == pytest.approx(1) for shares in countdown_problems.SHARES.values())
    # fixed for ever: another hash would move test problems into the training of older checkpoints
    drawn = [countdown_problems.owner((a, b, a + b), 10 + a) for a in range(1, 7) for b in range(1, 7)]
    assert Counter(drawn) == {"base": 25, "train": 8, "probe": 3}
    assert countdown_problems.owner((1, 2, 3), 10) == "probe"
    numbers, targets = np.array([[3, 2, 1], [12, 7, 1]]), np.array([10, 60])
    assert countdown_problems.owned(numbers, targets, "probe").tolist() == [True, False]
    assert countdown_problems.owned(numbers[:0], targets[:0], "base").tolist() == []


def test_splits_are_disjoint_solvable_and_without_repeats(tmp_path):
    seen = {"base": {row["id"] for row in base_documents()[0]}}
    for split, problems in written(configuration(), tmp_path).items():
        # the id says what is asked: neither the prompt nor the ground truth hides another problem
        for problem in problems:
            truth = json.loads(problem.ground_truth)
            assert parts(problem.id) == (sorted(truth["numbers"]), truth["target"])
            assert problem.prompt == f"{' '.join(map(str, truth['numbers']))} : {truth['target']} ="
            assert truth["format"] == "chain"
            chain = solve_chain(truth["numbers"], truth["target"], value_max=60)  # solvable within the bounds
            assert countdown.verify(chain, problem.ground_truth).correct, problem
        assert sum(len(parts(p.id)[0]) == 3 for p in problems) == (0 if split == "cd4" else SIZES[split] // 2)
        seen[split] = {problem.id for problem in problems}
        assert len(seen[split]) == len(problems) == SIZES[split]
    # by construction: every problem lies in the one split that owns it, so any size and seed is disjoint too
    for split, ids in seen.items():
        assert {countdown_problems.owner(tuple(numbers), target) for numbers, target in map(parts, ids)} == {split}


@pytest.mark.parametrize(("noise", "low", "high"), [(0.0, 0, 0), (0.5, 2600, 3000), (1.0, 5580, 6000)])
def test_base_documents_are_true_chains_and_a_share_of_them_misses_its_target(noise, low, high):
    """Of permuted targets a few per cent happen to equal the true one."""
    rows, counts = base_documents(noise=noise)
    wrong = 0
    for row in rows:
        numbers, target = parts(row["id"])
        left, right = row["prompt"].split(" : ")
        assert sorted(map(int, left.split())) == numbers and right == f"{target} ="
        verdict = grammar.verify_chain(row["response"], numbers, target)
        assert verdict.correct or verdict.reason == "wrong-value", row
        wrong += not verdict.correct
    assert low <= wrong <= high and wrong == counts["noisy"]
    assert (counts["documents"], counts["three_numbers"]) == (6000, 2400)


def hub_configuration(folder: Path, hub: dict, sizes: dict):
    return configuration(sizes, prompt="think-answer", source="hub", hub=hub, folder=folder)


def test_held_out_rows_of_a_set_never_repeat_training_problems(tmp_path):
    rows = [([44, 19, 35], 98), ([19, 44, 35], 98), ([63, 95, 96], 64), ([95, 11, 56, 2], 28)]
    held_out = [([35, 44, 19], 98), ([95, 2, 56, 11], 28), ([1, 2, 3], 10), ([2, 95, 56, 11], 29), ([4, 4, 4, 4], 16)]
    for file, pairs in (("3to4", rows + held_out), ("four", [rows[3], held_out[4], ([9, 8, 7, 6], 30)])):
        text = "".join(json.dumps({"nums": nums, "target": target}) + "\n" for nums, target in pairs)
        (tmp_path / f"{file}.jsonl").write_text(text)
    hub = {
        "cd34": {"repository": "someone/Tasks-3to4", "file": "3to4.jsonl", "start": 4},
        "cd4": {"repository": "someone/Tasks-4", "file": "four.jsonl"},
        "train": {"repository": "someone/Tasks-3to4", "file": "3to4.jsonl", "revision": "abc"},
    }
    config = hub_configuration(tmp_path, hub, {"cd34": 3, "train": 3, "cd4": 1})
    counts = countdown.write_data(config, tmp_path / "out")
    assert counts == {
        "cd34": {"problems": 3, "three_numbers": 1, "duplicates_dropped": 0, "overlaps_dropped": 2},
        "train": {"problems": 3, "three_numbers": 2, "duplicates_dropped": 1, "overlaps_dropped": 0},
        "cd4": {"problems": 1, "three_numbers": 0, "duplicates_dropped": 0, "overlaps_dropped": 2},
    }
    report = json.loads((tmp_path / "out/cleaning.json").read_text())
    assert report["rows"] == {"cd34": 5, "train": 4, "cd4": 3}
    assert report["problems"] == {"cd34": 3, "train": 3, "cd4": 1}
    ids = {split: [p.id for p in files.read_problems(tmp_path / f"out/{split}.parquet")] for split in counts}
    assert ids == {
        "train": ["countdown:19-35-44:98", "countdown:63-95-96:64", "countdown:2-11-56-95:28"],
        "cd34": ["countdown:1-2-3:10", "countdown:2-11-56-95:29", "countdown:4-4-4-4:16"],
        "cd4": ["countdown:6-7-8-9:30"],
    }


@pytest.mark.parametrize(
    ("content", "named"),
    [('{"nums": [1, 2, 3], "target": 6}\n', "train=2: only 1"), ('{"nums": "1 2", "target": 6}\n', "line 1.numbers")],
)
def test_wrong_sets_are_named(content, named, tmp_path):
    (tmp_path / "set.jsonl").write_text(content)
    hub = {"train": {"repository": "x/set", "file": "set.jsonl"}}
    with pytest.raises(UserError, match=named):
        countdown.write_data(hub_configuration(tmp_path, hub, {"train": 2}), tmp_path / "out")


def test_easy_problems_are_disjoint_solvable_and_not_the_examples(tmp_path: Path) -> None:
    sizes = {"train": 120, "probe": 40, "cd2": 30, "cd3": 30}
    head = countdown_problems.to_few_shot((1, 1), 2).rpartition("Question")[0]
    seen: set[str] = set()
    for split, problems in written(configuration(sizes, prompt="few-shot"), tmp_path).items():
        ids = {p.id for p in problems}
        assert len(ids) == sizes[split] and not ids & seen and not ids & countdown_problems.SHOWN
        seen |= ids
        threes = {"train": 60, "probe": 20, "cd2": 0, "cd3": 30}[split]
        assert sum(len(parts(p.id)[0]) == 3 for p in problems) == threes
        for problem in problems:
            truth = grammar.from_ground_truth(problem.ground_truth)
            numbers = truth.numbers
            assert truth.format == "expression" and max(numbers) <= 20 and 1 <= truth.target <= 60
            signs = itertools.product("+-", repeat=len(numbers) - 1)
            texts = [
                "".join(map(str, itertools.chain(*zip(order, (*s, ""), strict=True))))
                for order, s in itertools.product(itertools.permutations(numbers), signs)
            ]
            assert any(countdown.verify(text, problem.ground_truth).correct for text in texts), problem.id
            assert problem.prompt.rpartition("Question")[0] == head


def test_the_examples_are_right_and_a_line_is_graded_strictly() -> None:
    for numbers, target, expression in countdown_problems.EXAMPLES:
        assert grammar.verify_expression(expression, numbers, target).correct
    truth = grammar.to_ground_truth((12, 4, 3), 19, "expression")
    assert countdown.verify(" 12 + 4 + 3\n", truth).correct
    for wrong in (" 12 + 4 + 3 = 19\n", " 12 + 4\n", "The answer is 12 + 4 + 3", ""):
        assert not countdown.verify(wrong, truth).correct
