"""Pages from Jinja2 templates that escape everything, and the policy that keeps what a page was not made with out."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def template(folder: Path, name: str, **filters: Callable[..., str]) -> Any:
    """Return a Jinja2 template of a folder; a name that it uses and is not given raises UndefinedError."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name)


def source(content: str) -> str:
    """Return what a Content-Security-Policy calls an inline style or script: its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
