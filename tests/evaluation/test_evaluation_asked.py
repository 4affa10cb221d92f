"""Benchmarks asked in another way: the paper's prompt in the model's own chat template, beside few-shot Countdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from support.late import LATE

from bapo.engines.shared import chats
from bapo.errors import UserError
from bapo.evaluation import asked, run
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import curve_identity, data_identity, evaluation_identity, train_identity
from bapo.store.files import read_table
from bapo.tasks.countdown.task import to_prompt
from bapo.tasks.files import read_problems
from bapo.tasks.job import data_folder, make_data
from bapo.tasks.tokenizers import CHAT_TEMPLATE

if LATE:
    from bapo.engines.shared import models
    from bapo.engines.torch.base import train_base
    from bapo.evaluation import lm_model


OWN = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|model|>"
POCKET = ("scale=pocket_smoke", "task=countdown", "tracking=none")
WITHOUT = "evaluation.asked.cd2_paper=null"


def make_model(folder: Path, template: str | None = OWN) -> Path:
    """Write a Llama of 40,000 weights whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(BPE({byte: place for place, byte in enumerate(alphabet)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|end|>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
    LlamaForCausalLM(LlamaConfig(max_position_embeddings=1024, **ids, **shape)).save_pretrained(folder)
    return folder


def settings_of(model: Path, results: Path) -> list[str]:
    return [
        *POCKET, f"paths.results={results}", "device=cpu",
        "model=hf", f"model.path={model}", "model.revision=null",
        "sampling.stop_tokens=['Ċ']", "sampling.max_prompt_tokens=700",
        "evaluation.asked.cd2_paper.max_prompt_tokens=700", "evaluation.asked.cd2_paper.max_response_tokens=8",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """(settings, model), with data and base."""
    folder = tmp_path_factory.mktemp("asked")
    model = make_model(folder / "model")
    settings = settings_of(model, folder / "results")
    config = compose_config(settings)
    make_data(config)
    train_base(config)
    return settings, model


def test_the_paper_s_prompt_is_read_in_the_model_s_own_template(
    world: tuple[list[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def remember(*words: Any, **more: Any) -> str:
        read.append(chat(*words, **more))
        return read[-1]

    chat = lm_model.chat
    monkeypatch.setattr(lm_model, "chat", remember)
    settings, model = world
    config = compose_config(settings)
    summary = run.evaluate(config, model, tmp_path / "with")
    problems = read_problems(data_folder(config) / "cd2.parquet")
    truths = [json.loads(problem.ground_truth) for problem in problems]
    prompts = [to_prompt(truth["numbers"], truth["target"], "think-answer") for truth in truths]
    assert set(prompts[:2]) == {text.removeprefix("<|user|>").removesuffix("<|model|>") for text in read[-2:]}
    assert all(text.startswith("Question:") for text in read[:-2])

    assert set(summary["benchmarks"]) == {"cd2", "cd3"}
    assert summary["asked"]["cd2_paper"]["problems"] == 2 and summary["asked"]["cd2_paper"]["accuracy"] == 0.0
    frame = read_table(tmp_path / "with" / "cd2_paper.parquet")
    assert frame["problem_id"].unique().tolist() == [problem.id for problem in problems[:2]]
    assert set(frame["reason"]) == {"no-answer"}

    run.evaluate(compose_config([*settings, WITHOUT]), model, tmp_path / "without")
    for name in ("cd2", "cd3"):
        first, second = (read_table(tmp_path / folder / f"{name}.parquet") for folder in ("with", "without"))
        assert first.equals(second)


def test_what_is_asked_alike_shares_a_model(world: tuple[list[str], Path]) -> None:
    settings, model = world
    config = compose_config(settings)
    every = config.evaluation.asked
    every["cd3_paper"] = every["cd2_paper"].model_copy(update={"of": "cd3"})
    (first, benchmarks), (second, others) = asked.groups(config, ["cd2", "cd2_paper", "cd3", "cd3_paper"])
    assert first == config and benchmarks == ["cd2", "cd3"] and others == ["cd2_paper", "cd3_paper"]
    tokenizer = models.load(model, second, models.device_of(second))[1]
    newline = tokenizer("\n", add_special_tokens=False)["input_ids"]
    assert models.special_tokens(tokenizer)[0] == (tokenizer.eos_token_id,)  # a line's end ends no such response
    assert models.special_tokens(chats.prepare(tokenizer, first))[0] == (tokenizer.eos_token_id, *newline)
    ((only, names),) = asked.groups(config, ["cd3_paper"])
    assert names == ["cd3_paper"] and only == second


def test_vllm_has_a_process_for_each_way(
    world: tuple[list[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Pool:
        """Runs what it is given in this process."""

        def __init__(self, *_: Any, **__: Any) -> None:
            started.append([])

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def submit(self, call: Any, *words: Any) -> Any:
            started[-1].extend(words[-1])
            return type("Future", (), {"result": lambda _: {name: None for name in words[-1]}})()

    monkeypatch.setattr(run, "ProcessPoolExecutor", Pool)
    config = compose_config([*world[0], "evaluation.backend=vllm"])
    found = run._run(config, world[1], tmp_path, "identity", ["cd2", "cd3", "cd2_paper"])
    assert started == [["cd2", "cd3"], ["cd2_paper"]] and list(found) == ["cd2", "cd3", "cd2_paper"]


@pytest.mark.parametrize("template", [None, CHAT_TEMPLATE])
def test_a_model_without_a_template_of_its_own_is_refused(
    world: tuple[list[str], Path], tmp_path: Path, template: str | None
) -> None:
    bare = make_model(tmp_path / "bare", template)
    with pytest.raises(UserError, match=r"bare: evaluation\.asked\.cd2_paper .*train again, .*evaluation\.asked"):
        run.evaluate(compose_config(world[0]), bare, tmp_path / "eval")
    run.evaluate(compose_config([*world[0], "evaluation.asked.cd2_paper.chat_template=plain"]), bare, tmp_path / "eval")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("evaluation.asked.cd2_paper.of=cd4", r"cd2_paper\.of=cd4: must be one of evaluation\.benchmarks: cd2, cd3"),
        ("evaluation.asked.cd2_paper.problems=0", r"cd2_paper\.problems=0: must be"),
        ("evaluation.asked.cd2_paper.chat_template=other", r"chat_template=other: must be"),
        ("evaluation.asked.cd2_paper.max_response_tokens=9000", "a sequence may take 9256 tokens"),
        ("evaluation.asked.probe=${evaluation.asked.cd2_paper}", r"asked\.probe: a set of problems has this name"),
        ("evaluation.asked.cd2_paper.promt=x", r"promt: no such key"),
    ],
)
def test_what_cannot_be_asked_is_refused(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose_config([*POCKET, override])


def test_a_prompt_that_the_task_does_not_have_is_refused(world: tuple[list[str], Path], tmp_path: Path) -> None:
    config = compose_config([*world[0], "evaluation.asked.cd2_paper.prompt=think-anser"])
    with pytest.raises(UserError, match=r"no such prompt of task=countdown \(did you mean 'think-answer'"):
        run.evaluate(config, world[1], tmp_path)


def test_it_belongs_to_the_evaluation_alone() -> None:
    def identities(config: DictConfig) -> list[str]:
        return [of(config) for of in (data_identity, train_identity, curve_identity)]

    plain, config = compose_config([*POCKET, WITHOUT]), compose_config([*POCKET])
    more = compose_config([*POCKET, "evaluation.asked.cd2_paper.problems=3"])
    assert identities(plain) == identities(config) == identities(more)
    assert len({evaluation_identity(c) for c in (plain, config, more)}) == 3
    titled = compose_config([*POCKET, "evaluation.asked.cd2_paper.title=Other"])
    assert evaluation_identity(titled) == evaluation_identity(config)
