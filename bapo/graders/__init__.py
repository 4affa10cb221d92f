"""The grader of answers in words and LaTeX: ``mathematics``.

A response is graded in four steps. ``extract`` finds the last balanced box outside the thinking. ``normalise`` gives
each notation one spelling. ``forms`` reads a structure such as a list, tuple, interval or matrix. ``compare`` compares
two structures part by part. Parts that need algebra go to math-verify, which runs in worker processes that can be
killed (``pool``, ``symbolic``). Nothing here imports sympy into the caller's process.
"""
