"""Jobs that start in milliseconds: one process imports what all jobs need, and forks a child for each.

Snakemake starts the warm process (``launch.py``, ``server.py``); a job's command is ``client.py``, which asks for a
child and stands in for it. Where a child would differ from ``python -m`` (environment, folder, code, platform), the
client becomes ``python -m`` instead. Linux only.
"""
