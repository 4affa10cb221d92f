"""The table of checkpoint choices: numbers and files. Imports from ``bapo`` only seeds, ``store.files`` and errors."""
