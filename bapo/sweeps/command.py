"""``python -m bapo sweep``: what the workflow's jobs call, and a look at a study."""

from __future__ import annotations

import argparse
import json
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    words = {
        "slot": "work on one trial of the study; after a kill -9 the same command goes on with it",
        "collect": "write trials.json, once every slot is finished",
        "show": "print the trials of the study",
    }
    for action, text in words.items():
        sub = actions.add_parser(action, help=text, description=text)
        sub.add_argument("name", help="the name of a file in experiments/sweep/")
        sub.add_argument("--settings", type=json.loads, default={}, help="the workflow's --config as JSON")
        if action == "slot":
            sub.add_argument("--slot", type=int, required=True, help="0 to trials - 1")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; returns 0. Raises UserError for wrong input."""
    from bapo.experiments.settings import read_settings
    from bapo.sweeps import collect, files, worker

    settings = read_settings(arguments.settings)
    sweep = files.load(arguments.name, settings)
    if arguments.action == "show":
        print(collect.show(sweep, settings))
    elif arguments.action == "collect":
        print(f"wrote {collect.collect(sweep, settings)}", file=sys.stderr)
    else:
        told = worker.run_slot(sweep, settings, arguments.slot)
        value = "" if told["value"] is None else f", validation accuracy {100 * told['value']:.2f}"
        print(f"sweep {sweep.name}, slot {told['slot']}: {told['state']}{value}", file=sys.stderr)
    return 0
