"""Composing and checking a configuration. The tree is the product's own experiments/."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.configs import edit, forget
from support.paths import ROOT

from bapo import methods, project
from bapo.errors import UserError, exit_status
from bapo.experiments.compose import compose_config, run_config
from bapo.experiments.identity import base_identity, train_identity
from bapo.experiments.places import base_directory, data_directory, options, run_directory

MATCHED = "qwen2-112k+matched"
MINE = "algorithm: bapo\nname: mine\ntitle: +Mine\nkl_coef: ${train.kl_coef}\n"


def write_mine(experiments: Path, content: str = MINE) -> None:
    """Write a method's file, which gives it values under a name of its own."""
    (experiments / "method").mkdir()
    (experiments / "method" / "mine.yaml").write_text(content)


def test_the_default_is_the_laptop_and_complete() -> None:
    c = compose_config(["seed=3", "method=bapo"])
    assert (c.scale.name, c.task.name, c.model.kind, c.engine) == ("laptop", "countdown", "scratch", "torch")
    assert str(run_directory(c)) == "results/laptop/countdown/qwen2-112k/bapo/seed3"
    assert str(base_directory(c)) == "results/laptop/countdown/qwen2-112k/base"
    assert str(data_directory(c)) == "results/laptop/countdown/data"


@pytest.mark.parametrize("scale", ["laptop", "smoke", "paper"])
def test_every_method_composes_at_every_scale(scale: str) -> None:
    names = set()
    for method in options("method"):
        config = run_config(scale, "countdown", "", method, 3)
        built = methods.of_run(config)
        assert type(built) is methods.get(config.method.algorithm) and built.seed == 3
        assert built.batch_size == config.train.batch_size
        names.add(config.method.name)
    assert names == set(options("method"))  # one folder each


@pytest.mark.parametrize(
    ("method", "given", "coefficients"),
    [
        ("grpo", ["train.kl_coef=0.5", "train.entropy_coef=0.25"], (0.5, 0.25)),
        ("bapo_x1", ["train.kl_coef=0.5", "method.entropy_coef=0.0"], (0.5, 0.0)),
        ("grpo", ["method.kl_coef=null"], (0.001, 0.001)),
        ("dapo", ["train.kl_coef=0.5", "train.entropy_coef=0.25"], (0.0, 0.0)),  # its own
        ("luffy", ["train.kl_coef=0.5", "train.entropy_coef=0.25"], (0.0, 0.25)),
    ],
)
def test_a_coefficient_that_is_none_is_the_settings(method: str, given: list[str], coefficients: tuple) -> None:
    config = compose_config([f"method={method}", *given])
    assert (config.method.kl_coef, config.method.entropy_coef) == coefficients
    named = [f"method.kl_coef={coefficients[0]}", f"method.entropy_coef={coefficients[1]}"]
    assert train_identity(config) == train_identity(compose_config([f"method={method}", *named]))


def test_a_setting_of_an_algorithm_keeps_its_name_in_the_identity() -> None:
    for name, v in (("grpo_v5", 5), ("grpo_v40", 40)):
        method = compose_config([f"method={name}"]).method
        assert (method.algorithm, method.name, method.v) == ("grpo_delayed", name, v)


def test_the_release_takes_the_sizes_of_its_buffer_from_the_batch() -> None:
    method = compose_config(["method=bapo_released", "train.batch_size=16", "method.max_reevaluated=5"]).method
    assert (method.bad_capacity, method.max_reevaluated, method.v, method.dual_clip) == (64, 5, 2, 10.0)


def test_a_file_in_the_folder_of_a_project_is_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bapo.yaml").touch()
    (tmp_path / "methods").mkdir()
    file = tmp_path / "methods" / "mine.py"
    file.write_text("from bapo.methods.bapo import BAPO\nclass Mine(BAPO):\n    title, v = '+Mine', 3\n")
    (tmp_path / "methods" / "_helpers.py").touch()
    monkeypatch.chdir(tmp_path)
    methods.show()
    assert [line[:8] for line in capsys.readouterr().out.splitlines()][-1] == "| `mine`"
    assert "mine" in options("method") and not {"_helpers", "base", "parts"} & set(options("method"))
    config = run_config("laptop", "countdown", "", "mine", 1)
    assert (config.method.algorithm, config.method.title) == ("methods/mine.py:Mine", "+Mine")
    assert (config.method.kind, config.method.kl_coef, methods.of_run(config).v) == ("off", 0.001, 3)
    with pytest.raises(UserError, match=r"^method=_helpers: methods/_helpers.py is no method, .* begins with _"):
        compose_config(["method=_helpers"])
    file.rename(tmp_path / "methods" / "bapo.py")
    with pytest.raises(UserError, match=r"methods/bapo.py: the suite has a method of this name"):
        options("method")
    (tmp_path / "methods" / "bapo.py").rename(tmp_path / "methods" / "two.py")
    (tmp_path / "methods" / "two.py").write_text("import bapo.methods.bapo\n")
    with pytest.raises(UserError, match=r"methods/two.py: must define one class derived from Method, and has 0"):
        compose_config(["method=two"])


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("methods/_beside.py", "_beside"),
        ("tasks/elsewhere.py", "tasks.elsewhere"),
        ("at_the_top.py", "at_the_top"),
        ("whole/core.py", "whole"),  # by a relative import of the package
        ("other/deep/core.py", "other.deep.mod"),  # from the module's own folder
    ],
)
def test_what_a_method_imports_of_its_project_counts_in_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    (tmp_path / "bapo.yaml").touch()
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "__init__.py").write_text("from .core import K\n")
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "other" / "deep" / "mod.py").write_text("from . import core\nK = core.K\n")
    content = f"from bapo.methods import Method\nfrom {name} import K\nclass Mine(Method):\n    title = f'+{{K}}'\n"
    for path, text in (("methods/mine.py", content), (module, "K = 1\n"), ("tasks/other.py", "K = 3\n")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    forget()
    digest = project.code_digest_of("methods/mine.py:Mine")
    assert run_config("laptop", "countdown", "", "mine", 1).method.title == "+1"
    (tmp_path / "tasks" / "other.py").write_text("K = 4\n")
    (tmp_path / module).write_text("K = 1  # a comment\n")
    assert project.code_digest_of("methods/mine.py:Mine") == digest
    (tmp_path / module).write_text("K = 2\n")
    assert project.code_digest_of("methods/mine.py:Mine") != digest


def test_the_identity_of_code_is_the_same_on_every_version_of_python(tmp_path: Path) -> None:
    """A job on a GPU may have another version than the one that made the problems."""
    code = tmp_path / "ordering.py"
    code.write_text(
        "from . import core\n\n\n@core.kept\nclass Ordering(core.Task, total=True):\n"
        '    """Sorts."""\n\n    sizes: list[int] = []\n\n    def draw(self, *counts: int, seed=None, **others):\n'
        "        match counts:\n            case [first, *_] if first:\n"
        "                return lambda x: (x, f'{first!r:>{seed}}')\n"
        "        try:\n            yield from {1: None}\n        except* ValueError:\n            raise\n"
    )
    assert project.code_digest_of(f"{code}:Ordering") == "847c8ded8651a00f"


def test_code_with_a_long_sum_has_an_identity(tmp_path: Path) -> None:
    (code := tmp_path / "long.py").write_text(f"x = {' + '.join(['1'] * 900)}\n")
    assert len(project.code_digest_of(f"{code}:Long")) == 16


def test_what_one_caller_changes_does_not_leak_into_another() -> None:
    first, second = (run_config("laptop", "countdown", "", "grpo", seed) for seed in (1, 2))
    first.train.steps = 999
    first.data.split_sizes.train = 7
    again = compose_config(["scale=laptop", "task=countdown", "method=grpo", "seed=1"])
    assert (second.seed, again.seed) == (2, 1)
    assert again.train.steps == second.train.steps != 999 and again.data.split_sizes.train != 7


LARGE = "model=qwen2-112k+large"
#: the places where a value can be set, the later over the earlier: file, its further line, words, threads and method.v
PLACES = [
    ("task/countdown.yaml", "name: countdown", "method=mine", (1, 5)),
    ("method/mine.yaml", "v: 40", "method=mine", (1, 40)),
    ("setting/laptop_countdown.yaml", "threads: 2", "method=mine", (2, 40)),
    ("setting/laptop_countdown.yaml", "models: {qwen2-112k: {threads: 3}}", "method=mine", (3, 40)),
    ("task/countdown.yaml", "methods: {mine: {v: 4}}", "method=mine", (3, 4)),
    ("variants.yaml", "large: {title: large, threads: 4}", f"method=mine {LARGE}", (4, 4)),
    ("variants.yaml", "few: {title: few, threads: 5, method: {v: 6}}", f"method=mine+few {LARGE}", (5, 6)),
    ("", "", f"method=mine+few {LARGE} threads=7 method.v=7", (7, 7)),
]


def test_a_value_can_be_set_in_six_places(experiments: Path) -> None:
    """Default, setting, its lines for the model, method and the task's lines for it, variants, command line."""
    write_mine(experiments, "defaults: [bapo, _self_]\nname: mine\n")
    (experiments / "task" / "countdown.yaml").unlink()
    for file, text, words, values in PLACES:
        if file:
            with (experiments / file).open("a", encoding="utf-8") as opened:
                print(text, file=opened)
        forget()
        config = compose_config(words.split())
        assert (config.threads, config.method.v) == values, (file, text)


@pytest.mark.parametrize(
    ("cell", "given", "key"),
    [
        ("geometry qwen2.5-vl-325k+angles_5 grpo", "data.generator.held_out=angles_9", "data.generator.held_out"),
        ("geometry qwen2.5-vl-325k+angles_5 ", "data.generator={held_out: angles_9}", "data.generator.held_out"),
        ("countdown qwen2-112k bapo+v10", "method.v=3", "method.v"),
        ("countdown qwen2-112k bapo+v10", "method.m=3", ""),
        ("countdown qwen2-112k grpo+starved", "train.steps=5", "train.steps"),
        ("countdown qwen2-112k grpo+rollouts", "train.steps=5", ""),
    ],
)
def test_what_a_variant_sets_is_not_set_for_all_rows_of_a_study(cell: str, given: str, key: str) -> None:
    """A job alone takes it, since it stands beside no row."""
    task, model, method = cell.split(" ")
    assert compose_config(["scale=smoke", f"task={task}", f"model={model}", f"method={method or 'grpo'}", given])
    asked = partial(run_config, "smoke", task, model, method, 1)
    if not key:
        assert asked((given,)).seed == 1
    else:
        with pytest.raises(UserError, match=rf"^{re.escape(given)}: the variant '\w+' .*sets {key}; .*variants\.yaml"):
            asked((given,))


def test_a_variant_may_hold_a_share_of_another_value(experiments: Path) -> None:
    with (experiments / "variants.yaml").open("a", encoding="utf-8") as file:
        print('shared: {title: shared, method: {max_reevaluated: "${share:2,${train.batch_size}}"}}', file=file)
    method = compose_config(["method=bapo+shared", "train.batch_size=16"]).method
    assert (method.max_reevaluated, method.name, method.title) == (32, "bapo+shared", "+BAPO, shared")


def test_a_settings_line_holds_with_one_model_alone() -> None:
    for model, tokens in (("qwen3-8b", 4096), ("deepseek-r1-distill-qwen-1.5b", 8192)):
        assert run_config("paper", "mathematics", model, "bapo", 42).sampling.max_response_tokens == tokens
    assert compose_config(["scale=single_gpu", "task=mathematics", "model=qwen3-0.6b"]).data.chat_template_kwargs
    assert not compose_config(["scale=single_gpu", "task=mathematics"]).data.chat_template_kwargs


def test_variants_name_a_folder_and_the_methods_win_over_the_models() -> None:
    config = compose_config(["method=bapo+rollouts+sync_first", "model=qwen2-112k+hard", "seed=3"])
    assert (config.train.budget.unit, config.train.budget.like) == ("rollouts", "grpo")
    assert config.method.title == "+BAPO, equal rollouts, alpha refreshed first"
    assert str(run_directory(config)).endswith("countdown/qwen2-112k+hard/bapo+rollouts+sync_first/seed3")
    plain = run_config("laptop", "countdown", MATCHED, "grpo", 1)
    other = run_config("laptop", "countdown", MATCHED, "grpo+rate_5e-5", 1)
    assert other.train.learning_rate == 5e-5 != plain.train.learning_rate and other.train.steps == plain.train.steps
    assert base_identity(other) == base_identity(plain) and train_identity(other) != train_identity(plain)


@pytest.mark.parametrize("place", ["laptop countdown", "laptop mathematics", "smoke countdown"])
def test_the_setting_says_what_is_matched_to_the_paper(place: str) -> None:
    plain, matched = (run_config(*place.split(), model, "bapo", 1) for model in ("qwen2-112k", MATCHED))
    found = {"iterations": matched.base.iterations, "temperature": matched.sampling.temperature}
    found |= {"learning_rate": matched.train.learning_rate, "steps": matched.train.steps}
    assert plain.matched == found and matched.evaluation.temperature == matched.sampling.temperature


GLOBAL = "# @package _global_"
#: nine lines, each ten times the one before
BOMB = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method=bpo"], r"method=bpo: unknown method 'bpo' \(did you mean 'bapo'\?\); allowed: .*bapo, .*grpo"),
        (["scale=laptpo"], r"unknown scale 'laptpo' \(did you mean 'laptop'\?\); allowed: gpu, laptop, paper, pocket"),
        (["method=bapo+rolouts"], r"method=bapo\+rolouts: unknown variant 'rolouts' \(did you mean 'rollouts'"),
        (["method=bapo+rollouts+updates"], r"'rollouts' and 'updates' both set train\.budget\.like"),
        (["method=bapo+hard"], r"method=bapo\+hard: .*a variant of the model"),
        (["scale=paper", "model=qwen2.5-1.5b+matched"], r"base.iterations: .*matched.iterations"),
        *(
            ([f"{key}={{x: {{train: {{steps: 3}}}}}}"], f"^{key}=.*: sets values by name")
            for key in ("models", "task.methods")
        ),
        (["models.qwen2-112k.train.steps=3"], "^models.qwen2-112k.train.steps=3: sets values by name"),
        (["train.stesp=3"], r"train.stesp: no such key \(did you mean 'steps'\?\); allowed: steps, epochs, .*"),
        (["train.betas=[0.9"], r"^train.betas=\[0.9: "),
        *(([f"seed={n}"], f"^seed={n}: .*leading 0 or colons") for n in ("010", "0_1", "-010", "1:30", "0x10")),
        (["train.betas=[0.9, 0:30]"], "^train.betas=.*without leading 0"),
        (["task=countdown", "setting=paper_geometry"], "^setting=paper_geometry: is of another task; .* _countdown$"),
        (["setting=pocket"], "^setting=pocket: is of another task"),
        (["paths.results=~/x"], "^paths.results=~/x: must be a path .* or ~$"),
        *(
            ([f"{key}={name}"], f"{key}={name}: is another folder in the results")
            for key, name in (("model.name", "data"), ("method.name", "base"), ("task.name", "logs"))
        ),
        (["~train.steps"], "~train.steps: write KEY=VALUE"),
        (["=5"], "^=5: write KEY=VALUE"),
        (["base=5"], "^base=5: must be a valid dict"),
        (["study=table1"], "^study: no such key"),
        (["method.name=../../out"], r"^method.name=../../out: must be the name of one folder"),
        (["model.name=a/b"], "^model.name=a/b: must be the name of one folder"),
        (["task.name='.hidden'"], "^task.name=.hidden: must be the name of one folder"),
        (["scale.name='<img>'"], "^scale.name=<img>: must be the name of one folder"),
        (["method.name=" + "x" * 81], "must be the name of one folder"),
        (['method.name="a\\nb"'], r"^method.name='a\\nb': must be the name of one folder"),
        (["model.name=5"], "^model.name=5: must be text; put it in quotes"),
        (["paths.results='{x}'"], "^paths.results={x}: must be a path without braces"),
        (["paths.data_folder=2024"], "^paths.data_folder=2024: must be text; .* ./ before"),
        (["train.learning_rate=1e300"], "^train.learning_rate=1e.300: must be less than or equal to 1000000000"),
        (["sampling.temperature=1e-320"], "^sampling.temperature=1e-320: must be greater than or equal to 0.000000001"),
        (["train.learning_rate=.inf"], "^train.learning_rate=inf: must be a finite number"),
        (["method.kl_coef=.inf"], "^method.kl_coef=inf: must be a finite number"),
        (["method=bapo", "method.m=99999999999999999999999"], "^method.m=9+: must be between -1e9 and 1e9"),
        (["method.clip_high=1e300"], "^method.clip_high=1e.300: must be between -1e9 and 1e9"),
        (["threads=1000000"], "^threads=1000000: must be less than or equal to 4096"),
        (["train.group_size=1000000000000"], "^train.group_size=1000000000000: must be less"),
        (["train.batch_size=1000000000000"], "^train.batch_size=1000000000000: must be less"),
        (["data.split_sizes.train=-1"], "^data.split_sizes.train=-1: must be greater"),
        (["seed=9223372036854775808"], "^seed=9223372036854775808: must be less than 9223372036854775808"),
        (["method=bapo", "method.bad_capacty=3"], r"^method.bad_capacty: no such key \(did you mean 'bad_capacity'\?"),
        (["train.batch_size=big"], "^train.batch_size=big: must be a valid integer"),
        (["train.mini_batch_size=64"], "train.mini_batch_size=64: must be at most train.batch_size=32"),
        (["train.epochs=1"], "set exactly one of train.steps and train.epochs"),
        (["data.system=x"], "data.system=x: model=qwen2-112k is trained from scratch"),
        (["train.budget.unit=rollouts"], r"train\.budget\.like=None: "),
        (["sampling.top_k=0"], r"sampling.top_k=0: must be -1 \(off\) or at least 1"),
        (["scale=paper", "task=mathematics", "model=qwen2.5-math-7b"], r"qwen2\.5-math-7b has 4096 positions"),
    ],
)
def test_wrong_input_gives_one_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        compose_config(overrides)
    assert "\n" not in str(error.value)


def refused(text: str, kind: type[Exception] = OSError) -> Callable[[], int]:
    def work() -> int:
        raise kind(text)

    return work


@pytest.mark.parametrize(
    "work",
    [
        lambda: Path("/dev/full").write_text("a"),
        lambda: Path(__file__, "folder").mkdir(),
        lambda: Path(__file__).mkdir(exist_ok=True),
        lambda: Path("n" * 300).mkdir(),
        lambda: Path("/proc/a/b").mkdir(parents=True),
        lambda: Path("/proc/a").write_text("a"),
        refused("[Errno 122] Disk quota exceeded: 'results'"),
        refused("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device"),  # pyarrow's
        refused("I/O error: No space left on device (os error 28)", RuntimeError),  # as safetensors says it
    ],
)
def test_what_a_disk_has_no_place_for_is_one_sentence(
    work: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(work) == 1
    assert re.fullmatch(r"error: .*: make room or name another place, and .*\n", capsys.readouterr().err)
    with pytest.raises(OSError, match="Errno 5"):  # a fault of the machine keeps its traceback
        exit_status(refused("[Errno 5] Input/output error"))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_what_a_user_may_not_write_is_one_sentence(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(refused(f"[Errno {number}] {os.strerror(number)}: 'results/.lock'")) == 1
    cure = "ask for access to it or name another place, and run the same command again"
    assert capsys.readouterr().err.endswith(f": 'results/.lock': {cure}\n")


@pytest.mark.parametrize(
    ("kind", "text", "cure"),
    [
        (MemoryError, "Unable to allocate 8.00 GiB for an array", "let the job have more memory"),  # numpy's
        (RuntimeError, "DefaultCPUAllocator: can't allocate memory", "let the job have more memory"),  # torch's
        (RuntimeError, "can't start new thread", "let the job have more memory"),
        (ImportError, "torch.so: failed to map segment from shared object", "let the job have more memory"),
        (RuntimeError, "CUDA out of memory. Tried to allocate 2 GiB", "lower train.micro_batch_size"),
        (RuntimeError, "CUDA error: out of memory", "lower train.micro_batch_size"),
        (RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "lower train.micro_batch_size"),
    ],
)
def test_what_a_limit_of_memory_refuses_is_one_sentence(
    kind: type[Exception], text: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(refused(text, kind)) == 1
    assert capsys.readouterr().err.startswith(f"error: {text}: {cure}")


def test_a_command_without_a_stdout_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert exit_status(lambda: print("line") or 0) == 0


@pytest.mark.parametrize("count", [1, 100_000])  # what is written when Python ends, and while the command runs
def test_a_reader_that_ends_ends_the_command(count: int) -> None:
    work = f"import bapo.errors as e, sys; sys.exit(e.exit_status(lambda: print('line\\n' * {count}) or 0))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", work], stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("setting/laptop_countdown.yaml", "  steps:", "  stesp:", r"laptop_countdown.yaml: train.stesp: no .*steps"),
        ("setting/laptop_countdown.yaml", "  steps: 150", "  steps: many", "laptop_countdown.*train.steps=many: "),
        ("method/mine.yaml", "algorithm: bapo", "algorithm: bpo", "method.algorithm=bpo: unknown algorithm; allowed"),
        ("setting/laptop_countdown.yaml", "  steps: 150", "  steps: 0150", "laptop_countdown.*: 0150: .*leading 0"),
        ("method/mine.yaml", "algorithm: bapo", "", "mine.yaml: algorithm: has no value"),
        ("method/mine.yaml", "algorithm: bapo", "algorithm: [", "mine.yaml: not valid YAML"),
        ("method/mine.yaml", "algorithm: bapo", "defaults: grpo", "mine.yaml: defaults=grpo: must be a list"),
        ("method/mine.yaml", "algorithm: bapo", "defaults: [mine]", "mine.yaml: defaults=mine: .*begin with itself"),
        ("method/mine.yaml", "title: +Mine", "title: 5", "^method.title=5: must be .*"),
        ("method/mine.yaml", "train.kl_coef", "train.kl_cof", "method.kl_coef: Interpolation key 'train.kl_cof'"),
        ("variants.yaml", "title: equal rollouts, train:", "train:", "variants.yaml: rollouts: needs a title"),
        ("config.yaml", "scale: laptop", "scale: laptpo", "Could not find 'scale/laptpo'.*laptop paper pocket"),
        ("method/mine.yaml", "algorithm: bapo", BOMB, "mine.yaml: .*more than 30 aliases"),
        ("setting/laptop_countdown.yaml", GLOBAL, f"{GLOBAL}\n{BOMB}", "_countdown.*30 aliases"),
        ("scale/laptop.yaml", "name: laptop", "name: laptop\nx: &x [*x]", "laptop.yaml: not valid YAML: .*recursion"),
        ("variants.yaml", "title: equal rollouts", "title: " + "[" * 3000 + "]" * 3000, "variants.yaml: .*recursion"),
    ],
)
def test_a_fault_in_a_file_of_the_tree_names_it(experiments: Path, file: str, old: str, new: str, message: str) -> None:
    write_mine(experiments)
    edit(experiments / file, old, new)
    with pytest.raises(UserError, match=message) as error:
        compose_config(["method=mine+rollouts"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("file", ["method/mine.yaml", "setting/laptop_countdown.yaml", "scale/laptop.yaml"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"title: \xe9t\xe9", "not valid YAML: 'utf-8' codec"),
        (b"\x00\x01", "not valid YAML: unacceptable character"),
        (b"- a\n- b", "must hold a mapping"),
        (b"5", "not valid YAML: one value alone"),
        (b"x: " + b"1" * 5000, "not valid YAML: Exceeds the limit"),
        (None, "not valid YAML: .*Is a directory"),
    ],
)
def test_what_is_no_mapping_of_yaml_is_named(experiments: Path, file: str, content: bytes | None, message: str) -> None:
    write_mine(experiments)
    path = experiments / file
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path.name}: {message}") as error:
        compose_config(["method=mine"])
    assert "\n" not in str(error.value)
