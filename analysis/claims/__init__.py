"""The ledger of claims: every quantitative sentence of the paper, a query over run directories, and a verdict.

An entry of ``analysis/claims/*.yaml`` names a sentence, a query and a rule (``docs/claims.md``). entries.py reads and
checks them; queries.py and training.py measure; verdicts.py turns an estimate and its interval into a verdict;
ledger.py puts the lines together and writes them.
"""

from __future__ import annotations

REPRODUCED, CONTRADICTED, UNDERPOWERED = "reproduced", "contradicted", "underpowered"
NO_EFFECT, NOT_TESTABLE = "no effect larger than x", "not testable at this scale"
#: the verdicts that runs decide, and all verdicts
FIRM = (REPRODUCED, CONTRADICTED, NO_EFFECT)
VERDICTS = (*FIRM, UNDERPOWERED, NOT_TESTABLE)
#: what `over` may name beside methods: the model before training, and what two samplings of that model show
BASE, CHANCE = "base", "chance"
