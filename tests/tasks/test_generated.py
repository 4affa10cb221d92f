"""What every task of generated problems promises: equal bytes, one owner a problem, errors that name, a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.late import LATE

from bapo import seeds, tasks
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import data_identity
from bapo.experiments.places import data_directory
from bapo.store.files import read_json
from bapo.tasks.files import read_problems
from bapo.tasks.job import make_data

if LATE:
    from transformers import AutoTokenizer, Qwen2Config

TASKS = ("countdown", "geometry", "mathematics")


def configuration(task: str, scale: str = "smoke", **data: Any) -> Any:
    config = compose_config([f"scale={scale}", f"task={task}", "tracking=none"])
    for key, value in data.items():
        setattr(config.data, key, value)
    return config


@pytest.mark.parametrize("name", TASKS)
def test_the_same_configuration_gives_the_same_bytes_and_another_seed_other_problems(name, tmp_path):
    task = tasks.get(name)
    config = configuration(name)
    written = {f"{split}.parquet" for split in config.data.split_sizes if split != "base"}
    counts = task.write_data(config, tmp_path / "all")
    assert {p.name for p in (tmp_path / "all").iterdir()} == written and len(counts) == len(written)
    probe = {"probe": config.data.split_sizes["probe"]}
    task.write_data(configuration(name, split_sizes=probe), tmp_path / "alone")
    task.write_data(configuration(name, split_sizes=probe, seed=1), tmp_path / "seed")
    files = [tmp_path / folder / "probe.parquet" for folder in ("all", "alone", "seed")]
    assert files[0].read_bytes() == files[1].read_bytes()  # other splits do not matter
    assert [p.id for p in read_problems(files[0])] != [p.id for p in read_problems(files[2])]


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        *((name, {"prompt": "think-boxed"}, "data.prompt=think-boxed") for name in TASKS),
        *((name, {"split_sizes": {"aime24": 5}}, "data.split_sizes.aime24") for name in TASKS),
        ("countdown", {"split_sizes": {"train": 0}}, "data.split_sizes.train=0"),
        ("countdown", {"scale": "pocket", "split_sizes": {"cd34": 5}}, "data.split_sizes.cd34"),
        ("mathematics", {"scale": "pocket", "split_sizes": {"nested_3": 5}}, "data.split_sizes.nested_3.*sum2, sum3"),
        ("countdown", {"generator": {"number_mx": 12}}, "data.generator.number_mx: .*number_max"),
        ("countdown", {"generator": {"noise": 1.5}}, "data.generator.noise=1.5"),
        ("mathematics", {"generator": {"value_max": 7}}, "data.generator.value_max=7"),
        ("geometry", {"generator": {"angle_step": 7}}, "data.generator.angle_step=7"),
        ("geometry", {"generator": {"canvas": 32}}, "data.generator.size_min=34: .* 28"),
        ("countdown", {"generator": {"number_max": 10**19}}, "data.generator.number_max"),
        ("countdown", {"split_sizes": {"cd34": 900}, "generator": {"number_max": 5}}, "split_sizes.cd34: 450 distinct"),
        ("countdown", {"scale": "pocket", "split_sizes": {"cd2": 5000}}, "split_sizes.cd2: 5000 distinct problems"),
        ("mathematics", {"scale": "pocket", "split_sizes": {"sum2": 5000}}, "sum2: 5000 distinct sums .* only 1163"),
        (
            "geometry",
            {"split_sizes": {"probe": 300}, "generator": {"angle_step": 15, "angle_min": 45, "tilt": 0}},
            "split_sizes.probe: 100 .*kind",
        ),
    ],
)
def test_wrong_configurations_are_named(name, change, named, tmp_path):
    with pytest.raises(UserError, match=named):
        tasks.get(name).write_data(configuration(name, **change), tmp_path)
    assert not list(tmp_path.iterdir())


def test_documents_that_do_not_exist_are_not_drawn_for_ever():
    data = configuration("countdown", generator={"target_min": 70}).data  # value_max is 60
    with pytest.raises(UserError, match=r"data\.split_sizes\.base: .*only 0"):
        tasks.get("countdown").documents(data, seeds.generator(0, "countdown", "base"))


def test_other_problems_are_moved_and_not_replaced(tmp_path, capsys):
    of = ["scale=smoke", "task=countdown", f"paths.results={tmp_path}"]
    configs = [compose_config([*of, *words]) for words in ([], ["data.seed=1"], [])]
    home, identities = data_directory(configs[0]), [data_identity(config) for config in configs]
    first = make_data(configs[0])
    problems = (home / "train.parquet").read_bytes()
    make_data(configs[1])
    aside = home.with_name(f".data.was-{identities[0]}")
    assert read_json(aside / "summary.json") == first and (aside / "train.parquet").read_bytes() == problems
    assert f"moved to {aside.name}" in capsys.readouterr().err
    make_data(configs[2])
    make_data(configs[2])  # the same ones need no room
    assert (home / "train.parquet").read_bytes() == problems
    assert {p.name for p in home.parent.iterdir()} == {"data", *(f".data.was-{i}" for i in identities)}


def test_the_registry_names_its_tasks():
    assert set(tasks.TABLE) == set(TASKS) and tasks.get("countdown") is tasks.get("countdown")
    with pytest.raises(UserError, match=r"task=cuntdown: unknown task \(did you mean 'countdown'\?\); allowed: c"):
        tasks.get("cuntdown")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("countdown")
    tasks.get("countdown").write_data(configuration("countdown", split_sizes={"cd4": 20}), folder)
    return folder / "cd4.parquet"


def test_files_have_the_schema_of_verl(file):
    import pyarrow.parquet as pq

    for index, row in enumerate(pq.read_table(file).to_pylist()):
        numbers, target = (truth := json.loads(row["reward_model"]["ground_truth"]))["numbers"], truth["target"]
        name = f"countdown:{'-'.join(map(str, sorted(numbers)))}:{target}"
        assert row == {
            "data_source": "countdown",
            "prompt": [{"role": "user", "content": f"{' '.join(map(str, numbers))} : {target} ="}],
            "ability": "planning",
            "reward_model": {"style": "rule", "ground_truth": row["reward_model"]["ground_truth"]},
            "extra_info": {"split": "cd4", "index": index, "id": name},
        }


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("change", [{"source": "hub"}, {"prompt": "boxed"}])
def test_only_worked_steps_have_a_tokenizer(name, change):
    with pytest.raises(UserError, match=f"data.{next(iter(change))}"):
        tasks.get(name).build_tokenizer(configuration(name, **change))


@pytest.mark.parametrize(("name", "size"), [("countdown", 41 + 7 + 5), ("mathematics", 21 + 9 + 5)])
def test_a_tokenizer_takes_one_token_a_word_and_back(name, size, tmp_path):
    """As built, and as AutoTokenizer reads it from beside a Qwen2 configuration."""
    task, config = tasks.get(name), configuration(name)
    config.data.split_sizes["base"] = 300
    documents = task.documents(config.data, seeds.generator(0, name, "base"))[0]
    built = task.build_tokenizer(config)
    built.save_pretrained(tmp_path)
    Qwen2Config(vocab_size=len(built), hidden_size=64, num_hidden_layers=2).save_pretrained(tmp_path)
    for tokenizer in (built, AutoTokenizer.from_pretrained(tmp_path)):
        assert len(tokenizer) == size
        assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<pad>", 0)
        assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<eos>", 1)
        for text in [text for document in documents for text in (document.prompt, document.response)]:
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.convert_ids_to_tokens(ids) == text.split()
        for text in [document.response for document in documents]:
            ids = tokenizer(text)["input_ids"]
            decoded = tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True)
            assert decoded == "".join(text.split()) and tokenizer(decoded)["input_ids"] == ids
            assert tokenizer(f" {text}\n")["input_ids"] == ids
        message = [{"role": "user", "content": documents[0].prompt}]
        for start in (False, True):  # the chat template adds nothing
            shown = tokenizer.apply_chat_template(message, add_generation_prompt=start, tokenize=False)
            assert shown == documents[0].prompt
        # what verl asks of a tokenizer beside a Qwen2 model
        assert tokenizer.convert_ids_to_tokens(tokenizer("<|im_end|>")["input_ids"]) == ["<|im_end|>"]
        assert len(tokenizer("\n")["input_ids"]) == 1
