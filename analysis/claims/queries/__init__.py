"""The queries, registered by name as their modules are imported."""

from analysis.claims.queries import accuracy, probes, training  # noqa: F401
