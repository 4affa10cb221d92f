"""Imported by verl itself, in each of its processes (``VERL_USE_EXTERNAL_MODULES=bapo.engines.verl.plugin``).

This runs inside ``import verl``: only registries may be touched here, nothing that imports verl's trainer.
"""

from __future__ import annotations

import os

if os.environ.get("VERL_PLATFORM") == "cpu":
    from bapo.engines.verl import cpu

    cpu.register()
