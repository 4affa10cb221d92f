"""``python -m analysis.audit``: the same as ``python -m analysis audit``."""

from __future__ import annotations

import sys

from analysis.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["audit", *sys.argv[1:]]))
