"""The generated mathematics: problems, splits, documents, grading, tokenizer and settings."""

import ast
import itertools
import json
import operator
import random
from collections import Counter
from fractions import Fraction

import pytest
from omegaconf import OmegaConf

from bapo import seeds, tasks
from bapo.errors import UserError
from bapo.experiments import compose as configuration
from bapo.graders.verdict import Verdict
from bapo.tasks import files
from bapo.tasks.boxed import chain_truth
from bapo.tasks.mathematics import generator as generators
from bapo.tasks.mathematics import sums, terms
from bapo.tasks.mathematics.generator import Tier
from bapo.tasks.mathematics.terms import Node

SIZES = {"base": 3000, "train": 300, "probe": 70} | dict.fromkeys(generators.BENCHMARKS, 60)
WRITTEN = [split for split in SIZES if split != "base"]  #: by the data job
GENERATOR = {"value_max": 64, "answer_min": 2, "noise": 0.25, "slip_max": 9}
mathematics = tasks.get("mathematics")
ALL_TIERS = sorted({tier for tiers in generators.TIERS.values() for tier in tiers})


def configured(sizes=SIZES, seed=0, **data):
    defaults = {"source": "generated", "prompt": "chain", "generator": dict(GENERATOR), "hub": {}}
    return OmegaConf.create(
        {"data": {**defaults, "seed": seed, "split_sizes": dict(sizes), **data}, "paths": {"data_folder": None}}
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A small data set: (folder, counts)."""
    folder = tmp_path_factory.mktemp("mathematics")
    return folder, mathematics.write_data(configured(), folder)


def base_documents(config) -> tuple[list[dict], dict]:
    """The base model's documents as (fields, counts)."""
    made, counts = mathematics.documents(config.data, seeds.generator(config.data.seed, "mathematics", "base"))
    return [vars(document) for document in made], counts


def documents() -> list[dict]:
    return base_documents(configured())[0]


def drawn(count: int, **options):
    """``count`` problems of every tier as (tier, instance)."""
    generator, draws = generators.Generator(**GENERATOR | options), generators.Draws(seeds.generator(0, "test draw"))
    top = generator.value_max
    for tier in ALL_TIERS:
        for _ in range(count):
            answer = generator.answer_min + draws.below(top - generator.answer_min + 1)
            yield tier, generator.draw(draws, tier, answer)


_SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value(text: str, x: int | None = None) -> Fraction:
    """Arithmetic by Python's own parser and exact fractions: it shares nothing with the generator."""

    def visit(node: ast.AST) -> Fraction:
        if isinstance(node, ast.BinOp):
            return _SIGNS[type(node.op)](visit(node.left), visit(node.right))
        if isinstance(node, ast.Name):
            assert node.id == "x" and x is not None
            return Fraction(x)
        assert isinstance(node, ast.Constant) and type(node.value) is int
        return Fraction(node.value)

    return visit(ast.parse(text, mode="eval").body)


def holds(prompt: str, answer: int) -> bool:
    """Whether ``answer`` is right, from the text of the prompt alone."""
    if not prompt.endswith(" , x ="):
        return value(prompt.removesuffix("=")) == answer
    left, right = prompt.removesuffix(" , x =").split(" = ")
    return value(left, answer) == value(right)


# ------------------------------------------------------------------------------------------------ terms


@pytest.mark.parametrize(
    ("term", "text", "name"),
    [
        (Node(Node(7, "+", 3), "*", 4), "( 7 + 3 ) * 4", "((3+7)*4)"),
        (Node(4, "*", Node(3, "+", 7)), "4 * ( 3 + 7 )", "((3+7)*4)"),
        (Node(2, "+", Node(3, "*", 4)), "2 + 3 * 4", "((3*4)+2)"),
        (Node(9, "-", Node(4, "-", 3)), "9 - ( 4 - 3 )", "(9-(4-3))"),
        (Node(Node(9, "-", 4), "-", 3), "9 - 4 - 3", "((9-4)-3)"),
        (Node(48, "/", Node(8, "/", 2)), "48 / ( 8 / 2 )", "(48/(8/2))"),
        (Node(Node("x", "+", 5), "*", 3), "( x + 5 ) * 3", "((5+x)*3)"),
        (17, "17", "17"),
    ],
)
def test_terms_are_written_as_mathematics_is(term, text, name):
    assert terms.to_text(term) == text
    # names are the same for every order and grouping of a sum or product
    assert terms.canonical(term) == "".join(name.split())


# ------------------------------------------------------------------------------------------------ problems


@pytest.mark.parametrize("top", [12, 64, 400])
def test_problems_are_right_and_within_their_bounds(top):
    for tier, instance in drawn(150, value_max=top):
        steps = terms.work(instance.plan)
        assert len(steps) == tier.steps and steps[-1].result == instance.answer
        assert holds(instance.prompt, instance.answer), instance
        for step in steps:
            assert value(f"{step.a}{step.sign}{step.b}") == step.result  # whole, by exact fractions
            assert min(step.a, step.b, step.result) >= 1 and max(step.a, step.b, step.result) <= top
        assert ("x" in instance.prompt) == (tier.kind == "equation")


def test_the_worked_solution_is_correct_and_any_other_answer_wrong():
    rng = random.Random(0)
    for _, instance in drawn(60):
        truth = chain_truth(instance.answer)
        text = terms.to_chain(terms.work(instance.plan))
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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"value_mx": 9}, "data.generator.value_mx: .*value_max"),
        ({"value_max": 7}, "data.generator.value_max=7"),
        ({"value_max": 20.5}, "data.generator.value_max=20.5"),
        ({"answer_min": 64}, "data.generator.*answer_min must be below value_max"),
        ({"noise": -0.1}, "data.generator.noise=-0.1"),
        ({"noise": "half"}, "data.generator.noise=half"),
        ({"slip_max": 0}, "data.generator.slip_max=0"),
    ],
)
def test_wrong_generator_parameters_are_named(options, named):
    with pytest.raises(UserError, match=named):
        generators.Generator.of(configured(generator=GENERATOR | options).data)


# ------------------------------------------------------------------------------------------------ splits


def test_shares_are_whole_and_the_owner_is_fixed_for_ever():
    assert sum(generators.SHARES.values()) == pytest.approx(1)
    assert set(generators.SHARES) == set(generators.TIERS)
    # another hash would move test problems into the training of older checkpoints
    owners = Counter(generators.owner(f"mathematics:({a}+{b})") for a in range(40) for b in range(40))
    assert owners["base"] / 1600 == pytest.approx(generators.SHARES["base"], abs=0.04)
    assert generators.owner("mathematics:((3+7)*4)") == "train"


def test_splits_are_disjoint_and_hold_their_tiers(data):
    folder, counts = data
    seen = {}
    for split in WRITTEN:
        problems = files.read_problems(folder / f"{split}.parquet")
        ids = {problem.id for problem in problems}
        assert len(problems) == len(ids) == SIZES[split] == counts[split]["problems"]
        found = Counter()
        for problem in problems:
            truth = json.loads(problem.ground_truth)
            assert truth == {"answer": truth["answer"], "format": "chain"}
            assert holds(problem.prompt, truth["answer"]), problem
            # the id says what is asked, so no two splits can hold one problem in two spellings
            assert sorted(t for t in problem.prompt.split() if t.isdigit()) == sorted(_numbers(problem.id))
            found[_shape(problem.prompt)] += 1
        # as many of every tier; of nested ones, some happen to run from left to right
        tiers = generators.TIERS[split]
        assert {(kind if kind == "equation" else "expression", steps) for kind, steps in found} == {
            (tier.kind if tier.kind == "equation" else "expression", tier.steps) for tier in tiers
        }
        for tier in tiers:
            share = found[tier] / SIZES[split] * len(tiers)
            if tier.kind == "nested":
                assert 0.1 < share < 1.1, (split, found)
            elif Tier("nested", tier.steps) in tiers:
                assert 0.9 < share < 1.9, (split, found)
            else:
                assert 0.85 < share < 1.15, (split, found)
        seen[split] = ids
    seen["base"] = {row["id"] for row in documents()}
    for one, other in itertools.combinations(seen, 2):
        assert not seen[one] & seen[other], (one, other)
    # by construction: every problem lies in the one split that owns it, so any size and seed is disjoint too
    for split, ids in seen.items():
        assert {generators.owner(identity) for identity in ids} == {split}


def _numbers(identity: str) -> list[str]:
    text = "".join(c if c.isdigit() else " " for c in identity)
    return text.split()


def _shape(prompt: str) -> Tier:
    """The tier of a problem from its text: "nested" only where an operation has another to its right."""
    steps = sum(token in ("+", "-", "*", "/") for token in prompt.split())
    if "x" in prompt:
        return Tier("equation", steps)
    operations = [n for n in ast.walk(ast.parse(prompt.removesuffix("="), mode="eval")) if isinstance(n, ast.BinOp)]
    return Tier("nested" if any(isinstance(n.right, ast.BinOp) for n in operations) else "running", steps)


def test_guessing_pays_nothing(data):
    folder, _ = data
    for split in WRITTEN:
        answers = Counter(
            json.loads(p.ground_truth)["answer"] for p in files.read_problems(folder / f"{split}.parquet")
        )
        total = answers.total()
        assert max(answers.values()) / total < 0.03, split  # the best constant guess
        # a guess by the answers' own distribution, and one uniform over 0..64
        assert sum((count / total) ** 2 for count in answers.values()) < 0.02
        assert min(answers) >= 2 and max(answers) <= 64
        assert len(answers) == min(total, 63)


def test_too_many_problems_is_a_clear_error(tmp_path):
    config = configured({"equations": 900}, generator={"value_max": 8, "slip_max": 3})
    with pytest.raises(UserError, match=r"data.split_sizes.equations: 900 distinct problems are wanted but only \d+"):
        mathematics.write_data(config, tmp_path)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ documents


def test_documents_without_noise_are_the_worked_solutions():
    rows, counts = base_documents(configured({"base": 2000}, generator=GENERATOR | {"noise": 0.0}))
    assert counts["noisy"] == 0
    for row in rows:
        answer = terms.final_answer(row["response"])
        assert holds(row["prompt"], answer), row
        for step in row["response"].split(" , "):
            left, right = step.split(" = ")
            assert value(left) == int(right), row


def test_slips_are_as_frequent_as_asked_and_stay_in_the_vocabulary():
    rows, counts = base_documents(configured())
    steps = [step.split(" = ") for row in rows for step in row["response"].split(" , ")]
    wrong = 0
    for left, right in steps:
        a, sign, b = left.split()
        assert 0 <= int(right) <= 64
        wrong += int(right) != min(max(terms.compute(int(a), sign, int(b)), 0), 64)
    # a slip beyond the bounds is cut back to them, sometimes onto the right result
    assert 0.85 * 0.25 < wrong / len(steps) < 1.1 * 0.25
    assert counts["noisy"] == sum(not holds(row["prompt"], terms.final_answer(row["response"])) for row in rows)
    assert 0.35 < counts["noisy"] / len(rows) < 0.65


def test_steps_after_a_slip_go_on_from_it():
    for row in documents()[:500]:
        given = set(_numbers(row["prompt"]))
        for step in row["response"].split(" , "):
            left, right = step.split(" = ")
            a, _, b = left.split()
            assert {a, b} <= given, row  # numbers of the problem and results so far
            given.add(right)


# ------------------------------------------------------------------------------------------------ grading


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        ("7 + 3 = 10 , 10 * 4 = 40", Verdict(True, True, "")),
        ("7+3=10,10*4=40", Verdict(True, True, "")),
        ("= 40\n", Verdict(True, True, "")),
        ("= 040", Verdict(True, True, "")),
        ("7+3=10", Verdict(False, True, "wrong-answer")),
        ("40", Verdict(False, False, "no-answer")),
        ("=40.", Verdict(False, False, "no-answer")),
        ("=4 0", Verdict(False, False, "no-answer")),
        ("=4000000040", Verdict(False, False, "no-answer")),
        ("=\u0664\u0660", Verdict(False, False, "no-answer")),  # 40 in Arabic-Indic digits
        ("", Verdict(False, False, "no-answer")),
        (" = ", Verdict(False, False, "no-answer")),
        ("=" * 300_000 + "40", Verdict(True, True, "")),
        ("9" * 3_000_000, Verdict(False, False, "no-answer")),
    ],
)
def test_the_last_number_is_graded(response, verdict):
    assert mathematics.verify(response, chain_truth(40)) == verdict


@pytest.mark.parametrize(
    "truth",
    [
        "[]",
        '{"answer": 17}',
        '{"answer": "17", "format": "chain"}',
        '{"format": "chain"}',
        '{"answer": true, "format": "chain"}',
        '{"answer": -1, "format": "chain"}',
    ],
)
def test_a_bad_ground_truth_is_an_error(truth):
    with pytest.raises(UserError, match="ground truth"):
        mathematics.verify("= 17", truth)


def test_boxed_ground_truths_go_to_the_grader_of_the_paper_scale():
    truth = json.dumps({"answers": ["12", r"\frac{1}{2}"], "format": "boxed"})
    assert mathematics.gold_responses(truth) == [r"\boxed{12}", r"\boxed{\frac{1}{2}}"]
    assert mathematics.verify(r"so it is \boxed{12}", truth).correct
    assert mathematics.verify(r"\boxed{\frac12}", truth).correct
    assert mathematics.verify(r"\boxed{13}", truth)[:2] == (False, True)
    assert mathematics.verify("7+5=12", truth)[:2] == (False, False)
    assert mathematics.answer("7+3=10,10*4=40") == mathematics.answer("= 040 ") == "40"
    assert mathematics.answer("7+3=") is None and mathematics.answer("") is None
    assert mathematics.answer(r"so it is \boxed{12}") == mathematics.answer(r"\boxed{ 12 }")
    assert mathematics.grade_line({"gold": "12", "response": r"\boxed{12}"}).correct
    with pytest.raises(UserError, match="gold"):
        mathematics.grade_line({"gold": "", "response": r"\boxed{12}"})


# ------------------------------------------------------------------------------------------------ tokenizer


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """The tokenizer as built, and as AutoTokenizer reads it from beside a Qwen2 configuration."""
    from transformers import AutoTokenizer, Qwen2Config

    folder = tmp_path_factory.mktemp("checkpoint")
    built = mathematics.build_tokenizer(configured())
    built.save_pretrained(folder)
    Qwen2Config(vocab_size=len(built), hidden_size=64, num_hidden_layers=2).save_pretrained(folder)
    return {"built": built, "loaded": AutoTokenizer.from_pretrained(folder)}


@pytest.mark.parametrize("which", ["built", "loaded"])
def test_tokenizer_takes_one_token_a_word_and_back(tokenizers, which):
    tokenizer = tokenizers[which]
    assert len(tokenizer) == 65 + 9 + 5
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    for row in documents()[:200]:
        for text in (row["prompt"], row["response"]):
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.convert_ids_to_tokens(ids) == text.split()
            assert tokenizer.decode(ids) == "".join(text.split())
        # grading the decoded text is grading the text
        given = terms.final_answer(row["response"])
        assert mathematics.verify(tokenizer.decode(ids), chain_truth(given)).correct
    message = [{"role": "user", "content": "( x + 5 ) * 3 = 36 , x ="}]
    assert tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False) == message[0]["content"]


# ------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize("scale", ["laptop", "smoke", "gpu"])
def test_settings_make_problems_that_fit(scale, tmp_path):
    config = configuration.compose_config([f"scale={scale}", "task=mathematics", "tracking=none"])
    assert set(config.data.split_sizes) == set(generators.TIERS)
    assert set(config.evaluation.benchmarks) == set(generators.BENCHMARKS) <= set(mathematics.benchmarks)
    for split in config.data.split_sizes:
        config.data.split_sizes[split] = min(config.data.split_sizes[split], 200)
    mathematics.write_data(config, tmp_path)
    tokenizer = mathematics.build_tokenizer(config)
    for row in base_documents(config)[0]:
        assert len(tokenizer(row["prompt"])["input_ids"]) <= config.sampling.max_prompt_tokens
        assert len(tokenizer(row["response"])["input_ids"]) < config.sampling.max_response_tokens  # and the end
    for split in generators.BENCHMARKS:
        for problem in files.read_problems(tmp_path / f"{split}.parquet"):
            assert len(tokenizer(problem.prompt)["input_ids"]) <= config.sampling.max_prompt_tokens


def test_no_laptop_benchmark_borrows_a_public_name():
    public = {"aime", "amc", "math500", "minerva", "olympiad", "gsm8k"}
    for name, title in (generators.BENCHMARKS | sums.BENCHMARKS).items():
        assert not any(word in f"{name} {title}".lower() for word in public)
    titles = {"aime24": "AIME24", "amc": "AMC", "math500": "MATH500", "minerva": "Minerva", "olympiad": "Olympiad"}
    titles["gsm8k"] = "GSM8K"
    assert mathematics.benchmarks == generators.BENCHMARKS | sums.BENCHMARKS | titles
