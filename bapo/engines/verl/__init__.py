"""verl 0.9.1's synchronous trainer with the methods of this project; 8 GPUs and vLLM, or CPU cores in the tests.

verl is neither copied nor edited: ``trainer.py`` overrides its hooks, ``worker.py`` is a mix-in for its workers, and
``plugin.py`` is what verl imports in each of its processes. The CPU support is apart, in ``cpu.py`` and ``plugin.py``.

Files with a twin in ``engines/torch`` do the same there: ``trainer``, ``step_sampler``, ``rollout``, ``learner``
(which holds the critic, too), ``checkpoints`` and ``micro_batch``.
"""
