"""The mark of tests that need trackio."""

from importlib.util import find_spec

import pytest

needs_trackio = pytest.mark.skipif(
    not find_spec("trackio"), reason="trackio is not installed: it has an environment of its own (.ci/full trackio)"
)
