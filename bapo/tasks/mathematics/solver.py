"""Working out the laptop's arithmetic: from a problem's text to the chain of steps that a base document would have."""

from __future__ import annotations

import re

from bapo.errors import UserError
from bapo.tasks.mathematics.generator import to_plan
from bapo.tasks.mathematics.terms import INVERSE, Node, Plan, X, to_chain, work

_TOKEN = re.compile(r"[0-9]+|[-+*/()=,x]")


def solve(prompt: str) -> str:
    """Work out ``( 7 + 3 ) * 4 - 12 =`` or ``x * 3 + 2 = 14 , x =``, with or without spaces, as a chain of steps.

    Raises UserError where the text is not such a problem.
    """
    tokens = _TOKEN.findall(prompt)
    try:
        if "".join(tokens) != "".join(prompt.split()):
            raise ValueError("other characters")
        term = _read(tokens, 0)
        if tokens == ["="]:
            plan: Plan = []
            to_plan(term, plan)
            return to_chain(work(plan))
        _, value, *rest = tokens
        if rest == [",", X, "="]:
            return to_chain(work(_undone(term, int(value))))
    except (ValueError, IndexError, TypeError):
        pass
    raise UserError(f"'{prompt[:80]}': not a generated problem of arithmetic; make the data again")


def _read(tokens: list[str], least: int) -> Node | int | str:
    """Take the longest term from the front whose outer signs bind at least as strongly as ``least``."""
    first = tokens.pop(0)
    if first == "(":
        term = _read(tokens, 0)
        if tokens.pop(0) != ")":
            raise ValueError("brackets")
    else:
        term = X if first == X else int(first)
    while tokens and tokens[0] in "+-*/" and (strength := int(tokens[0] in "*/")) >= least:
        sign = tokens.pop(0)
        term = Node(term, sign, _read(tokens, strength + 1))
    return term


def _undone(side: Node | int | str, value: int) -> Plan:
    """Plan the steps that give x of ``side = value``: what was done to x, undone from the last to the first."""
    plan: Plan = []
    while isinstance(side, Node):
        plan.append((-len(plan) or value, INVERSE[side.sign], int(side.right)))
        side = side.left
    if side != X or not plan:
        raise ValueError("no equation in x")
    return plan
