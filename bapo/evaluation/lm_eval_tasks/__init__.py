"""The paper's eight benchmarks (Table 4) as lm-eval tasks: YAML files for ``TaskManager(include_path=FOLDER)``.

They need this package for its loaders and graders, and nothing else of the project: docs/evaluation.md.
"""

from pathlib import Path

#: What lm-eval is given as ``include_path``.
FOLDER = Path(__file__).parent
