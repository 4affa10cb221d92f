"""Starts jobs in milliseconds: one process imports what all jobs need, and forks a child for each job.

Snakemake starts this warm process (``launch.py``, ``server.py``). A job's command is ``client.py``, which asks for a
child and acts for it. Where a child would differ from ``python -m`` (environment, folder, code, platform), the client
becomes ``python -m`` instead. Only Linux is supported.
"""
