"""``bapo gpu-check``: whether this machine can train and evaluate, tried with a tiny model in minutes."""
