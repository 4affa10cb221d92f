"""Table 1: numbers, layout, text and files. Imports from ``bapo`` only ``store.files``."""
