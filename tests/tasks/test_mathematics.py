"""The generated mathematics: problems, splits, documents, grading, tokenizer and settings."""

import json
import random
import re
from collections import Counter
from fractions import Fraction

import pytest
from omegaconf import OmegaConf

from bapo import seeds, tasks
from bapo.experiments import compose as configuration
from bapo.graders.verdict import NO_ANSWER, WRONG, Verdict
from bapo.tasks import files
from bapo.tasks.mathematics import generator as generators
from bapo.tasks.mathematics import task as sums
from bapo.tasks.mathematics.generator import Operation
from bapo.tasks.real import number_truth

SIZES = {"base": 3000, "train": 300, "probe": 70} | dict.fromkeys(generators.BENCHMARKS, 60)
GENERATOR = {"value_max": 64, "answer_min": 2, "noise": 0.25, "slip_max": 9}
mathematics = tasks.get("mathematics")
ALL_TIERS = sorted({tier for tiers in generators.TIERS.values() for tier in tiers})


def configured(**data):
    defaults = {"source": "generated", "prompt": "chain", "generator": GENERATOR, "hub": {}, "seed": 0}
    return OmegaConf.create({"data": {**defaults, "split_sizes": SIZES, **data}, "paths": {"data_folder": None}})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """split -> problems, of a small data set."""
    folder = tmp_path_factory.mktemp("mathematics")
    return {s: files.read_problems(folder / f"{s}.parquet") for s in mathematics.write_data(configured(), folder)}


def base_documents(**data) -> tuple[list[dict], dict]:
    """The base model's documents as (fields, counts)."""
    made, counts = mathematics.documents(configured(**data).data, seeds.generator(0, "mathematics", "base"))
    return [vars(document) for document in made], counts


def drawn(count: int, **options):
    """``count`` problems of every tier as (tier, instance)."""
    generator, draws = generators.Generator(**GENERATOR | options), generators.Draws(seeds.generator(0, "test draw"))
    top = generator.value_max
    for tier in ALL_TIERS:
        for _ in range(count):
            answer = generator.answer_min + draws.below(top - generator.answer_min + 1)
            yield tier, generator.draw(draws, tier, answer)


def value(text: str, x: int = 0) -> Fraction:
    """Arithmetic by Python itself and exact fractions: it shares nothing with the generator."""
    return Fraction(eval(re.sub("[0-9]+", r"Fraction(\g<0>)", text), {"Fraction": Fraction, "x": Fraction(x)}))


def holds(prompt: str, answer: int) -> bool:
    """Whether ``answer`` is right, from the text of the prompt alone."""
    if not prompt.endswith(" , x ="):
        return value(prompt.removesuffix("=")) == answer
    left, right = prompt.removesuffix(" , x =").split(" = ")
    return value(left, answer) == value(right)


@pytest.mark.parametrize(
    ("term", "text", "name"),
    [
        (Operation(Operation(7, "+", 3), "*", 4), "( 7 + 3 ) * 4", "((3+7)*4)"),
        (Operation(4, "*", Operation(3, "+", 7)), "4 * ( 3 + 7 )", "((3+7)*4)"),
        (Operation(2, "+", Operation(3, "*", 4)), "2 + 3 * 4", "((3*4)+2)"),
        (Operation(9, "-", Operation(4, "-", 3)), "9 - ( 4 - 3 )", "(9-(4-3))"),
        (Operation(Operation(9, "-", 4), "-", 3), "9 - 4 - 3", "((9-4)-3)"),
        (Operation(48, "/", Operation(8, "/", 2)), "48 / ( 8 / 2 )", "(48/(8/2))"),
        (Operation(Operation("x", "+", 5), "*", 3), "( x + 5 ) * 3", "((5+x)*3)"),
        (17, "17", "17"),
    ],
)
def test_terms_are_written_as_mathematics_is(term, text, name):
    assert generators.to_text(term) == text
    # names are the same for every order and grouping of a sum or product
    assert generators.canonical(term) == "".join(name.split())


@pytest.mark.parametrize("top", [12, 64, 400])
def test_problems_are_right_and_within_their_bounds(top):
    for tier, instance in drawn(150, value_max=top):
        steps = generators.work(instance.plan)
        assert len(steps) == tier.steps and steps[-1].result == instance.answer
        assert holds(instance.prompt, instance.answer), instance
        for step in steps:
            assert value(f"{step.a}{step.sign}{step.b}") == step.result  # whole, by exact fractions
            assert min(step.a, step.b, step.result) >= 1 and max(step.a, step.b, step.result) <= top
        assert ("x" in instance.prompt) == (tier.kind == "equation")
        assert tier.kind != "running" or all(right > 0 for _, _, right in instance.plan)  # a number, no earlier result


def test_the_worked_solution_is_correct_and_any_other_answer_wrong():
    rng = random.Random(0)
    for _, instance in drawn(60):
        truth = number_truth(instance.answer)
        text = sums.to_chain(generators.work(instance.plan))
        right = Verdict(True, True, "")
        assert mathematics.verify(text, truth) == mathematics.verify("".join(text.split()), truth) == right
        head = text.rpartition("=")[0]
        other = rng.choice([n for n in range(100) if n != instance.answer])
        assert mathematics.verify(f"{head}= {other}", truth) == Verdict(False, True, "wrong-answer")
        # a chain that stops early, or goes on, has another last number or none
        for broken in (head, f"{head}=", f"{text} ,", f"{text} + 1", f"{text} x", f"{head}= -{instance.answer}"):
            assert mathematics.verify(broken, truth) == Verdict(False, False, "no-answer"), broken
        # only the outcome is judged: a false step before a right answer is no fault
        assert mathematics.verify(f"1 + 1 = 3 , {text}", truth) == right


def test_shares_are_whole_and_the_owner_is_fixed_for_ever():
    assert sum(generators.SHARES.values()) == pytest.approx(1)
    assert set(generators.SHARES) == set(generators.TIERS)
    # another hash would move test problems into the training of older checkpoints
    names = [f"mathematics:({a}+{b})" for a in range(40) for b in range(40)]
    owners = Counter(generators.owner(name, generators.SHARES) for name in names)
    assert owners["base"] / 1600 == pytest.approx(generators.SHARES["base"], abs=0.04)
    assert generators.owner("mathematics:((3+7)*4)", generators.SHARES) == "train"


def test_splits_are_disjoint_and_hold_their_tiers(data):
    seen = {"base": {row["id"] for row in base_documents()[0]}}
    for split, problems in data.items():
        found = Counter()
        for problem in problems:
            truth = json.loads(problem.ground_truth)
            assert truth == {"answer": truth["answer"], "format": "chain"}
            assert holds(problem.prompt, truth["answer"]), problem
            # the id says what is asked, so no two splits can hold one problem in two spellings
            assert sorted(_numbers(problem.prompt)) == sorted(_numbers(problem.id))
            steps = sum(token in ("+", "-", "*", "/") for token in problem.prompt.split())
            found["x" in problem.prompt, steps] += 1
        tiers = Counter((tier.kind == "equation", tier.steps) for tier in generators.TIERS[split])
        assert found.keys() == tiers.keys()
        for tier, count in tiers.items():  # as many of every tier
            assert found[tier] / SIZES[split] == pytest.approx(count / tiers.total(), rel=0.15), (split, found)
        seen[split] = {problem.id for problem in problems}
        assert len(problems) == len(seen[split]) == SIZES[split]
    # by construction: every problem lies in the one split that owns it, so any size and seed is disjoint too
    for split, ids in seen.items():
        assert {generators.owner(identity, generators.SHARES) for identity in ids} == {split}


def _numbers(text: str) -> list[str]:
    return re.findall("[0-9]+", text)


def test_guessing_pays_nothing(data):
    for split, problems in data.items():
        answers = Counter(json.loads(p.ground_truth)["answer"] for p in problems)
        total = answers.total()
        assert max(answers.values()) / total < 0.03, split  # the best constant guess
        # a guess by the answers' own distribution, and one uniform over 0..64
        assert sum((count / total) ** 2 for count in answers.values()) < 0.02
        assert min(answers) >= 2 and max(answers) <= 64
        assert len(answers) == min(total, 63)


def test_slips_are_as_frequent_as_asked_and_the_steps_after_one_go_on_from_it():
    rows, counts = base_documents()
    wrong = total = 0
    for row in rows:
        given = set(_numbers(row["prompt"]))
        for step in row["response"].split(" , "):
            left, right = step.split(" = ")
            a, sign, b = left.split()
            assert {a, b} <= given, row  # numbers of the problem and results so far
            given.add(right)
            assert 0 <= int(right) <= 64
            wrong += int(right) != min(max(generators.compute(int(a), sign, int(b)), 0), 64)
            total += 1
    # a slip beyond the bounds is cut back to them, sometimes onto the right result
    assert 0.85 * 0.25 < wrong / total < 1.1 * 0.25
    assert counts["noisy"] == sum(not holds(row["prompt"], generators.final_answer(row["response"])) for row in rows)
    assert 0.35 < counts["noisy"] / len(rows) < 0.65


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        ("7 + 3 = 10 , 10 * 4 = 40", Verdict(True, True, "")),
        ("7+3=10,10*4=40", Verdict(True, True, "")),
        ("= 40\n", Verdict(True, True, "")),
        ("7+3=10", Verdict(False, True, "wrong-answer")),
        ("40", Verdict(False, False, "no-answer")),
        ("=4 0", Verdict(False, False, "no-answer")),
        ("=4000000040", Verdict(False, False, "no-answer")),
        ("=\u0664\u0660", Verdict(False, False, "no-answer")),  # 40 in Arabic-Indic digits
        (" = ", Verdict(False, False, "no-answer")),
        ("=" * 300_000 + "40", Verdict(True, True, "")),
        ("9" * 3_000_000, Verdict(False, False, "no-answer")),
    ],
)
def test_the_last_number_is_graded(response, verdict):
    assert mathematics.verify(response, number_truth(40)) == verdict


@pytest.mark.parametrize("scale", ["laptop", "smoke", "gpu"])
def test_settings_make_problems_that_fit(scale, tmp_path):
    config = configuration.compose_config([f"scale={scale}", "task=mathematics", "tracking=none"])
    assert set(config.data.split_sizes) == set(generators.TIERS)
    assert set(config.evaluation.benchmarks) == set(generators.BENCHMARKS) <= set(mathematics.benchmarks)
    for split in config.data.split_sizes:
        config.data.split_sizes[split] = min(config.data.split_sizes[split], 200)
    mathematics.write_data(config, tmp_path)
    tokenizer = mathematics.build_tokenizer(config)
    for row in map(vars, mathematics.documents(config.data, seeds.generator(0, "mathematics", "base"))[0]):
        assert len(tokenizer(row["prompt"])["input_ids"]) <= config.sampling.max_prompt_tokens
        assert len(tokenizer(row["response"])["input_ids"]) < config.sampling.max_response_tokens  # and the end
    for split in generators.BENCHMARKS:
        for problem in files.read_problems(tmp_path / f"{split}.parquet"):
            assert len(tokenizer(problem.prompt)["input_ids"]) <= config.sampling.max_prompt_tokens


# ------------------------------------------------------------------------------------------------ sums


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """split -> its problems, of the setting of the scale pocket."""
    folder = tmp_path_factory.mktemp("sums")
    config = configuration.compose_config(["scale=pocket", "task=mathematics"])
    return {s: files.read_problems(folder / f"{s}.parquet") for s in mathematics.write_data(config, folder)}


def test_sums_of_each_size_are_in_one_split_alone_and_right(written):
    pairs = []
    for split, problems in written.items():
        low, high = (100, 999) if split == "sum3" else (10, 99)
        for problem in problems:
            a, b = sorted(map(int, problem.id.removeprefix("mathematics:").split("+")))
            pairs.append((a, b))
            assert low <= a <= b <= high
            assert problem.prompt.endswith((f"What is {a} + {b}?\nAnswer:", f"What is {b} + {a}?\nAnswer:"))
            assert mathematics.gold_responses(problem.ground_truth) == [str(a + b)]
            assert mathematics.verify(f" {a + b}\n", problem.ground_truth).correct
            assert mathematics.verify(f" {a + b + 1}", problem.ground_truth) == Verdict(False, True, WRONG)
    assert {s: len(p) for s, p in written.items()} == {"train": 400, "probe": 64, "sum2": 100, "sum3": 100}
    assert len(set(pairs)) == len(pairs) and not set(pairs) & {tuple(sorted(example)) for example in sums.EXAMPLES}
    assert all(f"What is {a} + {b}?\nAnswer: {a + b}\n" in written["train"][0].prompt for a, b in sums.EXAMPLES)


@pytest.mark.parametrize(
    "response", ["", "85 apples", "= 85", "8 5", "85.", "+85", "-85", "٨٥", "85" + " " * 63, "1" * 70]
)
def test_only_a_bare_number_is_the_answer_of_a_sum(response):
    assert mathematics.verify(response, number_truth(85, "number")) == Verdict(False, False, NO_ANSWER)
    assert mathematics.verify("085", number_truth(85, "number")).correct
    assert mathematics.demonstration("mathematics:38+47", "", number_truth(85, "number")) == "85"
