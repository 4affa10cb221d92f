"""What a reader sees while the workflow runs: one line of progress, the first look, and Table 1 as far as it is.

Both are handlers of Snakemake's log (``workflows/progress.smk`` adds them): Snakemake says there when a job begins and
ends. line.py shows, so_far.py writes, jobs.py says what both know of a job.
"""
