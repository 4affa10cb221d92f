"""Study files, the workflow's settings, the order of runs, and what the analysis is told of a study."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.configs import edit
from support.studies import PAPER

from analysis import products
from analysis import study as reader
from bapo.__main__ import main
from bapo.describe import study_content
from bapo.errors import UserError
from bapo.experiments import order
from bapo.experiments.compose import once
from bapo.experiments.order import AT_ONCE, Cell, Priorities
from bapo.experiments.places import options
from bapo.experiments.settings import Settings, read_settings
from bapo.experiments.studies import load_study, study_of
from bapo.methods.base import MethodConfig

STUDIES = options("study")
#: the seeds of Countdown at smoke scale, with what stands nowhere else before two seeds
SEEDS = "methods: *rows\n      seeds: [1, 2]"
#: what `set` refuses -> the key of --config to use instead
OF_ALL_JOBS = {"seed": "seeds", "method": "methods", "scale": "scale", "engine": "engine", "device": "device"}
OF_ALL_JOBS |= {"method.name": "methods", "scale.name": "scale", "scale.engine": "engine", "setting": "scale"}
OF_ALL_JOBS |= {"tracking": "tracking", "tracking.kind": "tracking"}
OF_ALL_JOBS |= {"paths": "results", "paths.results": "results", "paths.data_folder": "data_folder"}


@pytest.mark.parametrize("name", PAPER)
def test_a_study_is_the_papers_runs_and_the_same_methods_at_every_scale(name: str) -> None:
    wanted = [Cell(task, model, method, 42) for task, model, trained in PAPER[name] for method in trained]
    assert list(load_study(name, "paper").cells) == wanted
    for scale in ("smoke", "laptop") if name != "table1" else ():
        assert {(c.task, c.method) for c in load_study(name, scale).cells} == {(c.task, c.method) for c in wanted}


def test_table1_runs_every_row_of_the_paper_that_its_authors_ran() -> None:
    from analysis import paper

    for task, model, trained in PAPER["table1"]:
        quoted = {"mopps", "remix"} if task == "mathematics" else set()  # "taken from the corresponding paper"
        assert {row.method for row in paper.table1()[model].rows} == {"base", *trained, *quoted}


def test_every_stand_in_plays_one_part_of_the_paper_in_its_order() -> None:
    from bapo import tasks

    played = {}
    for scale in ("smoke", "laptop", "gpu", "paper"):
        settings = Settings(scale=scale)
        for cell in {c.task: c for c in study_of("table1", settings).cells}.values():  # one of each task
            names = settings.run(cell).evaluation.benchmarks
            played[scale, cell.task] = [tasks.get(cell.task).roles.get(name, name) for name in names]
    assert {key: found for key, found in played.items() if found != played["paper", key[1]]} == {}


def test_a_figure_that_two_studies_name(experiments: Path) -> None:
    edit(experiments / "study" / "figure6.yaml", "[figure6_ablations]", "[figure6_ablations, figure5_test_curves]")
    with pytest.raises(UserError, match=r"figure6.yaml: figure5_test_curves .*figure5 "):
        products.drawn_by(products.figures_of, "laptop")


def test_a_tuned_run_goes_by_the_methods_own_name() -> None:
    settings = Settings()
    study = study_of("table1", settings)
    content = study_content(study, settings)
    shown = {(c["task"], c["method"]): c for c in content["cells"]}
    bapo = shown["countdown", "bapo"]
    assert (bapo["method_title"], bapo["tuned"]) == ("+BAPO", ["v = 2"])
    assert Path(bapo["run"]).parent.name == "bapo+v2" and "tuned" not in shown["mathematics", "bapo"]
    assert content["curves"] == ["grpo", "dapo", "bapo"] and len(study.curved) == 3 * 3 * 3
    for name, scale in (("untuned", "laptop"), ("figure5", "laptop"), ("table1", "smoke"), ("table1", "paper")):
        assert study_of(name, Settings(scale=scale)).tuned == {}, (name, scale)
    chosen = study_content(study_of(products.TUNING, settings), settings)["chosen"]
    assert chosen["countdown"]["grpo_v5"] == ["rate_1e-4"] and "grpo" not in chosen["countdown"]


@pytest.mark.parametrize(
    ("name", "asked", "missing"),
    [
        ("stale", {}, 0),
        ("stale", {"seeds": (1, 2)}, 6 * 7),
        ("stale", {"seeds": (1, 2), "methods": ("grpo", "bapo")}, 6 * 2),
        ("stale", {"seeds": tuple(range(11, 19))}, 0),  # a repetition
        ("prompts", {"seeds": (301,)}, 504 - 7),
        ("table1", {"seeds": (1,)}, 0),  # has no rules
    ],
)
def test_a_study_with_rules_says_which_runs_it_lacks(name: str, asked: dict[str, Any], missing: int) -> None:
    settings = Settings(**asked)
    content = study_content(study_of(name, settings), settings, titles=False)
    assert len(content.get("missing", ())) == missing


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_the_candidates_have_seeds_of_their_own_and_no_evaluation(scale: str) -> None:
    study = load_study(products.TUNING, scale)
    seeds = {cell.seed for cell in study.cells}
    others = [name for name in products.at_scale(STUDIES, scale) if name != products.TUNING]
    assert len(seeds) > 1 and not seeds & {cell.seed for name in others for cell in load_study(name, scale).cells}
    files = study.summaries(Path("home"), curves=True)
    assert len(files) == len(study.cells) and not any("/eval/" in file or "/base/" in file for file in files)


def test_every_row_of_table_1_has_candidates_with_the_same_learning_rates() -> None:
    settings = Settings()
    rates: dict[tuple[str, str], set[float]] = {}
    for cell in {c.method + c.task: c for c in study_of(products.TUNING, settings).cells}.values():
        config = settings.run(cell)
        rates.setdefault((cell.task, cell.method.split("+")[0]), set()).add(config.train.learning_rate)
    assert set(map(frozenset, rates.values())) == {frozenset({1e-4, 2e-4, 4e-4})}
    rows = {(c.task, c.method.partition("+")[0]) for c in load_study("table1", "laptop").cells}
    parents = {"bapo_without_x2": "bapo", "bapo_without_x3": "bapo"}
    assert {(task, parents.get(method, method)) for task, method in rows} == set(rates)


def test_a_paired_study_has_one_seed_a_model() -> None:
    """The seeds of study prompts are of one base model each, whose rows share them."""
    cells = load_study("prompts", "laptop").cells
    assert len(cells) == 7 * 24 * 3
    assert {(c.task, c.model[-7:], c.seed) for c in cells if c.seed in (301, 412, 524)} == {
        ("countdown", "base_28", 301),
        ("geometry", "base_39", 412),
        ("mathematics", "base_51", 524),
    }
    some = load_study("prompts", "laptop", methods=["grpo"], seeds=[412, 301]).cells
    assert [(c.task, c.model[-7:], c.seed) for c in some] == [
        ("countdown", "base_28", 301),
        ("geometry", "base_39", 412),
    ]
    with pytest.raises(UserError, match="seeds=7: each model of prompts has its own seed; choose from 301 to 324 401"):
        load_study("prompts", "laptop", seeds=[301, 7])


@pytest.mark.parametrize(("row", "other"), [("grpo+mopps_loss", "mopps"), ("mopps+grpo_loss", "grpo")])
def test_a_row_with_the_loss_of_another_has_all_of_it(row: str, other: str) -> None:
    """Study prompts_loss keeps MoPPS' choice of prompts apart from its loss."""
    settings = Settings()
    configs = {c.method: settings.run(c) for c in load_study("prompts_loss", "laptop").cells}
    mine, wanted = (configs[name].method for name in (row, other))
    shared = set(MethodConfig.model_fields) - {"algorithm", "name", "title", "kind"}
    assert {key: getattr(mine, key) for key in shared} == {key: getattr(wanted, key) for key in shared}
    assert mine.algorithm != wanted.algorithm


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("title: Table 1", "titel: Table 1", ["titel: no such key (did you mean 'title'", "name, title, scales"]),
        ("[qwen2.5-math-7b]", "[qwen-7b]", ["scales.paper.2", "unknown model 'qwen-7b'", "qwen2.5-math-7b"]),
        (SEEDS, SEEDS.replace("2", "x"), ["scales.smoke.1.seeds.1=x: must be a valid integer"]),
        (SEEDS, SEEDS.replace("2", "1"), ["scales.smoke", "grpo seed 1", "twice"]),
        (SEEDS, SEEDS.replace("2", "-1"), ["scales.smoke.1.seeds.1=-1: must be greater"]),
        (SEEDS, SEEDS.replace("2", f"{2**63}"), ["scales.smoke.1.seeds.1=", "must be less than"]),
        (SEEDS, SEEDS.replace("seeds", "paired: true\n      seeds"), ["paired needs a seed for each model, not 2"]),
        ("name: table1", "name: table2", ["name=table2", "table1.yaml"]),
        ("name: table1", "name: table1\nreference: grpp", ["reference: no row grpp (did you mean 'grpo'?)"]),
    ],
)
def test_a_wrong_study_file_is_named_with_its_field(experiments: Path, old: str, new: str, parts: list[str]) -> None:
    edit(experiments / "study" / "table1.yaml", old, new)
    with pytest.raises(UserError) as caught:
        load_study("table1", "smoke")
    assert [part for part in ("table1.yaml", *parts) if part not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_an_unknown_study_or_scale_names_those_there_are(experiments: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean 'table1'.*figure16, .*table1"):
        load_study("table_1", "laptop")
    (experiments / "scale" / "huge.yaml").write_text("name: huge\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"'huge'.* laptop, smoke, pocket"):
        load_study("table1", "huge")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scal": "paper"}, r"scal: no such key \(did you mean 'scale'\?\); allowed: scale, .* methods, seeds"),
        ({"scale": "papr"}, r"scale=papr: unknown scale .*'paper'"),
        ({"methods": ["grpo", "bpo"]}, "methods=bpo: "),
        ({"seeds": ["-1"]}, "seeds.0=-1: "),
        ({"engine": "vllm"}, "engine=vllm: .*'torch' or 'verl'"),
        ({"seeds": [2**63]}, f"seeds.0={2**63}: must be less than"),
        ({"trials": 10**9}, "trials=1000000000: must be less than"),
        ({"set": "50"}, "set.0=50: write KEY=VALUE"),
        ({"set": ["=5"]}, "set.0==5: write KEY=VALUE"),
        *(
            ({"set": [f"{key}=x"]}, rf"set.0={key}=x: {key} cannot be set for single jobs; write {instead}=")
            for key, instead in OF_ALL_JOBS.items()
        ),
        *(
            ({"set": [f"{key}=x"]}, f"set.0={key}=x: {key} cannot be set for single jobs; a study names it")
            for key in ("task", "model", "task.name", "model.name", "models", "models.qwen2-112k.train")
        ),
        ({"gpu_python": "a 'b"}, "gpu_python=a 'b: "),
        ({"results": 20261127}, "results=20261127: must be text; .* ./ before"),
        ({"results": "a{b}"}, "results=a{b}: must be a path without braces"),
        ({"results": "a\nb"}, r"results='a\\nb': must be a path without .*control characters"),
        ({"results": "~/x"}, "results=~/x: must be a path .* a first dash or ~"),
        ({"data_folder": "~"}, "data_folder=~: must be a path .* a first dash or ~"),
        ({"results": "-x"}, "results=-x: must be a path .* a first dash"),
        ({"results": f"{__file__}/x"}, r"results=.+test_studies.py is no folder; "),
        ({"title": "x"}, "title: no such key; allowed: scale"),
        ({"data_folder": "/does/not/exist"}, "data_folder=/does/not/exist: there is no such folder"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(given: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"^--config {message}"):
        read_settings(given)


def test_what_each_key_is_set_to_is_said_once() -> None:
    twice = ["train.steps=5", "train.steps=6"]
    for refuse in (lambda: read_settings({"set": twice}), lambda: once(["scale=smoke", *twice])):
        with pytest.raises(UserError, match=r"^train.steps=6: train.steps=5 is given, too; keep one of them"):
            refuse()
    assert read_settings({"set": ["tracking.mode=online", "method.v=2"]}).set


@pytest.mark.parametrize("group", ["method", "model", "task", "study", "scale", "sweep", "setting"])
def test_a_file_that_no_folder_may_be_called_after_is_named(experiments: Path, group: str) -> None:
    (experiments / group).mkdir(exist_ok=True)
    (experiments / group / "a b.yaml").write_text("name: a b\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"{group}/a b.yaml: must be the name of one folder"):
        options(group)


def test_a_studys_title_takes_nothing_from_the_environment(experiments: Path) -> None:
    edit(experiments / "study" / "table1.yaml", "title: Table 1", "title: ${oc.env:HOME}")
    assert load_study("table1", "smoke").file.title == "${oc.env:HOME}"


def test_settings_as_people_and_snakemake_write_them() -> None:
    several = read_settings({"seeds": ["1", "2"], "methods": "grpo,bapo"})
    assert several == Settings(seeds=(1, 2), methods=("grpo", "bapo"))
    one = read_settings({"seeds": 3, "set": "train.steps=5 'method.c2_range=[0.1, 0.2]'"})
    assert one == Settings(seeds=(3,), set=("train.steps=5", "method.c2_range=[0.1, 0.2]"))
    settings = Settings(scale="smoke", seeds=(4,), set=("train.steps=5",), results="a b")
    assert read_settings(json.loads(settings.as_json())) == settings
    for other in ([1], 1):
        with pytest.raises(UserError, match=r"^--settings=.* must be a mapping"):
            read_settings(other, "--settings")
    assert Settings().as_json() == "{}"


def test_settings_reach_the_configuration() -> None:
    folder = "odd folder/it's=1"
    words = {"engine": "torch", "device": "cpu", "tracking": "none", "set": ("train.steps=7",)}
    settings = Settings(scale="smoke", results=folder, data_folder="2024", **words)
    config = settings.run(Cell("countdown", "qwen2-112k", "bapo", 5))
    assert (config.device, config.tracking.kind, config.train.steps, config.seed) == ("cpu", "none", 7, 5)
    assert (config.paths.results, config.paths.data_folder) == (folder, "2024")


def test_a_methods_settings_reach_its_runs_and_nothing_else() -> None:
    """`data` and `base` compose with the default method, which may not know them."""
    settings = Settings(scale="smoke", set=("method.v=2", "train.steps=7"))
    assert settings.overrides_of("bapo") == settings.overrides
    assert settings.overrides_of("") == ("train.steps=7",)
    assert settings.run(Cell("countdown", "qwen2-112k", "bapo", 1)).method.v == 2


def test_the_study_for_the_analysis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Written by the command that the workflow calls, read by the reader of the analysis."""
    out = tmp_path / "table1.json"
    assert main(["describe", "table1", "--settings", '{"scale": "papr"}', "--out", str(out)]) == 2
    assert "did you mean 'paper'?" in capsys.readouterr().err and not out.exists()
    asked = json.dumps({"scale": "paper", "results": str(tmp_path)})
    assert main(["describe", "table1", "--settings", asked, "--out", str(out)]) == 0
    read = reader.load(out)
    assert [(b.task, b.model, list(b.methods)) for b in read.blocks] == PAPER["table1"]
    blocks = {b.model: b for b in read.blocks}
    block = blocks["qwen2.5-math-7b"]
    assert block.benchmarks == (("cd34", "CD-34"), ("cd4", "CD-4"))
    assert [name for name, _ in blocks["qwen2.5-vl-3b"].benchmarks] == ["geo3k_val", "geo3k_test"]
    (cell,) = block.methods["bapo"]
    assert (cell.method_title, cell.kind, cell.model_title) == ("+BAPO", "off", "Qwen2.5 Math 7B")
    home = tmp_path / "paper" / "countdown" / "qwen2.5-math-7b"
    assert cell.run == home / "bapo" / "seed42" and block.base.run == home / "base"
    assert "Paper scale" in read.note
    assert read.command == f"bapo run runs_table1 scale=paper results={tmp_path}"


TABLE = load_study("table1", "laptop")


def test_the_first_look_then_row_after_row() -> None:
    runs = order.in_order(TABLE.cells, TABLE.method_of)
    assert sorted(map(str, runs)) == sorted(map(str, TABLE.cells))
    look = [(r.task, TABLE.method_of(r), r.seed) for r in runs[:3]]
    assert look == [("countdown", method, 1) for method in ("dapo", "grpo", "bapo")]
    rows = [runs[i : i + 3] for i in range(9, len(runs), 3)]
    assert all(len({(TABLE.method_of(r), r.seed) for r in row}) == 1 for row in rows)
    assert all({r.task for r in row} == {"mathematics", "countdown", "geometry"} for row in rows)
    assert [r.seed for r in runs] == sorted(r.seed for r in runs)  # the whole table with one seed, then the next


@pytest.mark.parametrize("scale", ["smoke", "pocket", "gpu", "single_gpu", "paper"])
def test_every_scale_has_a_first_look_of_one_task_and_seed(scale: str) -> None:
    study = load_study("table1", scale)
    look = order.first_look(study.cells, study.method_of)
    assert {study.method_of(c) for c in look} == {"dapo", "grpo", "bapo"}
    assert len({(c.task, c.model, c.seed) for c in look}) == 1


def test_a_study_without_its_methods_still_has_one() -> None:
    study = load_study("table1", "laptop", methods=["mopps"], seeds=[7, 5])
    assert [(c.task, c.method, c.seed) for c in order.first_look(study.cells)] == [("countdown", "mopps", 5)]


def test_priorities_follow_the_order() -> None:
    """Nothing that the first look needs waits for the rest, and an evaluation waits for nothing."""
    of = Priorities(TABLE)
    runs = [of.of_run(cell) for cell in order.in_order(TABLE.cells, TABLE.method_of)]
    assert all(a > b for a, b in pairwise(runs)) and runs[-1] > of.of_run(Cell("countdown", "m", "grpo", 1))
    look, rest = of.of_start("countdown"), of.of_start("geometry")
    assert (of.of_start("countdown", "qwen2-112k"), of.of_start("geometry", "qwen2.5-vl-325k")) == (look, rest)
    assert all(a > b for a, b in pairwise([AT_ONCE, look, *runs[:3], rest, *runs[3:]]))
