"""What every task of generated problems promises: the same bytes for the same configuration, and errors that name."""

from __future__ import annotations

from typing import Any

import pytest

from bapo import tasks
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.tasks.files import read_problems
from bapo.tasks.generated import owner

TASKS = ("countdown", "geometry", "mathematics")


def configuration(task: str, **data: Any) -> Any:
    config = compose_config(["scale=smoke", f"task={task}", "tracking=none"])
    for key, value in data.items():
        setattr(config.data, key, value)
    return config


@pytest.mark.parametrize("name", TASKS)
def test_the_same_configuration_gives_the_same_bytes_and_another_seed_other_problems(name, tmp_path):
    task, said = tasks.get(name), []
    config = configuration(name)
    written = {f"{split}.parquet" for split in config.data.split_sizes if split != "base"}
    counts = task.write_data(config, tmp_path / "all", said.append)
    assert {p.name for p in (tmp_path / "all").iterdir()} == written and len(said) == len(counts) == len(written)
    probe = {"probe": config.data.split_sizes["probe"]}
    task.write_data(configuration(name, split_sizes=probe), tmp_path / "alone")
    task.write_data(configuration(name, split_sizes=probe, seed=1), tmp_path / "seed")
    files = [tmp_path / folder / "probe.parquet" for folder in ("all", "alone", "seed")]
    assert files[0].read_bytes() == files[1].read_bytes()  # other splits do not matter
    assert [p.id for p in read_problems(files[0])] != [p.id for p in read_problems(files[2])]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt": "think-boxed"}, "data.prompt=think-boxed: with data.source=generated must be chain"),
        ({"split_sizes": {"aime24": 5}}, "data.split_sizes.aime24"),
        ({"split_sizes": {"train": 0}}, "data.split_sizes.train=0"),
    ],
)
def test_wrong_data_configuration_is_named(name, change, named, tmp_path):
    with pytest.raises(UserError, match=named):
        tasks.get(name).write_data(configuration(name, **change), tmp_path)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("change", [{"source": "hub"}, {"prompt": "boxed"}])
def test_only_worked_steps_have_a_tokenizer(name, change):
    with pytest.raises(UserError, match=f"data.{next(iter(change))}"):
        tasks.get(name).build_tokenizer(configuration(name, **change))


def test_every_name_has_one_owner_in_proportion():
    shares = {"a": 0.7, "b": 0.3}
    found = [owner(f"problem:{i}", shares) for i in range(2000)]
    assert found == [owner(f"problem:{i}", shares) for i in range(2000)]
    assert found.count("a") / 2000 == pytest.approx(0.7, abs=0.05)
