"""``bapo watch``: what runs in a results folder, what is done, curves so far and the time left.

It reads files only: it takes no lock, and writes nothing but the page that it is asked for. folder.py finds the jobs
and their states, curves.py what a run has recorded so far, frame.py puts a moment together, terminal.py and page.py
show it.
"""

from __future__ import annotations

from analysis.watch.command import watch

__all__ = ["watch"]
