"""What pyproject.toml cannot say: a wheel holds the workflow and its configurations, for use away from a checkout."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SUITE = ("Snakefile", "workflows", "experiments")


class WithSuite(build_py):
    """Copies them to ``bapo/suite``, where bapo/experiments/places.py looks for them first."""

    def run(self):
        super().run()
        if self.editable_mode:  # the checkout itself is used
            return
        target = Path(self.build_lib, "bapo", "suite")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in SUITE:
            source = Path(name)
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target / name)


setup(cmdclass={"build_py": WithSuite})
