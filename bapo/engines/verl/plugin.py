"""Imported by verl itself, in each of its processes (``VERL_USE_EXTERNAL_MODULES=bapo.engines.verl.plugin``).

This runs inside ``import verl``: only registries may be touched here, nothing that imports verl's trainer.
"""

from __future__ import annotations

import os
import sys

from bapo.engines.verl import transfer

transfer.register()
if os.environ.get("VERL_PLATFORM") == "cpu":
    from bapo.engines.verl import cpu

    cpu.register()
    if "vllm._custom_ops" in sys.modules:  # a worker of vLLM, which imports verl for its extension
        # vLLM would pack linear layers for oneDNN and empty their weights: nothing could be loaded into them again
        sys.modules["vllm._custom_ops"]._supports_onednn = False
