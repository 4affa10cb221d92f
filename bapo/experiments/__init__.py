"""Configurations: composing, checks, identities, folders, studies and budgets. Imports no engine and no torch."""
