"""The tables and the figure of the difficulty regimes. Imports from ``bapo`` only its errors."""
