"""Countdown: problems, search, grammar and verifier. Imports no engine, no method and no other task."""
