"""Countdown's generators, splits, files, sets of the hub and tokenizer."""

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from support.countdown import reachable, solve, solve_chain
from support.paths import SHARED

from bapo import seeds, tasks
from bapo.errors import UserError
from bapo.store.files import read_table, write_parquet
from bapo.tasks import files
from bapo.tasks.countdown import generator as generators
from bapo.tasks.countdown import grammar
from bapo.tasks.countdown import problems as countdown_problems
from bapo.tasks.countdown import task as countdown_task

REAL = SHARED / "data" / "countdown"
SIZES = {"base": 6000, "train": 300, "probe": 64, "cd34": 100, "cd4": 100}
WRITTEN = [split for split in SIZES if split != "base"]  #: by the data job
countdown = tasks.get("countdown")


def real_rows(name: str) -> list[dict]:
    path = REAL / name
    if not path.exists():
        pytest.skip(f"real rows are not beside the checkout: {path}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def configuration(sizes=SIZES, seed=0, prompt="chain", **data):
    generator = {"number_max": 12, "value_max": 60, "target_min": 10, "three_number_share": 0.4, "noise": 0.5}
    defaults = {"source": "generated", "generator": generator if prompt == "chain" else {}, "hub": {}}
    return OmegaConf.create(
        {
            "data": {**defaults, "seed": seed, "prompt": prompt, "split_sizes": dict(sizes), **data},
            "paths": {"data_folder": None},
        }
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A small laptop data set: (folder, counts)."""
    folder = tmp_path_factory.mktemp("countdown")
    return folder, countdown.write_data(configuration(), folder)


def base_documents(config) -> tuple[list[dict], dict]:
    """The base model's documents as (fields, counts)."""
    made, counts = countdown.documents(config.data, seeds.generator(config.data.seed, "countdown", "base"))
    return [vars(document) for document in made], counts


def documents() -> list[dict]:
    return base_documents(configuration())[0]


def parts(identity: str) -> tuple[list[int], int]:
    _, numbers, target = identity.split(":")
    return [int(n) for n in numbers.split("-")], int(target)


# ------------------------------------------------------------------------------------------------ search


def test_search_agrees_with_hand_worked_problems():
    assert solve((44, 19, 35), 98) is not None  # 44 + 19 + 35
    assert solve((3, 3, 8, 8), 24) is None  # only 8 / (3 - 8/3), which needs a fraction
    assert solve((1, 1, 1), 10) is None
    assert solve((24,), 24) == "24"
    assert solve_chain((12, 7, 3), 9, value_max=60) is not None  # 3 * 7 = 21 , 21 - 12 = 9
    assert solve_chain((9, 8, 6), 12, value_max=60) is None  # only 9 * 8 / 6, beyond 60 on the way
    assert solve_chain((9, 8, 6), 12) == "9 * 8 = 72 , 72 / 6 = 12"
    assert solve((9, 8, 6), 12) == "(9 * 8) / 6"


def test_search_solves_every_real_row_and_its_solutions_verify():
    rows = real_rows("countdown_3to4_first4000.jsonl") + real_rows("countdown_3to4_tinyzero_test.jsonl")
    assert len(rows) == 5024
    for row in rows:
        steps = countdown_problems.solve_steps(row["nums"], row["target"])
        assert steps is not None, row
        expression = countdown_problems.to_expression(row["nums"], steps)
        assert grammar.verify_expression(expression, row["nums"], row["target"]).correct, (row, expression)
        assert grammar.verify_chain(countdown_problems.to_chain(steps), row["nums"], row["target"]).correct, row


def test_search_finds_exactly_the_reachable_targets():
    rng = seeds.generator(0, "test search")
    for _ in range(12):
        numbers = rng.integers(1, 13, 4).tolist()
        values = reachable(numbers, 60)
        solved = {t for t in range(61) if solve_chain(numbers, t, 60) is not None}
        assert solved == values


# ------------------------------------------------------------------------------------------------ generators


def test_reduced_chains_stay_within_their_bounds():
    generator = generators.ReducedGenerator(number_max=9, value_max=40, target_min=12)
    for size in (3, 4):
        chains = generator.draw(seeds.generator(0, "test reduced"), 4000, size)
        assert chains.numbers.shape[1] == size and chains.steps.shape[1:] == (size - 1, 4)
        assert 300 < len(chains.targets) < 1500
        assert chains.numbers.min() >= 1 and chains.numbers.max() <= 9
        assert chains.steps[..., 3].min() >= 0 and chains.steps[..., 3].max() <= 40
        assert chains.targets.min() >= 12
        for instance in generators._instances(chains)[:300]:
            text = countdown_problems.to_chain(instance.steps)
            assert grammar.verify_chain(text, instance.numbers, instance.target) == (True, True, "")


def test_reduced_generator_reaches_every_problem_and_no_other():
    generator = generators.ReducedGenerator(number_max=5, value_max=20, target_min=10)
    possible = {
        countdown_problems.problem_id(numbers, target)
        for numbers in itertools.combinations_with_replacement(range(1, 6), 3)
        for target in reachable(numbers, 20)
        if target >= 10
    }
    chains = generator.draw(seeds.generator(0, "test all"), 60_000, 3)
    drawn = {countdown_problems.problem_id(i.numbers, i.target) for i in generators._instances(chains)}
    assert drawn == possible


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"number_mx": 12}, r"data.generator.number_mx: .*number_max"),
        ({"kind": "exact"}, "data.generator.kind=exact"),
        ({"noise": 1.5}, "data.generator.noise=1.5"),
        ({"number_max": 1.5}, "data.generator.number_max=1.5"),
        ({"number_max": 0}, "data.generator.number_max=0"),
        ({"number_max": 61}, "data.generator.*number_max must be at most value_max"),
        ({"target_min": 61}, "data.generator.*target_min must be at most value_max"),
    ],
)
def test_wrong_generator_parameters_are_named(options, named):
    with pytest.raises(UserError, match=named):
        generators.ReducedGenerator.of(configuration(generator=options).data)


# ------------------------------------------------------------------------------------------------ splits


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


def test_vectorised_ownership_equals_the_scalar_one():
    rng = seeds.generator(0, "test owned")
    for size in (3, 4):
        numbers, targets = rng.integers(1, 13, (400, size)), rng.integers(0, 61, 400)
        for split in countdown_problems.SPLITS:
            expected = [
                countdown_problems.owner(n, t) == split for n, t in zip(numbers.tolist(), targets.tolist(), strict=True)
            ]
            assert countdown_problems.owned(numbers, targets, split).tolist() == expected
    assert countdown_problems.owned(np.empty((0, 3), int), np.empty(0, int), "base").tolist() == []


def test_three_number_problems_suffice_for_the_laptop():
    owners = Counter(
        countdown_problems.owner(numbers, target)
        for numbers in itertools.combinations_with_replacement(range(1, 13), 3)
        for target in reachable(numbers, 60)
        if target >= 10
    )
    assert owners == {"base": 1554, "train": 620, "probe": 158, "cd34": 237}  # 2,569 in all
    assert owners["train"] >= 500 and owners["probe"] >= 128 and owners["cd34"] >= 200


def test_splits_are_disjoint_solvable_and_without_repeats(data):
    folder, counts = data
    seen = {}
    for split in ("train", "probe", "cd34", "cd4"):
        problems = files.read_problems(folder / f"{split}.parquet")
        ids = [problem.id for problem in problems]
        assert len(ids) == len(set(ids)) == SIZES[split]
        # the id says what is asked: neither the prompt nor the ground truth hides another problem
        for problem in problems:
            truth = json.loads(problem.ground_truth)
            assert parts(problem.id) == (sorted(truth["numbers"]), truth["target"])
            assert problem.prompt == f"{' '.join(map(str, truth['numbers']))} : {truth['target']} ="
            assert truth["format"] == "chain"
            chain = solve_chain(truth["numbers"], truth["target"], value_max=60)  # solvable within the bounds
            assert countdown.verify(chain, problem.ground_truth).correct, problem
        assert counts[split]["three_numbers"] == (0 if split == "cd4" else SIZES[split] // 2)
        seen[split] = set(ids)
    seen["base"] = {row["id"] for row in documents()}
    for one, other in itertools.combinations(seen, 2):
        assert not seen[one] & seen[other], (one, other)
    # by construction: every problem lies in the one split that owns it, so any size and seed is disjoint too
    for split, ids in seen.items():
        assert {countdown_problems.owner(*parts(identity)) for identity in ids} == {split}


def test_base_documents_are_true_chains_and_half_of_them_miss_their_target():
    rows, counts = base_documents(configuration())
    wrong = 0
    for row in rows:
        numbers, target = parts(row["id"])
        left, right = row["prompt"].split(" : ")
        assert sorted(map(int, left.split())) == numbers and right == f"{target} ="
        verdict = grammar.verify_chain(row["response"], numbers, target)
        assert verdict.correct or verdict.reason == "wrong-value", row
        wrong += not verdict.correct
    assert wrong == counts["noisy"] and (counts["documents"], counts["three_numbers"]) == (6000, 2400)
    # of 3,000 permuted targets a few per cent happen to equal the true one
    assert 2600 < wrong < 3000


def test_noise_is_an_option():
    for noise, low, high in ((0.0, 0, 0), (1.0, 930, 1000)):
        config = configuration({"base": 1000})
        config.data.generator.noise = noise
        assert low <= base_documents(config)[1]["noisy"] <= high


def test_too_many_problems_is_a_clear_error(tmp_path):
    with pytest.raises(UserError, match=r"data.split_sizes.cd34: 250 distinct problems with 3 numbers.*only 237"):
        countdown.write_data(configuration({"cd34": 500}), tmp_path)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ files


def test_files_have_the_schema_of_verl(data):
    import pyarrow.parquet as pq

    folder, _ = data
    rows = pq.read_table(folder / "cd4.parquet").to_pylist()
    for index, row in enumerate(rows):
        truth = json.loads(row["reward_model"]["ground_truth"])
        assert row == {
            "data_source": "countdown",
            "prompt": [{"role": "user", "content": f"{' '.join(map(str, truth['numbers']))} : {truth['target']} ="}],
            "ability": "planning",
            "reward_model": {"style": "rule", "ground_truth": row["reward_model"]["ground_truth"]},
            "extra_info": {
                "split": "cd4",
                "index": index,
                "id": countdown_problems.problem_id(truth["numbers"], truth["target"]),
            },
        }


def test_missing_and_broken_files_are_named(data, tmp_path):
    folder, _ = data
    with pytest.raises(UserError, match="does not exist"):
        files.read_problems(tmp_path / "train.parquet")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes((folder / "train.parquet").read_bytes()[:-100])
    with pytest.raises(UserError, match=r"broken\.parquet is damaged"):
        files.read_problems(broken)
    write_parquet(tmp_path / "columns.parquet", read_table(folder / "train.parquet").drop(columns="extra_info"))
    with pytest.raises(UserError, match="column extra_info is missing"):
        files.read_problems(tmp_path / "columns.parquet")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        countdown.write_data(configuration({"probe": 8}), tmp_path / "file" / "data")


# ------------------------------------------------------------------------------------------------ paper scale


def test_paper_prompts_ask_for_the_last_answer():
    for numbers, target in (((44, 19, 35), 98), ((9, 8, 6), 12)):
        problem = countdown_task.to_problem(numbers, target, "think-answer")
        assert str(list(numbers)) in problem.prompt and f"equals {target}." in problem.prompt
        assert all(tag in problem.prompt for tag in ("<think>", "</think>", "<answer>", "</answer>"))
        solution = solve(numbers, target)
        assert countdown.verify(f"<think>...</think>\n<answer>{solution}</answer>", problem.ground_truth).correct
        assert countdown.verify(solution, problem.ground_truth).reason == "no-answer"


def test_what_is_kept_of_a_response_and_what_a_majority_vote_compares():
    assert countdown.extract("so <answer>12/3*7-4</answer> ...") == "<answer>12/3*7-4</answer>"
    assert countdown.extract("<think><answer>1</answer>") == countdown.extract(r"\boxed{1 + 2}") == ""
    assert countdown.answer("<think>a</think> <answer>12 / 3 * 7</answer>") == "12/3*7"
    assert countdown.answer("12 / 3 = 4 , 4 * 7 = 28") == "12/3=4,4*7=28"  # a chain, as it is
    assert countdown.answer("<think>") is None and countdown.answer(" ") is None


def hub_configuration(folder: Path, hub: dict, sizes: dict):
    config = configuration(sizes, prompt="think-answer", source="hub", hub=hub)
    config.paths.data_folder = str(folder)
    return config


def write_lines(path: Path, rows: list[tuple[list[int], int]]) -> None:
    path.write_text("".join(json.dumps({"nums": nums, "target": target}) + "\n" for nums, target in rows))


def test_held_out_rows_of_a_set_never_repeat_training_problems(tmp_path):
    rows = [([44, 19, 35], 98), ([19, 44, 35], 98), ([63, 95, 96], 64), ([95, 11, 56, 2], 28)]
    held_out = [([35, 44, 19], 98), ([95, 2, 56, 11], 28), ([1, 2, 3], 10), ([2, 95, 56, 11], 29), ([4, 4, 4, 4], 16)]
    write_lines(tmp_path / "Tasks-3to4.jsonl", rows + held_out)
    write_lines(tmp_path / "four.jsonl", [rows[3], held_out[4], ([9, 8, 7, 6], 30)])
    hub = {
        "cd34": {"repository": "someone/Tasks-3to4", "file": "Tasks-3to4.jsonl", "start": 4},
        "cd4": {"repository": "someone/Tasks-4", "file": "four.jsonl"},
        "train": {"repository": "someone/Tasks-3to4", "file": "Tasks-3to4.jsonl", "revision": "abc"},
    }
    config = hub_configuration(tmp_path, hub, {"cd34": 3, "train": 3, "cd4": 1})
    counts = countdown.write_data(config, tmp_path / "out")
    assert counts == {
        "cd34": {"problems": 3, "three_numbers": 1, "duplicates_dropped": 0, "overlaps_dropped": 2},
        "train": {"problems": 3, "three_numbers": 2, "duplicates_dropped": 1, "overlaps_dropped": 0},
        "cd4": {"problems": 1, "three_numbers": 0, "duplicates_dropped": 0, "overlaps_dropped": 2},
    }
    ids = {split: [p.id for p in files.read_problems(tmp_path / f"out/{split}.parquet")] for split in counts}
    assert ids == {
        "train": ["countdown:19-35-44:98", "countdown:63-95-96:64", "countdown:2-11-56-95:28"],
        "cd34": ["countdown:1-2-3:10", "countdown:2-11-56-95:29", "countdown:4-4-4-4:16"],
        "cd4": ["countdown:6-7-8-9:30"],
    }


SET = {"repository": "x/set", "file": "set.jsonl"}


@pytest.mark.parametrize(
    ("hub", "content", "named"),
    [
        ({"train": {"repository": "x/other"}}, "", r"data.hub.train: no file .* which has set.jsonl"),
        ({"train": SET}, '{"nums": [1, 2, 3], "target": 6}\n', r"data.split_sizes.train=2: only 1 usable rows"),
        ({"train": SET}, '{"nums": "1 2", "target": 6}\n', r"set.jsonl line 1: field 'numbers'"),
    ],
)
def test_wrong_sets_are_named(hub, content, named, tmp_path):
    (tmp_path / "set.jsonl").write_text(content)
    with pytest.raises(UserError, match=named):
        countdown.write_data(hub_configuration(tmp_path, hub, {"train": 2}), tmp_path / "out")


def test_real_rows_load_from_a_folder(tmp_path):
    real_rows("countdown_3to4_first4000.jsonl")  # skips where they are not
    first = {"repository": "Jiayi-Pan/Countdown-Tasks-3to4", "file": "countdown_3to4_first4000.jsonl"}
    test = {"repository": "Jiayi-Pan/Countdown-Tasks-3to4", "file": "countdown_3to4_tinyzero_test.jsonl"}
    hub = {"train": first, "cd34": test, "probe": {**test, "start": 500}}
    counts = countdown.write_data(hub_configuration(REAL, hub, {"train": 3999, "cd34": 400, "probe": 256}), tmp_path)
    # the 4,000 rows hold one problem (of three numbers) twice, and one of the test rows is among them
    assert counts["train"] == {"problems": 3999, "three_numbers": 1967, "duplicates_dropped": 1, "overlaps_dropped": 0}
    assert counts["cd34"]["overlaps_dropped"] + counts["probe"]["overlaps_dropped"] <= 1
    ids = [{p.id for p in files.read_problems(tmp_path / f"{split}.parquet")} for split in ("train", "cd34", "probe")]
    assert len(set.union(*ids)) == 3999 + 400 + 256


# ------------------------------------------------------------------------------------------------ tokenizer


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """The tokenizer as built, and as AutoTokenizer reads it from beside a Qwen2 configuration."""
    from transformers import AutoTokenizer, Qwen2Config

    folder = tmp_path_factory.mktemp("checkpoint")
    built = countdown.build_tokenizer(configuration())
    built.save_pretrained(folder)
    Qwen2Config(vocab_size=len(built), hidden_size=64, num_hidden_layers=2).save_pretrained(folder)
    return {"built": built, "loaded": AutoTokenizer.from_pretrained(folder)}


@pytest.mark.parametrize("which", ["built", "loaded"])
def test_tokenizer_takes_one_token_a_word(tokenizers, which):
    tokenizer = tokenizers[which]
    response, prompt = "12 / 3 = 4 , 4 * 7 = 28 , 28 - 4 = 24", "3 4 7 12 : 24 ="
    ids = tokenizer(response)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == response.split()
    assert tokenizer("12/3=4,4*7=28,28-4=24")["input_ids"] == ids
    assert tokenizer(" 12 / 3 = 4 ,\n4 * 7 = 28 , 28 - 4 = 24 ")["input_ids"] == ids
    assert tokenizer.convert_ids_to_tokens(tokenizer(prompt)["input_ids"]) == prompt.split()
    message = [{"role": "user", "content": prompt}]
    for generation_prompt in (False, True):  # the chat template adds nothing
        assert tokenizer.apply_chat_template(message, add_generation_prompt=generation_prompt, tokenize=False) == prompt
    assert len(tokenizer) == 73
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<pad>", 0)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<eos>", 1)
    for number in range(61):
        assert len(tokenizer(str(number))["input_ids"]) == 1
    # what verl asks of a tokenizer beside a Qwen2 model
    assert tokenizer.convert_ids_to_tokens(tokenizer("<|im_end|>")["input_ids"]) == ["<|im_end|>"]
    assert len(tokenizer("\n")["input_ids"]) == 1


@pytest.mark.parametrize("which", ["built", "loaded"])
def test_tokenizer_decodes_to_text_that_the_verifier_accepts(tokenizers, which):
    tokenizer = tokenizers[which]
    rows = documents()[:500]
    for row in rows:
        ids = tokenizer(row["response"])["input_ids"]
        numbers, target = parts(row["id"])
        assert len(ids) + 1 == 6 * (len(numbers) - 1)  # with the end token: 12 or 18
        assert len(tokenizer(row["prompt"])["input_ids"]) == len(numbers) + 3
        text = tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True)
        assert tokenizer(text)["input_ids"] == ids
        verdict = grammar.verify_chain(text, numbers, target)
        assert verdict == grammar.verify_chain(row["response"], numbers, target)
    assert any(grammar.verify_chain(row["response"], *parts(row["id"])).correct for row in rows)


# ------------------------------------------------------------------------------------------------ registry


def test_registry_names_its_tasks():
    assert tasks.table()["countdown"] == "bapo.tasks.countdown.task:Countdown"
    assert tasks.get("countdown") is countdown and countdown.name == "countdown"
    with pytest.raises(UserError, match="task=cuntdown: unknown task; allowed: countdown"):
        tasks.get("cuntdown")


# ---------------------------------------------------------------------------------------------- the easy task


EASY = {"train": 120, "probe": 40, "cd2": 30, "cd3": 30}


def test_easy_problems_are_disjoint_solvable_and_not_the_examples(tmp_path: Path) -> None:
    counts = countdown.write_data(configuration(EASY, prompt="few-shot"), tmp_path)
    assert {split: counts[split]["problems"] for split in EASY} == EASY
    assert counts["train"]["three_numbers"] == 60 and counts["cd2"]["three_numbers"] == 0
    assert counts["cd3"]["three_numbers"] == 30
    seen: set[str] = set()
    for split in EASY:
        problems = files.read_problems(tmp_path / f"{split}.parquet")
        ids = {p.id for p in problems}
        assert len(ids) == len(problems) and not ids & seen and not ids & countdown_problems.SHOWN
        seen |= ids
        for problem in problems:
            numbers, target, form = grammar.from_ground_truth(problem.ground_truth)
            assert form == "expression" and max(numbers) <= 20 and 1 <= target <= 60
            signs = list(itertools.product("+-", repeat=len(numbers) - 1))
            orders = itertools.permutations(numbers)
            written = [
                "".join(map(str, itertools.chain(*zip(o, (*s, ""), strict=True)))) for o in orders for s in signs
            ]
            assert any(countdown.verify(text, problem.ground_truth).correct for text in written), problem.id
            assert (
                problem.prompt.rpartition("Question")[0]
                == countdown_problems.to_few_shot((1, 1), 2).rpartition("Question")[0]
            )


def test_the_examples_are_right_and_a_line_is_graded_strictly() -> None:
    for numbers, target, expression in countdown_problems.EXAMPLES:
        assert grammar.verify_expression(expression, numbers, target).correct
    truth = grammar.to_ground_truth((12, 4, 3), 19, "expression")
    assert countdown.verify(" 12 + 4 + 3\n", truth).correct
    for wrong in (" 12 + 4 + 3 = 19\n", " 12 + 4\n", "The answer is 12 + 4 + 3", ""):
        assert not countdown.verify(wrong, truth).correct


def test_an_easy_split_that_is_too_small_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"data\.split_sizes\.cd2: 5000 distinct problems are wanted but only \d+ could"
    ):
        countdown.write_data(configuration({"cd2": 5000}, prompt="few-shot"), tmp_path)
    with pytest.raises(UserError, match=r"data\.split_sizes\.cd34"):
        countdown.write_data(configuration({"cd34": 5}, prompt="few-shot"), tmp_path)
