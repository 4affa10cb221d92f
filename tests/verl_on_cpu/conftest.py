"""Real runs of verl on the CPU: a start takes about a minute, so they are few."""

from __future__ import annotations


def pytest_configure(config) -> None:
    config.addinivalue_line("markers", "verl: starts Ray and verl on the CPU, about a minute each time")
