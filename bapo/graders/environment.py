"""Single-turn environments of the user's: one observation, one action, one reward, as Gymnasium's interface has them.

A class with ``reset(seed=...) -> (observation, info)`` and ``step(action) -> (observation, reward, terminated,
truncated, info)``, all texts as ``str``; gymnasium is not needed. It runs in the graders' limited processes: each call
makes a new object, so that no response sees what another has left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bapo.errors import UserError
from bapo.graders import pool, user
from bapo.graders.pool import Overloaded
from bapo.graders.verdict import OVERLOADED, REFUSED, RIGHT, TIME_LIMIT, UNREADABLE, WRONG, Verdict

#: Longer observations are refused: characters.
LONGEST = 100_000
#: What a process answers begins with one of these or REFUSED, or is an outcome of bapo.graders.verdict.
_OBSERVATION, _REWARD = "observation ", "reward "
#: Seconds that a reset may wait for a busy machine while problems are written.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Start:
    """The problem of a seed. answer: ``info["answer"]``, an action that is right, where the environment tells one."""

    observation: str
    answer: str | None

    @property
    def digest(self) -> str:
        return _digest(self.observation)


# ------------------------------------------------------------------------------------------------ who asks


def start(path: Path, name: str, seed: int) -> Start:
    """Reset the class ``name`` of a file. Raises UserError saying what is wrong with the environment."""
    with pool.patience(_PATIENCE):
        outcome = _ask(path, name, {"seed": seed}, "")
    if not outcome.startswith(_OBSERVATION):
        raise UserError(f"{path}:{name}: reset(seed={seed}): {_why(outcome)}")
    return Start(**json.loads(outcome.removeprefix(_OBSERVATION)))


def judge(path: Path, name: str, seed: int, digest: str, action: str, right_from: float | None) -> Verdict:
    """Grade an action by the reward of one step.

    digest: of the observation that the model was shown; right_from: the least reward that counts as right, None where
    every reward is 0 or 1. What ``step`` raises is an action that cannot be read. Raises UserError for an environment
    that breaks the rules above.
    """
    outcome = _ask(path, name, {"seed": seed, "digest": digest}, action)
    if outcome in (OVERLOADED, TIME_LIMIT, UNREADABLE):
        return Verdict(False, False, outcome)
    if not outcome.startswith(_REWARD):
        raise UserError(f"{path}:{name}: seed {seed}: {_why(outcome)}")
    reward = float(outcome.removeprefix(_REWARD))
    if right_from is not None:
        return RIGHT if reward >= right_from else Verdict(False, True, WRONG)
    if reward not in (0.0, 1.0):
        raise UserError(
            f"{path}:{name}: seed {seed}: step gave the reward {reward:g}; it must be 0 or 1, or the task's file must "
            "say from which reward on an action is right: right_from: 0.5"
        )
    return RIGHT if reward else Verdict(False, True, WRONG)


def _ask(path: Path, name: str, problem: dict[str, Any], action: str) -> str:
    try:
        return user.shared(path, name).judge(json.dumps(problem), action, pool.deadline())
    except Overloaded:
        return OVERLOADED


def _why(outcome: str) -> str:
    if outcome == TIME_LIMIT:
        return "it needs more than the time or memory of one check (docs/project.md)"
    if outcome == OVERLOADED:
        return "the machine is too busy to run it; try again"
    return outcome.removeprefix(REFUSED)


# ------------------------------------------------------------------------------------------------ in the process


class _Broken(Exception):
    """The environment breaks the rules."""


def runner(cls: type) -> Callable[[str, str], str]:
    """Return what a checker runs: (problem as JSON, action) -> an answer for :func:`start` or :func:`judge`."""

    def run(problem: str, action: str) -> str:
        given = json.loads(problem)
        try:
            return _run(cls, given["seed"], given.get("digest"), action)
        except _Broken as broken:
            return f"{REFUSED}{broken}"

    return run


def _run(cls: type, seed: int, digest: str | None, action: str) -> str:
    made = _called("making it", cls)
    for method in ("reset", "step"):
        if not callable(getattr(made, method, None)):
            raise _Broken(f"the class has no method {method}")
    try:
        found = _called("reset", made.reset, seed=seed)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], str) and found[0].strip()):
            raise _Broken(f"reset must return (observation, info) with a text that is not empty, not {found!r:.80}")
        observation, info = found
        if len(observation) > LONGEST:
            raise _Broken(f"the observation has {len(observation)} characters; at most {LONGEST} are taken")
        if digest is None:
            answer = info.get("answer") if isinstance(info, dict) else None
            if answer is not None and not isinstance(answer, str):
                raise _Broken(f'info["answer"] must be a text, not {answer!r:.80}')
            return _OBSERVATION + json.dumps({"observation": observation, "answer": answer})
        if _digest(observation) != digest:
            raise _Broken("reset gave another observation than when the problems were written; the seed must decide it")
        return _REWARD + repr(_reward(made, action))
    finally:
        with contextlib.suppress(Exception):
            made.close()


def _called(what: str, function: Any, **given: Any) -> Any:
    try:
        return function(**given)
    except MemoryError:
        raise
    except Exception as error:
        raise _Broken(f"{what} raised {type(error).__name__}: {error}") from error


def _reward(environment: Any, action: str) -> float:
    found = environment.step(action)  # what it raises is the action's fault: see the checker
    if not (isinstance(found, tuple) and len(found) == 5):
        raise _Broken(f"step must return (observation, reward, terminated, truncated, info), not {found!r:.80}")
    _, reward, terminated, truncated, _ = found
    try:
        number = float(reward)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise _Broken(f"step gave the reward {reward!r:.80}; it must be a number")
    if not (terminated or truncated):
        raise _Broken("step must end the episode (terminated or truncated): only one action is asked for")
    return number


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
