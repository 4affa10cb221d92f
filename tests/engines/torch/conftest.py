"""Fixtures of this folder: a processor and its tokenizer."""

from __future__ import annotations

from support.vision import processor, tokenizer  # noqa: F401 (fixtures)
