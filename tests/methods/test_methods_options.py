"""The methods' options: defaults, and errors that name the key, the value and the cure; a method of another package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import example
from support.paths import ROOT

from bapo import methods
from bapo.__main__ import main
from bapo.errors import UserError
from bapo.experiments.compose import compose_config
from bapo.store.files import GROUPS, read_table


def test_defaults_are_the_papers_table_3():
    c = methods.MethodConfig()
    assert (c.kl_coef, c.entropy_coef, c.clip_low, c.clip_high) == (None, None, 0.2, 0.2)
    b = methods.config_of({"algorithm": "bapo"})
    assert (b.v, b.m, b.c1, b.c2_range, b.c3_range) == (5, 5, 1 / 8, [1 / 8, 4 / 8], [2 / 8, 5 / 8])
    assert (b.sync_phase, b.threshold_direction, b.average_reward) == ("literal", "rising", "batch")
    assert (b.x2_admission, b.high_steps, b.kl_to, b.aggregation) == ("improved", 3, "rollout", "sequence-mean")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "method.algorithm has no value: name one of .*bapo.*repo"),
        ({"algorithm": "bappo"}, "method.algorithm=bappo: .*bapo, .*bapo_without_x2"),
        ({"algorithm": "bapo", "vv": 5}, r"method.vv: .*'v'"),
        ({"algorithm": "bapo", "c2_range": [0.3, 0.5]}, r"method.c2_range=\[0.3, 0.5\]: c2 must not exceed c3"),
    ],
)
def test_errors_name_the_key_the_value_and_what_is_allowed(node, message):
    with pytest.raises(UserError, match=message):
        methods.config_of(node)


@pytest.mark.parametrize(
    ("algorithm", "values"),
    [
        ("grpo", {"kind": "both", "clip_low": 1.0, "dual_clip": 0.5, "aggregation": "mean"}),
        ("grpo_delayed", {"sync_phase": "second"}),
        ("bapo", {"v": 0, "kl_to": "alpha", "c1": 1.0, "c2_range": [0.5, 0.1], "c3_range": [0.25, 0.4]}),
        ("bapo", {"v": 2.5}),
        ("ba_ppo", {"gamma": 1.1}),
        ("ppo", {"advantage_std": "unbiased"}),
        ("dapo", {"clip_high": 0.0}),  # a changed default keeps its rule
        ("partial_rollouts", {"share": 1.5}),
        ("repo", {"min_cached": 17, "strategy": "random", "advantage_eps": -1.0}),
        ("arpo", {"positive": 1.0, "max_std": 0.0, "max_mean": 1.5}),
        ("bapo", {"filter_mean": 1.5, "advantage_eps": -1e-6}),
        ("bapo_xi", {"clip_low_least": 0.5, "clip_high_most": 0.1, "clip_step": 0.7, "target": 0.0}),
        ("exgrpo", {"start_reward": 1.0}),
        ("prompt_replay", {"lowest": 0.8}),
        ("remix", {"kl_decay": -0.1}),
        ("areal", {"staleness": -1, "clip_centre": "step-policy"}),
        ("m2po", {"dual_clip": 3.0, "clip_centre": "step-policy"}),
        *((name, {"clip_centre": "step-policy"}) for name in ("bapo_xi", "gspo", "bapo_code", "bapo_released")),
        ("remix", {"passes": 3}),
        ("bapo_oracle", {"expectations": "separate"}),
        ("bapo_without_x2", {"m": 1, "x2_policy": "rollout"}),
        ("bapo_without_x3", {"x3_filter": "none"}),
        ("bapo_x1", {"m": 1, "remove_replayed": True}),
        *(("dapo", {"kl_coef": 0.001}), ("grpo", {"sequence_cap": 3.0})),  # without a KL, without weights
        *((name, {"clip_low": 0.3, "clip_high": 0.3}) for name in ("luffy", "relift")),
    ],
)
def test_impossible_values_are_refused_by_name(algorithm: str, values: dict[str, object]) -> None:
    for key, value in values.items():
        with pytest.raises(UserError, match=rf"method\.(c2_range|{key}[.\d]*)="):
            methods.config_of({"algorithm": algorithm, key: value})


@pytest.mark.parametrize("words", ["dapo method.kl_to=reference", "bapo method.kl_to=reference method.kl_coef=0"])
def test_another_kl_needs_a_coefficient_of_the_method(words: str) -> None:
    with pytest.raises(UserError, match=r"method.kl_to=.*: it has no effect with kl_coef=0"):
        compose_config(["scale=smoke", "task=countdown", *f"method={words}".split()])


@pytest.mark.parametrize("words", ["mopps+grpo_loss", "bapo+kl_reference", "grpo_v5+one_centre+kl_rollout"])
def test_a_setting_without_a_kl_takes_it_from_every_method(words: str) -> None:
    assert compose_config(["scale=smoke", "task=countdown", f"method={words}", "train.kl_coef=0"]).method.kl_coef == 0


@pytest.mark.parametrize("words", [[], ["method.kl_to=none", "method.kl_coef=null"]])
@pytest.mark.parametrize("name", methods.names())
def test_the_options_of_a_run_are_valid_options(name: str, words: list[str]) -> None:
    """verl's processes read them once more."""
    options = compose_config(["scale=smoke", "task=countdown", f"method={name}", *words]).method
    assert options.kl_coef is not None and methods.config_of(options.model_dump()) == options


def test_the_page_shows_the_table_that_the_classes_give() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert methods.table(linked=True) in page, "paste methods.table(linked=True) there"


@pytest.mark.parametrize("name", methods.names())
def test_a_methods_file_says_what_it_is(name: str) -> None:
    cls = methods.get(name)
    assert cls.__module__ == f"bapo.methods.{name}"
    own = vars(cls)
    assert own["title"].startswith("+") and own["summary"] and own["source"] and cls.cost
    assert cls.Config is not methods.MethodConfig or cls.kind == "on"
    assert [methods.get(other).title for other in methods.names()].count(cls.title) == 1


def test_a_method_is_imported_without_the_others() -> None:
    code = "import sys; from bapo import methods; methods.get('bapo')\n"
    code += "print(*sorted(m for m in sys.modules if m.startswith('bapo.methods.') or m == 'torch'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["bapo.methods.bapo", "bapo.methods.base"]


def test_a_method_of_a_file_is_a_class_of_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "Own, other, Not = bapo.BAPO, bapo.BAPO.draw_prompts, dict"
    (tmp_path / "own.py").write_text(f"from bapo.methods import bapo\n{names}\n")
    monkeypatch.chdir(tmp_path)
    assert methods.get("own.py:Own").__name__ == "BAPO"
    for name, named in (("other", "derived"), ("Not", "derived"), ("none", "own.py has no none")):
        with pytest.raises(UserError, match=f"method.algorithm=own.py:{name}: .*{named}"):
            methods.get(f"own.py:{name}")


def test_a_method_of_another_package_is_listed_and_trained(
    tiny_world: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's example in a distribution that is installed; elsewhere it does not exist."""
    world = [word for word in tiny_world if not word.startswith("train.steps=")]
    words = ["train", *world, "method=grpo", "method.algorithm=toy", "method.name=toy", "seed=1", "train.steps=2"]
    assert main(words) == 2 and "toy" in capsys.readouterr().err
    (tmp_path / "toy_method.py").write_text(example("python", "bapo/methods/positive_only.py"), encoding="utf-8")
    information = tmp_path / "toy_method-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-method\nVersion: 1.0\n", encoding="utf-8")
    points = "[another]\ntoy = none:None\n[bapo.methods]\ntoy = toy_method:PositiveOnly\n"
    (information / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["methods"]) == 0 and "without a correct response" in capsys.readouterr().out
    assert main(words) == 0
    (run,) = Path(compose_config(tiny_world).paths.results).glob("smoke/countdown/*/toy/seed1")
    groups = read_table(run / GROUPS)
    assert len(groups) == 16 and (groups["used"] == (groups["rewards"].map(sum) > 0)).all()
    assert set(groups.loc[~groups["used"], "reason"]) <= {"never solved"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("Config = {'clip_low': 0.1}", "Own.Config={'clip_low': 0.1}: must be a class derived from MethodConfig"),
        ("class Config: pass", "Own.Config=<class .*>: must be a class derived from MethodConfig"),
        ("class Config(MethodConfig): share: float", "Own.Config.share: has no value; add it"),
        ("class Config(MethodConfig): clip_low: float = 'a'", "Own.Config.clip_low=a: must be a valid number"),
        *(
            (f"{name} = None", f"Own.{name}: no such hook .did you mean '{hook}'.*; allowed: .*advantages")
            for name, hook in (
                ("advantage", "advantages"),
                ("sync_rollout_policy", "syncs_rollout_policy"),
                ("draw_prompt", "draw_prompts"),
                ("build_batches", "build_batch"),
                ("use_critic", "uses_critic"),
                ("save", "saved"),
                ("titel", "title"),
                ("suorce", "source"),
            )
        ),
        ("pass\nclass Options(MethodConfig): share: float = 0.5", "no method reads Options; write Config = Options in"),
    ],
)
def test_a_class_that_is_no_method_of_the_suites_kind_is_refused(
    body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(f"from bapo.methods import Method, MethodConfig\nclass Own(Method):\n    {body}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^own.py: {message}"):
        methods.get("own.py:Own")


@pytest.mark.parametrize("name", methods.names())
def test_a_method_of_the_suite_has_no_name_close_to_a_hooks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = type("Own", (), dict(vars(methods.get(name)), __module__="own"))
    methods._sound(type("Own", (own, methods.Method), {"Config": methods.MethodConfig}), "own.py")


@pytest.mark.parametrize("code", [0, 3, None, "done"])
def test_code_that_exits_has_not_done_what_was_asked_for(
    code: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(methods, "show", lambda: sys.exit(code))
    assert main(["methods"]) == 1
    assert f"{Path(__file__).name}:" in (said := capsys.readouterr().err) and f"sys.exit({code!r}) before" in said
