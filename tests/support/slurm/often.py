"""Snakemake that looks at its Slurm jobs every second: ``python often.py WORDS``, as ``python -m snakemake WORDS``.

The plug-in waits ten seconds longer after each look that finds nothing. Its jobs run ``-m snakemake`` all the same.
"""

from __future__ import annotations

import asyncio
import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor


async def a_second(self: Executor) -> None:
    await asyncio.sleep(1)


Executor.sleep = a_second
main(sys.argv[1:])
