"""The jobs of a target and their cost, before anything runs. Imports experiments, sweeps and store, no engine."""
