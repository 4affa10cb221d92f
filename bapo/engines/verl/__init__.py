"""verl 0.9.1's synchronous trainer with the methods of this project; 8 GPUs and vLLM, or CPU cores in the tests.

verl is neither copied nor edited: ``trainer.py`` overrides its hooks, ``worker.py`` is a mix-in for its workers, and
verl imports ``plugin.py`` in each of its processes. ``cpu.py`` and ``plugin.py`` hold all that CPU cores need.

These files do what their namesakes do in ``engines/torch``: ``trainer``, ``step_sampler``, ``rollout``, ``learner``
(which also holds the critic there), ``checkpoints`` and ``micro_batch``.
"""
