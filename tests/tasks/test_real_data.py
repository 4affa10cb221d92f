"""The real sets: from the hub (a stand-in on loopback) and from folders, cleaned and reported."""

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.hub_server import COMMIT, Hub
from support.paths import needs_shared

from bapo import tasks
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import data_identity
from bapo.tasks import files
from bapo.tasks.geometry import hub as geometry_hub
from bapo.tasks.mathematics import hub as mathematics_hub
from bapo.tasks.real import cleaning, sources

LONG = "Let $a_1, a_2, \\ldots$ be a sequence of positive integers whose first ten terms sum to {}. Find $a_{{11}}$."
TRAIN = [  # one of each thing that is wrong with DeepScaleR
    ("What is $1+1$?", "2"),
    ("what is $1 + 1$?", " 2 "),
    ("What is $2+2$?", "4"),
    ("What is $2+2$? ", "5"),
    ("How many?", ""),
    ("Which one?", "N/A"),
    ("In the figure, what is $x$?", "3"),
    ("As shown: [asy]draw((0,0)--(1,1));[/asy] what is $y$?", "7"),
    (LONG.format(50), "12"),
    ("Add the digits of " + "1" * 2100 + ".", "2100"),  # more tokens than Table 3 allows
]
TESTS = {
    "aime24": [("Find $n$.", "025")],
    "amc": [("Find $m$.", 142.0)],
    "math500": [(LONG.format(60), "13")],
    "minerva": [("Find $z$.", ["1e3", "1000"])],
    "olympiad": [("Find all pairs.", ["$(1,2)$"])],
}


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), buffer := io.BytesIO())
    return buffer.getvalue()


def as_rows(pairs: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [{"problem": problem, "answer": answer, "solution": "not read"} for problem, answer in pairs]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small sets in a folder: JSON lines packed and plain, a JSON array, parquet files laid out as on the hub."""
    home = tmp_path / "sets"
    (home / "maths").mkdir(parents=True)
    (home / "maths/train.jsonl.gz").write_bytes(gzip.compress(lines(as_rows(TRAIN))))
    (home / "aime24.jsonl").write_bytes(lines(as_rows(TESTS["aime24"])))
    (home / "amc/data").mkdir(parents=True)
    (home / "amc/data/train-0.parquet").write_bytes(parquet(as_rows(TESTS["amc"])))
    (home / "math500.json").write_text(json.dumps(as_rows(TESTS["math500"])))
    (home / "minerva.jsonl").write_bytes(lines(as_rows(TESTS["minerva"])))
    (home / "olympiad.parquet").write_bytes(
        parquet([{"question": problem, "final_answer": answer} for problem, answer in TESTS["olympiad"]])
    )
    return home


def mathematics(folder: Path | None, **changes: Any) -> Any:
    hub: dict[str, Any] = {name: {"repository": f"x/{name}", "rows": 1} for name in TESTS}
    hub["train"] = {"repository": "x/DeepScaleR", "rows": len(TRAIN), "file": "maths/train.jsonl.gz"}
    hub["olympiad"]["columns"] = {"problem": "question", "answer": "final_answer"}
    sizes = {"train": 100, "probe": 3, **dict.fromkeys(TESTS, 10)}
    return OmegaConf.create(
        {
            "data": {"prompt": "boxed", "seed": 0, "split_sizes": sizes, "hub": hub, "cleaning": {}, **changes},
            "paths": {"data_folder": folder and str(folder)},
        }
    )


def written(config: Any, out: Path) -> dict[str, list[Any]]:
    mathematics_hub.SETS.write(config, out)
    return {split: files.read_problems(out / f"{split}.parquet") for split in config.data.split_sizes}


# ------------------------------------------------------------------------------------------------ mathematics


def test_a_folder_of_sets_becomes_problems(folder: Path, tmp_path: Path) -> None:
    problems = written(mathematics(folder), tmp_path / "out")
    assert [p.id for p in problems["train"]] == [f"DeepScaleR:{i}" for i in (0, 1, 2, 3, 5, 6, 7, 8)]
    assert problems["train"][0].prompt == (
        "What is $1+1$? Let's think step by step and output the final answer within \\boxed{}."
    )
    golds = {name: json.loads(problems[name][0].ground_truth)["answers"] for name in TESTS}
    assert golds == {
        "aime24": ["025"],
        "amc": ["142"],
        "math500": ["13"],
        "minerva": ["1e3", "1000"],
        "olympiad": ["$(1,2)$"],
    }
    assert {p.id for p in problems["probe"]} < {p.id for p in problems["train"]} and len(problems["probe"]) == 3
    grader = tasks.get("mathematics")
    for name, response in (("aime24", "25"), ("amc", "142"), ("minerva", "1000"), ("olympiad", "(1,2)")):
        truth = problems[name][0].ground_truth
        assert grader.verify(f"... \\boxed{{{response}}}", truth).correct, name
        assert not grader.verify("... \\boxed{-99}", truth).correct, name


def test_the_same_data_twice_is_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for out in ("a", "b"):
        mathematics_hub.SETS.write(mathematics(folder), tmp_path / out)
    made = [{p.name: p.read_bytes() for p in (tmp_path / out).iterdir()} for out in ("a", "b")]
    assert made[0] == made[1] and {"train.parquet", "cleaning.json", "cleaning.md"} < set(made[0])


@pytest.mark.parametrize(
    ("decisions", "left"),
    [
        ({}, [0, 1, 2, 3, 5, 6, 7, 8]),
        ({"long_prompts": "keep"}, [0, 1, 2, 3, 5, 6, 7, 8, 9]),
        ({"not_available": "drop"}, [0, 1, 2, 3, 6, 7, 8]),
        ({"duplicates": "first"}, [0, 2, 5, 6, 7, 8]),
        ({"figures": "drop"}, [0, 1, 2, 3, 5, 8]),
        ({"figures": "drop-undrawn"}, [0, 1, 2, 3, 5, 7, 8]),
        ({"overlap": "drop"}, [0, 1, 2, 3, 5, 6, 7]),
        ({"duplicates": "first", "figures": "drop", "overlap": "drop", "not_available": "drop"}, [0, 2]),
    ],
)
def test_every_decision_changes_the_training_set(decisions, left, folder: Path, tmp_path: Path) -> None:
    problems = written(mathematics(folder, cleaning=decisions), tmp_path / "out")
    assert [int(p.id.partition(":")[2]) for p in problems["train"]] == left
    assert {p.id for p in problems["probe"]} <= {p.id for p in problems["train"]}
    assert all(len(problems[name]) == 1 for name in TESTS)
    report = json.loads((tmp_path / "out/cleaning.json").read_text())
    assert sum(report["dropped"].values()) == len(TRAIN) - len(left)


def test_the_report_says_what_was_found(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    mathematics_hub.SETS.write(mathematics(folder), tmp_path, said.append)
    report = json.loads((tmp_path / "cleaning.json").read_text())
    assert report["long_prompts"] == ["DeepScaleR:9"] and report["dropped"] == {"empty_answers": 1, "long_prompts": 1}
    assert report["empty_answers"] == ["DeepScaleR:4"] and report["not_available"] == ["DeepScaleR:5"]
    doubled = report["duplicates"]["train"]
    assert (doubled["groups"], doubled["rows"], doubled["conflicting"]) == (2, 4, 1)
    assert doubled["listed"][-1] == {"ids": ["DeepScaleR:2", "DeepScaleR:3"], "golds": [["4"], ["5"]]}
    assert (report["figures"]["problems"], report["figures"]["ids_undrawn"]) == (2, ["DeepScaleR:6"])
    overlap = {(o["first"], o["second"]): o for o in report["overlap"]}
    assert len(overlap) == 15  # every pair of six sets
    pair = overlap["train", "math500"]
    assert pair["near"] == 1 and pair["pairs"][0]["of"] == "DeepScaleR:8" and 0.5 <= pair["pairs"][0]["share"] < 1
    assert all(o["near"] == 0 for names, o in overlap.items() if names != ("train", "math500"))
    assert (
        report["files"]["paths.data_folder"]["math500.json"]
        == hashlib.sha256((folder / "math500.json").read_bytes()).hexdigest()
    )
    text = (tmp_path / "cleaning.md").read_text()
    assert all(line in text for line in said) and any(line.startswith("duplicates: 2 problems") for line in said)
    assert "| train | math500 | 1 | 1 | 1 | 1 | 0 |" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": "chain"}, "data.prompt=chain: with data.source=hub must be boxed or think-boxed"),
        ({"split_sizes": {"amc23": 1}}, "data.split_sizes.amc23: no such split; allowed: train, probe, aime24"),
        ({"split_sizes": {"train": 0}}, "data.split_sizes.train=0: must be at least 1"),
        ({"split_sizes": {"probe": 5, "amc": 5}}, "data.split_sizes.probe: .* set train as well"),
        ({"cleaning": {"figure": "drop"}}, "data.cleaning.figure: no such decision; allowed: empty_answers"),
        ({"cleaning": {"figures": "no"}}, "data.cleaning.figures=no: must be one of keep, drop, drop-undrawn"),
    ],
)
def test_wrong_configurations_are_named(change, message, folder: Path, tmp_path: Path) -> None:
    config = mathematics(folder)
    for key, value in change.items():
        setattr(config.data, key, value)
    with pytest.raises(UserError, match=message):
        mathematics_hub.SETS.write(config, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("aime24.jsonl", lines(as_rows([("Find.", "")])), "data.hub.aime24: problem aime24:0.*empty"),
        ("aime24.jsonl", lines(as_rows([("Find.", "1")] * 2)), r"aime24.jsonl: 2 rows, expected 1 \(data.hub.aime24\)"),
        ("aime24.jsonl", lines([{"question": "Find.", "answer": "1"}]), "line 1: no column 'problem' .it has question"),
        ("aime24.jsonl", lines([{"problem": " ", "answer": "1"}]), "line 1: column 'problem' holds no text"),
        ("aime24.jsonl", lines([{"problem": "Find.", "answer": {}}]), "line 1: an answer must be text, a number or"),
        ("aime24.jsonl", b"[1]\n", "aime24.jsonl line 1: holds a list; write one JSON object a line"),
        ("aime24.jsonl", b"[" * 100_000, "aime24.jsonl line 1: .*; write one JSON object a line"),
        ("math500.json", b"{}}", "math500.json line 1, column 3: Extra data; must be a JSON array"),
        ("maths/train.jsonl.gz", b"\x1f\x8bnot gzip", "train.jsonl.gz: cannot be read after line 0"),
        ("olympiad.parquet", b"PAR1", "olympiad.parquet: not a parquet file"),
    ],
)
def test_broken_sets_are_named(name, content, message, folder: Path, tmp_path: Path) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        mathematics_hub.SETS.write(mathematics(folder), tmp_path / "out")


def test_what_overlaps() -> None:
    train = cleaning.grams(
        ["one two three four five six seven eight nine ten eleven twelve", "Find $x$.", "Compute 5!"]
    )
    test = cleaning.grams(
        [
            "ONE two three, four five six seven eight nine ten eleven and so on for ever",  # 2 of 7 n-grams
            "find \\left( x \\right)",  # short: the same or nothing
            "find $x$ and $y$",
        ]
    )
    assert cleaning.shares(train, test) == {(0, 0): pytest.approx(2 / 7), (1, 1): 1.0}
    assert cleaning.shares(cleaning.grams(["Find $x$."], short=False), cleaning.grams(["Find $x$."], short=False)) == {}
    assert cleaning.shares(train, cleaning.grams([])) == {}


# ------------------------------------------------------------------------------------------------ the hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stand-in for the hub; huggingface_hub's own client asks it, with a cache of its own."""
    from huggingface_hub import constants

    server = Hub(
        {
            "x/lines": {"test.jsonl": lines(as_rows([("Find $n$.", "025")])), "README.md": b"# A set"},
            "x/parts": {f"data/train-{i}.parquet": parquet([{"nums": [i, i + 1, 9], "target": i}]) for i in range(2)},
        }
    )
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = "HUGGINGFACE_CO_URL_TEMPLATE"
    monkeypatch.setattr(constants, template, server.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    server.server_close()


def load(entry: dict[str, Any], columns: tuple[str, ...] = ("problem", "answer")) -> list[Any]:
    source = sources.source({"train": entry}, "train")
    rows = list(sources.rows(source, sources.find(source, None), columns))
    return [tuple(row.values[c] for c in columns) for row in rows]


def test_a_revision_is_pinned(hub: Hub, tmp_path: Path, monkeypatch) -> None:
    from huggingface_hub import constants

    entry = {"repository": "x/lines", "files": ["test.jsonl"], "rows": 1, "revision": COMMIT}
    assert load(entry) == [("Find $n$.", "025")]
    source = sources.source({"train": entry}, "train")
    digest = hashlib.sha256(hub.repositories["x/lines"]["test.jsonl"]).hexdigest()
    assert sources.digests([sources.find(source, None)]) == {f"x/lines@{COMMIT}": {"test.jsonl": digest}}
    hub.commit = "f" * 40  # the newest is another one now
    hub.repositories["x/lines"]["test.jsonl"] = lines(as_rows([("Find $n$.", "26")]))
    assert load(entry) == [("Find $n$.", "025")]  # of the cache
    assert load({**entry, "revision": None}) == [("Find $n$.", "26")]
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(UserError, match=r"data.hub.train: x/lines cannot be loaded .* set paths.data_folder"):
        load(entry)


def test_parquet_parts_of_the_hub(hub: Hub) -> None:
    entry = {"repository": "x/parts", "rows": 2, "start": 1}
    assert load(entry, ("nums", "target")) == [([1, 2, 9], 1)]
    with pytest.raises(UserError, match=r"train-0.parquet: 2 rows, expected 3 \(data.hub.train\); get the whole set"):
        load({**entry, "rows": 3}, ("nums", "target"))
    with pytest.raises(UserError, match=r"x/none cannot be loaded"):
        load({"repository": "x/none"})
    with pytest.raises(UserError, match=r"x/parts cannot be loaded .it has no file that matches"):
        load({"repository": "x/parts", "files": ["*.csv"]})


def test_the_command_loads_what_the_configuration_pins_from_a_mirror(tmp_path: Path) -> None:
    """Few rows in the files, columns and commits that paper_mathematics.yaml names, then the same without a network."""
    entries = compose_config(["scale=paper", "task=mathematics"]).data.hub
    content = {
        "train": json.dumps(as_rows(TRAIN)).encode(),
        "aime24": parquet(as_rows(TESTS["aime24"])),
        "amc": parquet(as_rows(TESTS["amc"])),
        "math500": lines(as_rows(TESTS["math500"])),
        "minerva": lines([{"question": "Find $z$.", "answer": "1e3"}]),
        "olympiad": parquet([{"question": "Find all pairs.", "final_answer": ["$(1,2)$"], "solution": ["s"]}]),
    }
    server = Hub(
        {entries[name].repository: {entries[name].files[0]: body} for name, body in content.items()},
        {entry.repository: entry.revision for entry in entries.values()},
    )
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home")}
    command = [
        sys.executable,
        "-m",
        "bapo",
        "data",
        "scale=paper",
        "task=mathematics",
        f"paths.results={tmp_path}",
        f"data.hub.train.rows={len(TRAIN)}",
        *(f"data.hub.{name}.rows=1" for name in TESTS),
    ]
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        done = subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        server.shutdown()
        server.server_close()
    recorded = json.loads((tmp_path / "paper/mathematics/data/cleaning.json").read_text())["files"]
    assert recorded == {
        f"{entry.repository}@{entry.revision}": {entry.files[0]: hashlib.sha256(content[name]).hexdigest()}
        for name, entry in entries.items()
    }
    problems = files.read_problems(tmp_path / "paper/mathematics/data/olympiad.parquet")
    assert json.loads(problems[0].ground_truth)["answers"] == ["$(1,2)$"]


def test_a_row_without_a_gold_does_not_hide_its_duplicate(folder: Path, tmp_path: Path) -> None:
    rows = [("How many?", ""), ("How many?", "8"), ("How many? ", "8")]
    (folder / "maths/train.jsonl.gz").write_bytes(gzip.compress(lines(as_rows(rows))))
    config = mathematics(folder, cleaning={"duplicates": "first"})
    config.data.hub.train.rows = 3
    assert [p.id for p in written(config, tmp_path / "out")["train"]] == ["DeepScaleR:1"]


# ------------------------------------------------------------------------------------------------ geometry


def picture(shade: int, level: int = 6) -> bytes:
    from PIL import Image

    Image.new("RGB", (28, 28), (shade, 0, 0)).save(buffer := io.BytesIO(), "PNG", compress_level=level)
    return buffer.getvalue()


GEOMETRY = {  # shade, question, answer; 0 is in train (twice) and in test, once with the same question
    "train": [(0, "Find $x$.", "3"), (0, "Find $y$.", "4"), (10, "Find $x$.", "5"), (20, "Find $x$.", "6")],
    "geo3k_val": [(30, "Find $x$.", "7")],
    "geo3k_test": [(0, "Find $x$.", "3"), (40, "Find $x$.", "9")],
}


def geometry(folder: Path, **changes: Any) -> Any:
    hub = {
        name: {
            "repository": "x/geometry3k",
            "file": f"{name}.jsonl",
            "file_columns": {"images": "image"},
            "files": [f"data/{name}-*.parquet"],
            "rows": len(rows),
        }
        for name, rows in GEOMETRY.items()
    }
    return OmegaConf.create(
        {
            "data": {
                "prompt": "think-boxed",
                "seed": 0,
                "hub": hub,
                "cleaning": {},
                "split_sizes": {"train": 9, "probe": 2, "geo3k_val": 9, "geo3k_test": 9},
                **changes,
            },
            "paths": {"data_folder": str(folder)},
        }
    )


def geometry_folder(home: Path, as_hub: bool = False) -> Path:
    """A complete set: JSON lines beside PNG files, or the parquet files of the hub, whose PNGs are packed otherwise."""
    for name, rows in GEOMETRY.items():
        made = []
        for number, (shade, problem, answer) in enumerate(rows):
            if as_hub:
                image = [{"bytes": picture(shade, level=1), "path": None}]
                made.append({"images": image, "problem": f"<image>{problem}", "answer": answer})
            else:
                place = home / "diagrams" / f"{name}{number}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(picture(shade))
                made.append({"image": f"diagrams/{place.name}", "problem": problem, "answer": answer})
        path = home / (f"geometry3k/data/{name}-0.parquet" if as_hub else f"{name}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(parquet(made) if as_hub else lines(made))
    return home


@pytest.mark.parametrize("as_hub", [False, True])
def test_geometry_has_its_diagrams_in_the_files(as_hub: bool, tmp_path: Path) -> None:
    import datasets

    geometry_hub.SETS.write(geometry(geometry_folder(tmp_path / "sets", as_hub)), tmp_path / "out")
    problems = {name: files.read_problems(tmp_path / "out" / f"{name}.parquet") for name in (*GEOMETRY, "probe")}
    assert [p.id for p in problems["geo3k_test"]] == ["geometry3k/test:0", "geometry3k/test:1"]
    assert {p.id for p in problems["probe"]} < {p.id for p in problems["train"]}
    problem = problems["train"][2]
    assert problem.images == (picture(10, level=1 if as_hub else 6),)
    assert problem.prompt.startswith("<image>Find $x$. First think") and problem.prompt.endswith("within \\boxed{}.")
    assert problem.prompt.count("<image>") == 1
    assert tasks.get("geometry").verify("<think>a</think> \\boxed{5}", problem.ground_truth).correct
    assert not tasks.get("geometry").verify("<think>a</think> \\boxed{6}", problem.ground_truth).correct
    # as verl opens it
    data = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "out/train.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert data[2]["images"][0]["bytes"] == problem.images[0] and data[2]["reward_model"]["style"] == "rule"


@pytest.mark.parametrize("as_hub", [False, True])
def test_shared_diagrams_are_found_by_their_pixels(as_hub: bool, tmp_path: Path) -> None:
    home = geometry_folder(tmp_path / "sets", as_hub)
    if not as_hub:  # one of the copies packed otherwise
        (home / "diagrams/geo3k_test0.png").write_bytes(picture(0, level=0))
    said: list[str] = []
    geometry_hub.SETS.write(geometry(home, cleaning={"shared_diagrams": "drop"}), tmp_path / "out", said.append)
    report = json.loads((tmp_path / "out/cleaning.json").read_text())
    found = {(s["first"], s["second"]): s for s in report["shared_diagrams"]}
    shared = found["train", "geo3k_test"]
    assert (shared["diagrams"], shared["first_problems"], shared["second_problems"]) == (1, 2, 1)
    assert shared["same_question"] == ["geometry3k/test:0"]
    assert found["train", "geo3k_val"]["diagrams"] == found["geo3k_val", "geo3k_test"]["diagrams"] == 0
    assert [p.id for p in files.read_problems(tmp_path / "out/train.parquet")] == [
        "geometry3k/train:2",
        "geometry3k/train:3",
    ]
    assert any("1 of train are also in geo3k_test, in 2 and 1 problems, 1 with the same question" in s for s in said)
    assert all(o["compared"] == 0 for o in report["overlap"])  # "Find x." alone is no problem


def test_missing_diagrams_are_named(tmp_path: Path) -> None:
    home = geometry_folder(tmp_path / "sets")
    config = geometry(home)
    geometry_hub.SETS.write(config, tmp_path / "out")
    for name in ("train0", "train3"):
        (home / f"diagrams/{name}.png").unlink()
    with pytest.raises(UserError, match=r"train.jsonl line 1: no diagram .*train0.png \(2 of 4 are missing\); put the"):
        geometry_hub.SETS.write(config, tmp_path / "out")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "../secret.png"}, "is outside of"),
        ({"image": "notes.png"}, "the diagram is no PNG or JPEG file"),
        ({"image": None}, "column 'images' holds no diagram"),
        ({"image": [{"bytes": None, "path": "x.png"}]}, "column 'images' holds no diagram"),
        ({"problem": "<image><image>Find $x$."}, "1 diagrams, but the text has 2 places for them"),
        ({"answer": ""}, "data.hub.geo3k_val: problem geometry3k/val:0"),
    ],
)
def test_broken_geometry_rows_are_named(row, message, tmp_path: Path) -> None:
    home = geometry_folder(tmp_path / "sets")
    (tmp_path / "secret.png").write_bytes(picture(1))
    (home / "notes.png").write_bytes(b"GIF89a")
    good = {"image": "diagrams/geo3k_val0.png", "problem": "Find $x$.", "answer": "7"}
    (home / "geo3k_val.jsonl").write_bytes(lines([{**good, **row}]))
    with pytest.raises(UserError, match=message):
        geometry_hub.SETS.write(geometry(home), tmp_path / "out")


# ------------------------------------------------------------------------------------------------ identity


def test_decisions_are_part_of_the_data() -> None:
    names = ["scale=paper", "task=mathematics"]
    plain = data_identity(compose_config(names))
    assert data_identity(compose_config([*names, "data.cleaning.overlap=drop"])) != plain
    assert data_identity(compose_config([*names, "paths.data_folder=elsewhere"])) == plain


@pytest.mark.parametrize("task", ["mathematics", "geometry"])
def test_the_decisions_in_the_tree_are_the_defaults(task: str) -> None:
    decisions = OmegaConf.to_container(compose_config(["scale=paper", f"task={task}"]).data.cleaning)
    choices = {"mathematics": mathematics_hub, "geometry": geometry_hub}[task].SETS.choices
    assert decisions == cleaning.options({}, choices)


def test_generated_problems_have_nothing_to_decide(capsys, tmp_path: Path) -> None:
    status = main(["data", "scale=smoke", "data.cleaning.overlap=drop", f"paths.results={tmp_path}"])
    assert status == 2 and "data.cleaning: decisions on the real sets" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ the real sets


@pytest.mark.slow
def test_the_real_sets_of_mathematics(capsys, tmp_path: Path) -> None:
    home = needs_shared("data", "math", "deepscaler_train.jsonl.gz").parents[1]
    overrides = ["scale=paper", "task=mathematics", f"paths.results={tmp_path}", f"paths.data_folder={home}"]
    assert main(["data", *overrides]) == 0
    err = capsys.readouterr().err
    assert "empty answers: 6 in training" in err and 'answers "N/A": 1 in training' in err
    out = tmp_path / "paper/mathematics/data"
    report = json.loads((out / "cleaning.json").read_text())
    assert report["rows"] == {"train": 40315, "aime24": 30, "amc": 83, "math500": 500, "minerva": 272, "olympiad": 675}
    assert report["problems"]["train"] == 40308 and report["dropped"] == {"empty_answers": 6, "long_prompts": 1}
    assert report["long_prompts"] == ["DeepScaleR-Preview-Dataset:7283"]
    assert report["figures"]["problems"] == 1338
    assert report["duplicates"]["train"]["groups"] == 950 and report["duplicates"]["train"]["differing_text"] == 184
    near = {o["second"]: o["near"] for o in report["overlap"] if o["first"] == "train"}
    assert near == {"aime24": 0, "amc": 0, "math500": 28, "minerva": 0, "olympiad": 14}
    aime = files.read_problems(out / "aime24.parquet")
    assert json.loads(aime[1].ground_truth) == {"answers": ["025"], "format": "boxed"}


def test_the_real_diagrams_of_the_validation_split(tmp_path: Path) -> None:
    home = needs_shared("data", "geometry3k", "geometry3k_val.jsonl").parents[1]
    config = compose_config(["scale=paper", "task=geometry", f"paths.data_folder={home}"])
    config.data.split_sizes = {"geo3k_val": 300}
    assert geometry_hub.SETS.write(config, tmp_path) == {"geo3k_val": {"problems": 300, "rows": 300}}
    problems = files.read_problems(tmp_path / "geo3k_val.parquet")
    assert problems[1].images == ((home / "geometry3k/val/2102.png").read_bytes(),)
    assert tasks.get("geometry").verify("\\boxed{5\\sqrt{13}}", problems[1].ground_truth).correct
    config.data.split_sizes = {"train": 2101}
    with pytest.raises(UserError, match=r"geometry3k_train.jsonl.gz line 1: no diagram .*\(2101 of 2101 are missing\)"):
        geometry_hub.SETS.write(config, tmp_path)
