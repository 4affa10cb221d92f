"""The queries of the claims ledger over run directories. Imports from ``bapo`` only ``store.files``."""
