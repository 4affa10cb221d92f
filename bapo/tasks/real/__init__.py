"""Real data: sources, cleaning, decisions and checksums, for all tasks. Imports no engine and no method."""
