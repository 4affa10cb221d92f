"""The GPUs of this machine, and what the batch system gives a job. Nothing here imports torch."""
