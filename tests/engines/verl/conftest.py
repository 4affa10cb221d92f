"""What verl reads when it is imported, before any test of this folder does so."""

import os

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "bapo.engines.verl.plugin")
