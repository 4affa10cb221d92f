"""The tests here also run on machines with pretended GPUs."""

from support.pretended_gpus import machine

__all__ = ["machine"]
