"""The benchmarks of the paper's Table 4 as lm-eval's own Python API finds them: YAML files, their data and scores."""

from __future__ import annotations

import inspect
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import hub_server
from support.configs import changed
from support.late import LATE
from support.paths import needs_shared

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation import backends, scores
from bapo.experiments.compose import compose_config

if LATE:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    from bapo.evaluation.lm_eval_tasks import FOLDER

    class Scripted(LM):
        """Of 8 responses to problem i, RIGHT[i % 4] are right, the others unparsed or wrong. All texts differ.

        ``asked`` holds the arguments of every problem.
        """

        tokenizer_name = "none"
        RIGHT, WRONG = (0, 2, 8, 5), "<answer>1 + 1</answer>"
        loglikelihood = loglikelihood_rolling = None

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            return f"user: {chat_history[-1]['content']} assistant:"

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            texts: list[str] = []
            problems = [list(repeats) for _, repeats in groupby(requests, id)]
            self.asked = [request.args for request, *_ in problems]
            for number, repeats in enumerate(problems):
                (gold, *_) = tasks.get("countdown").gold_responses(repeats[0].doc["ground_truth"])
                right = self.RIGHT[number % 4]
                texts += [f"<think>{i}</think>{gold}." for i in range(right)]
                texts += [f"<think>{i} {self.WRONG}" + f"</think> so {self.WRONG}" * (i % 2) for i in range(right, 8)]
            return texts


TABLE4 = ["bapo_aime24", "bapo_amc", "bapo_math500", "bapo_minerva", "bapo_olympiad", "bapo_cd34", "bapo_cd4"]
TABLE4 += ["bapo_geo3k_val", "bapo_geo3k_test"]
GSM8K = "bapo_gsm8k"  # the benchmark of scale single_gpu
#: contests after the paper's: lm-eval task -> the set's name on the hub, problems, and a gold as the set has it
NEWER = {
    "bapo_aime25": ("aime_2025", 30, 70),
    "bapo_aime26": ("aime_2026", 30, 277),
    "bapo_hmmt25": ("hmmt_feb_2025", 30, "$\\frac{1}{576}$"),
    "bapo_hmmt26": ("hmmt_feb_2026", 33, "8 \\sqrt{10}"),
}
SIZES = {"train": 4, "probe": 2, "cd34": 6, "cd4": 5}


def manager(**metadata: Any) -> TaskManager:
    return TaskManager(include_path=FOLDER, include_defaults=False, metadata=metadata or None)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small copies of Countdown's two sets, as a user has them."""
    folder = tmp_path_factory.mktemp("sets")
    three_to_four = [([n, n + 1, n + 2], 3 * n + 3) for n in range(10, 30)]
    four = [([n, 2, 3, 4], n + 9) for n in range(50, 70)]
    for name, rows in (("Countdown-Tasks-3to4", three_to_four), ("Countdown-Tasks-4", four)):
        lines = [json.dumps({"nums": nums, "target": target}) + "\n" for nums, target in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def small(folder: Path, name: str, **changes: Any) -> str:
    """A YAML file that includes a task of ours, as users vary one: fewer problems, 8 samples of at most 16 tokens."""
    theirs = FOLDER / f"{name.removeprefix('bapo_')}.yaml"
    found = load_yaml(theirs, resolve_func=False)
    source = found["dataset_kwargs"]
    hub = {split: {"repository": entry["repository"]} for split, entry in source["hub"].items()}
    source = {**source, "hub": hub, "sizes": {split: SIZES[split] for split in source["sizes"]}}
    generation = {**found["generation_kwargs"], "max_gen_toks": 16}
    content = {"include": str(theirs), "task": f"{name}_small", "dataset_kwargs": source, "repeats": 8}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**content, "generation_kwargs": generation, **changes}, sort_keys=False))
    return str(path)


def test_all_benchmarks_of_table_4_and_their_groups_are_found() -> None:
    found = manager()
    assert set(found.all_subtasks) == {*TABLE4, GSM8K, *NEWER}
    assert found.all_groups == ["bapo_table1_geometry", "bapo_table1_math", "bapo_table1_planning"]
    members = []
    for group in found.all_groups:
        content = load_yaml(found.task_index[group].yaml_path, resolve_func=False)
        members += content["task"]
        assert {m["metric"] for m in content["aggregate_metric_list"]} >= {"acc", "pass@32"}
        assert not any(m["weight_by_size"] for m in content["aggregate_metric_list"])
    assert sorted(members) == sorted(TABLE4)


@pytest.mark.parametrize("name", [*TABLE4, GSM8K])
def test_a_task_says_what_its_scale_says(name: str) -> None:
    """The pinned sources, prompts and lengths are those of our own runs, and every sampling key is set."""
    found = load_yaml(FOLDER / f"{name.removeprefix('bapo_')}.yaml", resolve_func=False)
    assert (found["repeats"], found["num_fewshot"]) == (32, 0)
    source = found["dataset_kwargs"]
    config = compose_config([f"scale={'single_gpu' if name == GSM8K else 'paper'}", f"task={source['task']}"])
    assert source["split"] == name.removeprefix("bapo_") and source["split"] in config.evaluation.benchmarks
    assert source["prompt"] == config.data.prompt
    for split, size in source["sizes"].items():
        assert (size, source["hub"][split]) == (config.data.split_sizes[split], config.data.hub[split])
    keys = {"until": [], "do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    assert found["generation_kwargs"] == keys | {"max_gen_toks": config.sampling.max_response_tokens}
    assert ("doc_to_image" in found) == (source["task"] == "geometry")


@pytest.mark.parametrize("name", NEWER)
def test_a_newer_contest_comes_from_its_commit_and_has_all_its_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made-up problems in the columns of the hub's sets, at the commit that the task names, behind a stand-in hub."""
    found = load_yaml(FOLDER / f"{name.removeprefix('bapo_')}.yaml", resolve_func=False)
    aime24 = load_yaml(FOLDER / "aime24.yaml", resolve_func=False)
    assert {**found, **{k: aime24[k] for k in ("task", "task_alias", "dataset_kwargs")}} == aime24
    ((split, entry),) = found["dataset_kwargs"]["hub"].items()
    repository, count, gold = NEWER[name]
    common = {"answer": gold, "problem_type": ["Algebra"]}
    rows = [{"problem_idx": i + 1, "problem": f"Find $a_{i}$.", **common} for i in range(count)]

    def served(rows: list[dict[str, Any]], cache: str) -> None:
        pq.write_table(pa.Table.from_pylist(rows), file := tmp_path / f"{cache}.parquet")
        content = {f"MathArena/{repository}": {"data/train-00000-of-00001.parquet": file.read_bytes()}}
        hub_server.serve(monkeypatch, tmp_path / cache, content).commit = entry["revision"]

    served(rows, "whole")
    loaded = manager().load([name])["tasks"][name]
    assert split == loaded.source["split"] == name.removeprefix("bapo_")
    assert [doc["id"] for doc in loaded.eval_docs] == [f"{repository}:{i}" for i in range(count)]
    verify, document = loaded.grader.verify, loaded.eval_docs[0]
    assert document["prompt"].startswith("Find $a_0$. Let's think step by step")
    assert verify(f"So \\boxed{{{gold}}}.", document["ground_truth"]).correct
    assert not verify("So \\boxed{12}.", document["ground_truth"]).correct
    served(rows[1:], "short")
    with pytest.raises(UserError, match=rf"{count - 1} rows, expected {count} \(data\.hub\.{split}\)"):
        manager().load([name])


def test_countdown_scores_by_hand(sets: Path, tmp_path: Path) -> None:
    """Every response is kept, extracted and graded; the group's average weighs both benchmarks alike."""
    model = Scripted()
    for name in ("bapo_cd34", "bapo_cd4"):
        small(tmp_path, name)
    metrics = [{"metric": "acc", "filter_list": ["all"], "weight_by_size": False}]
    group = {"group": "both", "task": ["bapo_cd34_small", "bapo_cd4_small"], "aggregate_metric_list": metrics}
    (tmp_path / "both.yaml").write_text(yaml.safe_dump(group), encoding="utf-8")
    places = {"include_path": [FOLDER, tmp_path], "metadata": {"data_folder": str(sets)}}
    options = {"apply_chat_template": True, "bootstrap_iters": 1}
    options["task_manager"] = TaskManager(include_defaults=False, **places)
    found = simple_evaluate(model=model, tasks=["both"], **options)
    right = {"bapo_cd34_small": [0, 2, 8, 5, 0, 2], "bapo_cd4_small": [8, 5, 0, 2, 8]}  # of 8, one model for both
    for name, counts in right.items():
        result, samples = found["results"][name], found["samples"][name]
        means = [c / 8 for c in counts]
        n = len(means)
        assert result["acc,all"] == pytest.approx(sum(means) / n) == result["bits,all"]
        assert result["acc_stderr,all"] == pytest.approx(scores.standard_error(means))
        assert result["pass@1,all"] == pytest.approx(sum(means) / n)
        assert result["pass@8,all"] == pytest.approx(sum(c > 0 for c in counts) / n)
        wrong = {c: sum(r % 2 for r in range(c, 8)) for c in counts}
        assert result["unparsed,all"] == pytest.approx(sum((8 - c - wrong[c]) / 8 for c in counts) / n)
        for sample, count in zip(samples, counts, strict=True):
            assert sample["bits"] == [1] * count + [0] * (8 - count)
            assert len(set(sample["resps"][0])) == 8
            verify = tasks.get("countdown").verify
            verdicts = [verify(text, sample["doc"]["ground_truth"]) for text in sample["resps"][0]]
            assert [int(v.correct) for v in verdicts] == sample["bits"]
    errors = [found["results"][name]["acc_stderr,all"] for name in right]
    total = found["groups"]["both"]
    assert total["acc,all"] == pytest.approx(sum(sum(c) / len(c) / 8 for c in right.values()) / 2)
    assert total["acc_stderr,all"] == pytest.approx(sum(e**2 for e in errors) ** 0.5 / 2)
    for text, keys in model.asked:
        assert text.startswith("user: Using the numbers [") and keys["max_gen_toks"] == 16 and "seed" not in keys


def test_no_problem_of_an_earlier_split_is_asked(sets: Path, tmp_path: Path) -> None:
    """As in our own runs: here all splits begin at row 0, so train and probe take the first six rows of the set."""
    loaded = manager(data_folder=str(sets)).load([small(tmp_path, "bapo_cd34")])["tasks"]["bapo_cd34_small"]
    numbers = [json.loads(doc["ground_truth"])["numbers"] for doc in loaded.eval_docs]
    assert numbers == [[n, n + 1, n + 2] for n in range(16, 22)]


def test_bad_data_is_named(sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small(tmp_path, "bapo_cd34")
    with pytest.raises(UserError, match=r"data.hub.train: no file Countdown-Tasks-3to4"):
        manager(data_folder=str(tmp_path)).load([spec])
    monkeypatch.setenv("BAPO_DATA_FOLDER", str(sets))
    assert len(manager().load([spec])["tasks"]["bapo_cd34_small"].eval_docs) == 6


def test_files_of_our_data_job_are_read(sets: Path, tmp_path: Path) -> None:
    """By the name of the split, and only where they hold as many problems as the benchmark has."""
    from bapo.tasks.countdown.task import to_problem
    from bapo.tasks.files import write_problems

    problems = [to_problem([n, n + 1, n + 2], 3 * n + 3, "think-answer") for n in range(40, 46)]
    write_problems(tmp_path / "cd34.parquet", problems, "countdown", "planning", "cd34")
    loaded = manager(data_folder=str(tmp_path)).load([small(tmp_path, "bapo_cd34")])["tasks"]["bapo_cd34_small"]
    assert [doc["id"] for doc in loaded.eval_docs] == [problem.id for problem in problems]
    write_problems(tmp_path / "cd34.parquet", problems[:5], "countdown", "planning", "cd34")
    with pytest.raises(UserError, match=r"cd34\.parquet: 5 problems, but cd34 has 6"):
        manager(data_folder=str(tmp_path)).load([small(tmp_path, "bapo_cd34")])


#: Qwen2.5's <|im_end|>
IM_END = 151645


@pytest.mark.parametrize("task", ["geometry", "mathematics", "countdown"])
def test_the_vllm_files_say_what_the_paper_scale_says(task: str) -> None:
    from lm_eval.config.evaluate_config import EvaluatorConfig

    file = FOLDER / "vllm" / f"{'planning' if task == 'countdown' else task}.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    config = compose_config(["scale=paper", f"task={task}"])
    EvaluatorConfig(**content)._configure()  # what `lm_eval run --config` reads
    assert set(content) <= set(inspect.signature(simple_evaluate).parameters)
    s, m, arguments = config.sampling, config.model, content["model_args"]
    known = [arguments[key] for key in ("pretrained", "revision", "tokenizer_revision")]
    assert known == [m.path, m.revision, m.revision]
    assert arguments["dtype"] == m.dtype == config.evaluation.vllm.dtype
    assert arguments["max_model_len"] == s.max_prompt_tokens + s.max_response_tokens
    ends = {"stop_token_ids": [IM_END]} if list(s.stop_tokens) == ["<|im_end|>"] else {}
    offline = changed(config, evaluation__backend="vllm", sampling__stop_tokens=[])  # without the hub's tokenizer
    assert content["gen_kwargs"] == {**backends.arguments(offline, m.path), **ends}
    assert content["model"] == ("vllm-vlm" if task == "geometry" else "vllm")
    members = load_yaml(manager().task_index[content["tasks"][0]].yaml_path, resolve_func=False)["task"]
    assert [m.removeprefix("bapo_") for m in members] == list(config.evaluation.benchmarks)


REAL = {"aime24": 30, "amc": 83, "math500": 500, "minerva": 272, "olympiad": 675, "geo3k_val": 300}


@pytest.mark.parametrize("split", REAL)
def test_the_real_sets_load_and_gold_against_gold_is_right(split: str) -> None:
    """Loading checks the golds as they are; here they also stand in a sentence, after thinking with another answer."""
    real = needs_shared("data", "geometry3k", "val").parents[1]
    loaded = manager(data_folder=str(real)).load([f"bapo_{split}"])["tasks"][f"bapo_{split}"]
    documents = loaded.dataset["test"].select_columns(["id", "ground_truth"])
    assert len(documents) == REAL[split] == len(set(documents["id"]))
    graded = 0
    for doc in documents:
        for response in loaded.grader.gold_responses(doc["ground_truth"]):
            text = f"<think>Is it \\boxed{{-98765}}?</think> The answer is ${response}$."
            assert loaded.grader.verify(text, doc["ground_truth"]).correct, (doc["id"], response)
            graded += 1
    assert graded >= REAL[split]
