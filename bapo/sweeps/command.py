"""``python -m bapo sweep``: the workflow's jobs of a sweep, and a listing of its trials."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    texts = {
        "slot": "work on one trial of the study; after a kill -9 the same command continues it",
        "collect": "write trials.json once every slot is finished",
        "show": "print the trials of the study",
    }
    for action, text in texts.items():
        sub = actions.add_parser(action, help=text, description=text)
        sub.add_argument("name", help="name of a file in experiments/sweep/")
        sub.add_argument("--settings", type=json.loads, default={}, help="the workflow's --config as JSON")
        if action == "slot":
            sub.add_argument("--slot", type=int, required=True, help="0 to trials - 1")


def configuration(arguments: argparse.Namespace) -> DictConfig | None:
    """Return the configuration of a slot's runs, before its parameters: they change nothing that it needs.

    None for another action.
    """
    from bapo.experiments.settings import read_settings
    from bapo.sweeps import files

    if arguments.action != "slot":
        return None
    settings = read_settings(arguments.settings)
    sweep = files.load(arguments.name, settings)
    return settings.run(sweep.cell(sweep.method, sweep.seeds[0]))


def run(arguments: argparse.Namespace) -> int:
    """Run one action and return the exit status. Raises UserError for wrong input."""
    from bapo.experiments.settings import read_settings
    from bapo.sweeps import collect, files, worker

    settings = read_settings(arguments.settings)
    sweep = files.load(arguments.name, settings)
    if arguments.action == "show":
        print(collect.show(sweep, settings))
    elif arguments.action == "collect":
        print(f"wrote {collect.collect(sweep, settings)}", file=sys.stderr)
    else:
        trial = worker.run_slot(sweep, settings, arguments.slot)
        value = "" if trial["value"] is None else f", validation accuracy {100 * trial['value']:.2f}"
        print(f"sweep {sweep.name}, slot {trial['slot']}: {trial['state']}{value}", file=sys.stderr)
    return 0
