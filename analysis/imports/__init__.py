"""Other people's logs as run directories, so that figures can be drawn from runs that nobody can repeat on a laptop.

``python -m analysis import FILE`` knows three formats (``formats.py``) and writes the tables that a run directory has;
what a log does not hold is NaN there, and the manifest says where each number came from. ``python -m analysis what-if
RUN`` asks which groups BAPO would have drawn from a run's groups (``what_if.py``).
"""
