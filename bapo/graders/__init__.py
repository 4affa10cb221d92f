"""The grader of answers in words and LaTeX: ``mathematics``.

A response is graded in four steps: the last balanced box outside the thinking (``extract``), one spelling for one
notation (``normalise``), a structure such as list, tuple, interval or matrix (``forms``), and a comparison of two
structures part by part (``compare``). Parts that need algebra go to math-verify, which runs in worker processes that
can be killed (``pool``, ``symbolic``). Nothing here imports sympy into the caller's process.
"""
