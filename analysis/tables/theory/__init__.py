"""The theory monitor: table and figure. Imports from ``bapo`` only the theory's equations and errors."""
