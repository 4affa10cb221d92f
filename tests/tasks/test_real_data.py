"""The real sets: from the hub (a stand-in on loopback) and from folders, cleaned and reported."""

import gzip
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.hub_server import COMMIT, Hub, serve
from support.paths import needs_shared

from bapo import tasks
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.tasks import files, sources

TRAIN = [
    ("What is $1+1$?", "2"),
    ("How many?", ""),
    ("What is $2+2$?", "5"),
    ("Add the digits of " + "1" * 2100 + ".", "2100"),  # more tokens than Table 3 allows
    ("Find $a_1$.", "12"),
    ("Find $a_2$.", "13"),
]
TESTS = {
    "aime24": [("Find $n$.", "025")],
    "amc": [("Find $m$.", 142.0)],
    "math500": [("Find $k$.", "2 * 6.5 = <<2*6.5=13>>13\n#### 13,000")],  # as in GSM8K
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
    (home / "amc/data").mkdir(parents=True)
    (home / "train.jsonl.gz").write_bytes(gzip.compress(lines(as_rows(TRAIN))))
    (home / "aime24.jsonl").write_bytes(lines(as_rows(TESTS["aime24"])))
    (home / "amc/data/train-0.parquet").write_bytes(parquet(as_rows(TESTS["amc"])))
    (home / "math500.json").write_text(json.dumps(as_rows(TESTS["math500"])))
    (home / "minerva.jsonl").write_bytes(lines(as_rows(TESTS["minerva"])))
    pairs = [{"question": problem, "final_answer": answer} for problem, answer in TESTS["olympiad"]]
    (home / "olympiad.parquet").write_bytes(parquet(pairs))
    return home


def mathematics(folder: Path, **changes: Any) -> Any:
    hub: dict[str, Any] = {name: {"repository": f"x/{name}", "rows": 1} for name in TESTS}
    hub["train"] = {"repository": "x/DeepScaleR", "rows": len(TRAIN), "file": "train.jsonl.gz"}
    for name, file in (("aime24", "aime24.jsonl"), ("math500", "math500.json"), ("minerva", "minerva.jsonl")):
        hub[name]["file"] = file
    hub["math500"]["answer_after"] = "####"
    hub["olympiad"] |= {"columns": {"problem": "question", "answer": "final_answer"}, "file": "olympiad.parquet"}
    sizes = {"train": 100, "probe": 3, **dict.fromkeys(TESTS, 10)}
    data = {"source": "hub", "prompt": "boxed", "seed": 0, "split_sizes": sizes, "hub": hub, **changes}
    return OmegaConf.create({"data": data, "paths": {"data_folder": str(folder)}})


# ------------------------------------------------------------------------------------------------ mathematics


def test_a_folder_of_sets_becomes_problems(folder: Path, tmp_path: Path) -> None:
    config = mathematics(folder)
    tasks.get("mathematics").write_data(config, tmp_path / "out")
    problems = {split: files.read_problems(tmp_path / f"out/{split}.parquet") for split in config.data.split_sizes}
    assert [p.id for p in problems["train"]] == [f"DeepScaleR:{i}" for i in (0, 2, 4, 5)]
    asked = "Let's think step by step and output the final answer within \\boxed{}."
    assert problems["train"][0].prompt == f"What is $1+1$? {asked}"
    golds = [json.loads(problems[name][0].ground_truth)["answers"] for name in TESTS]
    assert golds == [["025"], ["142"], ["13,000"], ["1e3", "1000"], ["$(1,2)$"]]
    assert {p.id for p in problems["probe"]} < {p.id for p in problems["train"]} and len(problems["probe"]) == 3
    grader = tasks.get("mathematics")
    for name, response in (("aime24", "25"), ("amc", "142"), ("minerva", "1000"), ("olympiad", "(1,2)")):
        truth = problems[name][0].ground_truth
        assert grader.verify(f"... \\boxed{{{response}}}", truth).correct, name
        assert not grader.verify("... \\boxed{-99}", truth).correct, name
    report = json.loads((tmp_path / "out/cleaning.json").read_text())
    assert (report["unusable_answers"], report["long_prompts"]) == (["DeepScaleR:1"], ["DeepScaleR:3"])
    assert (report["rows"]["train"], report["problems"]["train"]) == (len(TRAIN), len(TRAIN) - 2)
    digest = hashlib.sha256((folder / "math500.json").read_bytes()).hexdigest()
    assert report["files"]["paths.data_folder/math500.json"] == digest


@pytest.mark.parametrize("name", [None, "held-out"])
def test_rows_of_a_probe_in_the_training_file_are_not_trained_on(
    name: str | None, folder: Path, tmp_path: Path
) -> None:
    config = mathematics(folder, split_sizes={"train": 100, "probe": 1})
    config.data.hub.probe = {**config.data.hub.train, "start": 4, **({"set": name} if name else {})}
    counts = tasks.get("mathematics").write_data(config, tmp_path / "out")
    problems = {split: files.read_problems(tmp_path / f"out/{split}.parquet") for split in ("train", "probe")}
    assert [p.id for p in problems["train"]] == [f"DeepScaleR:{i}" for i in (0, 2, 5)]
    assert [p.id for p in problems["probe"]] == [f"{name or 'DeepScaleR'}:4"]
    assert [counts[split]["rows"] for split in ("train", "probe")] == [len(TRAIN), 2]


def test_a_probe_of_another_file_has_ids_of_its_own(folder: Path, tmp_path: Path) -> None:
    """Row 0 of one file is not row 0 of another, though both are the same set's."""
    config = mathematics(folder, split_sizes={"train": 100, "probe": 1})
    config.data.hub.probe = {"repository": "y/DeepScaleR", "file": "aime24.jsonl"}
    named = "data.hub.train and data.hub.probe: DeepScaleR:0 is a row of each.*give one a `set`"
    with pytest.raises(UserError, match=named):
        tasks.get("mathematics").write_data(config, tmp_path / "out")
    config.data.hub.probe.set = "held-out"
    counts = tasks.get("mathematics").write_data(config, tmp_path / "out")
    assert counts["train"]["problems"] == len(TRAIN) - 2 and counts["probe"]["problems"] == 1


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("split_sizes", {"probe": 5, "amc": 5}, "data.split_sizes.probe"),
        ("hub", {"train": {"repository": "x/y", "row": 1}}, "data.hub.train.row: .*rows"),
        ("hub", {"train": {}}, "data.hub.train.repository"),
    ],
)
def test_wrong_configurations_are_named(key: str, value: dict, named: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=named):
        tasks.get("mathematics").write_data(mathematics(folder, **{key: value}), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("aime24.jsonl", lines(as_rows([("Find.", "")])), "data.hub.aime24: problem aime24:0.*line 1.*empty"),
        ("aime24.jsonl", lines(as_rows([("Find.", "1")] * 2)), r"aime24.jsonl: 2 rows, expected 1 \(data.hub.aime24\)"),
        ("aime24.jsonl", lines([{"question": "Find.", "answer": "1"}]), "line 1: no column 'problem'"),
        ("aime24.jsonl", lines([{"problem": " ", "answer": "1"}]), "line 1: column 'problem'"),
        ("math500.json", b"{}}", "math500.json.*column 3"),
        ("aime24.jsonl", b'{"problem": "a", "problem": "b"}', "aime24.jsonl.*problem is given twice; leave one out"),
        ("math500.json", json.dumps(as_rows([("k?", "13")])).encode(), "row 0: no '####'.*math500.answer_after"),
        ("train.jsonl.gz", b"\x1f\x8bnot gzip", "train.jsonl.gz"),
    ],
)
def test_broken_sets_are_named(name: str, content: bytes, named: str, folder: Path, tmp_path: Path) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=named):
        tasks.get("mathematics").write_data(mathematics(folder), tmp_path / "out")


# ------------------------------------------------------------------------------------------------ the hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A stand-in for the hub; huggingface_hub's own client asks it."""
    files = {"test.jsonl": lines(as_rows([("Find $n$.", "025")])), "README.md": b"# A set"}
    return serve(monkeypatch, tmp_path / "cache", {"x/lines": files})


def load(entry: dict[str, Any], columns: tuple[str, ...] = ("problem", "answer")) -> list[Any]:
    rows, _ = sources.read_rows(sources.source({"train": entry}, "train"), None, columns)
    return [tuple(row.values.values()) for row in rows]


def test_a_revision_is_pinned(hub: Hub, tmp_path: Path, monkeypatch) -> None:
    from huggingface_hub import constants

    entry = {"repository": "x/lines", "files": ["test.jsonl"], "rows": 1, "revision": COMMIT}
    assert load(entry) == [("Find $n$.", "025")]
    digest = hashlib.sha256(hub.repositories["x/lines"]["test.jsonl"]).hexdigest()
    _, digests = sources.read_rows(sources.source({"train": entry}, "train"), None, ("problem",))
    assert digests == {f"x/lines@{COMMIT}/test.jsonl": digest}
    hub.commit = "f" * 40  # the newest is another one now
    hub.repositories["x/lines"]["test.jsonl"] = lines(as_rows([("Find $n$.", "26")]))
    assert load(entry) == [("Find $n$.", "025")]  # of the cache
    assert load({**entry, "revision": None}) == [("Find $n$.", "26")]
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(UserError, match=r"data.hub.train: x/lines .*paths.data_folder"):
        load(entry)


def test_the_command_loads_what_the_configuration_pins_from_a_mirror(tmp_path: Path, monkeypatch) -> None:
    """Few rows in the files, columns and commits that paper_mathematics.yaml names."""
    entries = compose_config(["scale=paper", "task=mathematics"]).data.hub
    content = {
        "train": json.dumps(as_rows(TRAIN)).encode(),
        "aime24": parquet(as_rows(TESTS["aime24"])),
        "amc": parquet(as_rows(TESTS["amc"])),
        "math500": lines(as_rows([("Find $k$.", "13")])),
        "minerva": lines([{"question": "Find $z$.", "answer": "1e3"}]),
        "olympiad": parquet([{"question": "Find all pairs.", "final_answer": ["$(1,2)$"], "solution": ["s"]}]),
    }
    repositories = {entries[name].repository: {entries[name].files[0]: body} for name, body in content.items()}
    commits = {entry.repository: entry.revision for entry in entries.values()}
    serve(monkeypatch, tmp_path / "cache", repositories, commits)
    command = ["data", "scale=paper", "task=mathematics", f"paths.results={tmp_path}"]
    command += [f"data.hub.train.rows={len(TRAIN)}", *(f"data.hub.{name}.rows=1" for name in TESTS)]
    assert main(command) == 0
    recorded = json.loads((tmp_path / "paper/mathematics/data/cleaning.json").read_text())["files"]
    assert recorded == {
        f"{entry.repository}@{entry.revision}/{entry.files[0]}": hashlib.sha256(content[name]).hexdigest()
        for name, entry in entries.items()
    }
    problems = files.read_problems(tmp_path / "paper/mathematics/data/olympiad.parquet")
    assert json.loads(problems[0].ground_truth)["answers"] == ["$(1,2)$"]


def picture(shade: int) -> bytes:
    from PIL import Image

    Image.new("RGB", (28, 28), (shade, 0, 0)).save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()


GEOMETRY = {  # shade, question, answer
    "train": [(0, "Find $x$.", "3"), (0, "Find $y$.", "4"), (10, "Find $x$.", "5")],
    "geo3k_val": [(30, "Find $x$.", "7")],
    "geo3k_test": [(0, "Find $x$.", "3"), (40, "Find $x$.", "9")],
}


def geometry(folder: Path) -> Any:
    common = {"repository": "x/geometry3k", "file_columns": {"images": "image"}}
    hub = {
        name: {**common, "file": f"{name}.jsonl", "files": [f"data/{name}-*.parquet"], "rows": len(rows)}
        for name, rows in GEOMETRY.items()
    }
    sizes = {"train": 9, "probe": 2, "geo3k_val": 9, "geo3k_test": 9}
    data = {"source": "hub", "prompt": "think-boxed", "seed": 0, "split_sizes": sizes, "hub": hub}
    return OmegaConf.create({"data": data, "paths": {"data_folder": str(folder)}})


def geometry_folder(home: Path, as_hub: bool = False) -> Path:
    """A complete set: JSON lines beside PNG files, or the parquet files of the hub."""
    (home / "geometry3k/data").mkdir(parents=True)
    for name, rows in GEOMETRY.items():
        made: list[dict[str, Any]] = []
        for shade, problem, answer in rows:
            (home / f"{shade}.png").write_bytes(picture(shade))
            image = {"images": [{"bytes": picture(shade), "path": None}]} if as_hub else {"image": f"{shade}.png"}
            made.append({**image, "problem": f"<image>{problem}", "answer": answer})
        path = home / (f"geometry3k/data/{name}-0.parquet" if as_hub else f"{name}.jsonl")
        path.write_bytes(parquet(made) if as_hub else lines(made))
    return home


@pytest.mark.parametrize("as_hub", [False, True])
def test_geometry_has_its_diagrams_in_the_files(as_hub: bool, tmp_path: Path) -> None:
    tasks.get("geometry").write_data(geometry(geometry_folder(tmp_path / "sets", as_hub)), tmp_path / "out")
    problems = {name: files.read_problems(tmp_path / "out" / f"{name}.parquet") for name in (*GEOMETRY, "probe")}
    assert [p.id for p in problems["geo3k_test"]] == ["geometry3k/test:0", "geometry3k/test:1"]
    problem, verify = problems["train"][2], tasks.get("geometry").verify
    assert problem.images == (picture(10),)
    assert problem.prompt.startswith("<image>Find $x$. First think") and problem.prompt.endswith("within \\boxed{}.")
    assert verify("<think>a</think> \\boxed{5}", problem.ground_truth).correct
    assert not verify("<think>a</think> \\boxed{6}", problem.ground_truth).correct


def test_a_probe_in_the_training_file_of_geometry_is_not_trained_on(tmp_path: Path) -> None:
    config = geometry(geometry_folder(tmp_path / "sets"))
    config.data.hub.probe = {**config.data.hub.train, "start": 1}
    tasks.get("geometry").write_data(config, tmp_path / "out")
    ids = [[p.id for p in files.read_problems(tmp_path / f"out/{name}.parquet")] for name in ("train", "probe")]
    assert ids == [["geometry3k/train:0"], ["geometry3k/probe:1", "geometry3k/probe:2"]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "../secret.png"}, "line 1: no diagram ../secret.png"),
        ({"image": [{"bytes": None, "path": "x.png"}]}, "column 'images' holds no diagram"),
        ({"problem": "<image><image>Find $x$."}, "1 diagrams, but the text has 2 places for them"),
        ({"answer": ""}, "data.hub.geo3k_val: problem geometry3k/val:0"),
    ],
)
def test_broken_geometry_rows_are_named(row, message, tmp_path: Path) -> None:
    home = geometry_folder(tmp_path / "sets")
    (tmp_path / "secret.png").write_bytes(picture(1))
    good = {"image": "30.png", "problem": "Find $x$.", "answer": "7"}
    (home / "geo3k_val.jsonl").write_bytes(lines([{**good, **row}]))
    with pytest.raises(UserError, match=message):
        tasks.get("geometry").write_data(geometry(home), tmp_path / "out")


@pytest.mark.slow
def test_the_real_sets_of_mathematics(tmp_path: Path) -> None:
    home = needs_shared("data", "math", "deepscaler_train.jsonl.gz").parents[1]
    overrides = ["scale=paper", "task=mathematics", f"paths.results={tmp_path}", f"paths.data_folder={home}"]
    assert main(["data", *overrides]) == 0
    out = tmp_path / "paper/mathematics/data"
    report = json.loads((out / "cleaning.json").read_text())
    assert report["rows"] == {"train": 40315, "aime24": 30, "amc": 83, "math500": 500, "minerva": 272, "olympiad": 675}
    assert report["problems"]["train"] == 40308 and len(report["unusable_answers"]) == 6
    assert report["long_prompts"] == ["DeepScaleR-Preview-Dataset:7283"]
    aime = files.read_problems(out / "aime24.parquet")
    assert json.loads(aime[1].ground_truth) == {"answers": ["025"], "format": "boxed"}
