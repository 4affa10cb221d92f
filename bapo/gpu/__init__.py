"""The GPUs of this machine and what the batch system has given a job. Nothing here imports torch."""
