"""Sweeps: how a method's accuracy depends on its parameters (``experiments/sweep/``, docs/sweeps.md).

A sweep is one Optuna study. Every job of the workflow is a slot of it: it asks for parameters, trains the method with
them for every seed through the run directories' contract, and tells the study the accuracy on the held-out probe
problems, never on a test set. Nothing here imports torch or optuna at the top.
"""
