"""Other people's results as run directories, for figures and tables beside one's own.

``python -m bapo import FILE`` reads training logs (``formats.py``: accuracy histories, tracking logs, verl, TRL,
OpenRLHF) and published evaluations (``evaluations.py``: lm-eval, lighteval, the Open LLM Leaderboard). What a log does
not hold is NaN; what cannot be read is refused, counted and named; the manifest says where each number came from.
``python -m bapo what-if RUN`` asks which groups BAPO would have drawn from a run's groups (``what_if.py``).
"""
