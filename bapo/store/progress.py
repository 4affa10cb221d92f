"""What a job tells while it works: progress on stderr, metrics to wandb or trackio. The run directory has both."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from bapo.errors import require_extra
from bapo.validate import plain

if TYPE_CHECKING:
    from bapo.experiments.schema import Config
    from bapo.store.files import Json


class Progress(tqdm):
    """Shows ``label: step 40/100, reward 0.31, 1.90 steps/s, 00:32 left``.

    A terminal's line is redrawn; elsewhere a line is printed at every tenth of the way and at the end.
    """

    monitor_interval = 0  # no thread of tqdm's: jobs fork

    def __init__(self, label: str, total: int, start: int = 0, unit: str = "step") -> None:
        self.tenth = 10 * start // max(1, total)
        super().__init__(
            desc=label,
            total=total,
            initial=start,
            unit=f" {unit}s",
            file=sys.stderr,
            dynamic_ncols=True,
            mininterval=0.2 if sys.stderr.isatty() else 0,
            miniters=1,
            bar_format=f"{{desc}}: {unit} {{n_fmt}}/{{total_fmt}}{{postfix}}, {{rate_noinv_fmt}}, {{remaining}} left",
        )

    def add(self, count: int, note: str = "") -> None:
        """Count further steps. note: shown behind them from now on."""
        if note:
            self.set_postfix_str(note, refresh=False)
        self.update(count)
        if self.n >= self.total:
            self.close()

    def display(self, *arguments: object, **options: object) -> None:
        """Draw the bar; in a log file print a line where another tenth is done."""
        if self.fp.isatty():
            super().display(*arguments, **options)
        elif (tenth := 10 * int(self.n) // max(1, int(self.total))) > self.tenth:
            self.tenth = tenth
            print(self, file=self.fp, flush=True)

    def close(self) -> None:
        """Leave the finished bar in the terminal; a log file's lines have ended already."""
        if self.fp.isatty():
            super().close()
        self.disable = True


class Tracking:
    """Keeps a run of wandb or trackio, on this machine by default; with ``tracking=none`` it records nothing.

    A run is one curve: its id or name has the run's identity, and it begins with the rows that a resumed run has
    already, since both lose what they have not yet written when their process is killed.
    """

    def __init__(self, config: Config, folder: Path, identity: str, rows: Iterable[Json]) -> None:
        self.run = None
        kind = config.tracking.kind
        if kind == "none":
            return
        require_extra(kind, kind)
        self.run = {"wandb": _wandb, "trackio": _trackio}[kind](
            config,
            folder,
            identity,
            project=config.tracking.project,
            group=f"{config.scale.name}/{config.task.name}/{config.model.name}",
            config={**plain(config), "identity": identity},
        )
        for row in rows:
            self.log(row)

    def log(self, row: Json) -> None:
        """Log a row of steps.parquet, and what else is in it."""
        if self.run:
            self.run.log({k: v for k, v in row.items() if v == v and k != "step"}, step=row["step"])

    def finish(self) -> None:
        if self.run:
            with redirect_stdout(sys.stderr):
                self.run.finish()


def _wandb(config: Config, folder: Path, identity: str, /, **said: Any) -> Any:
    """Start a run in the run directory, offline by default. Online, wandb drops the steps that it has."""
    # wandb reads the mode for its own telemetry here: offline, it would load a web client and try the network
    os.environ.setdefault("WANDB_MODE", config.tracking.mode)
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    for part in folder.glob("wandb/offline-run-*"):  # this one holds their steps; one cut short ends `wandb sync`
        shutil.rmtree(part)
    # the packages are in the manifest; listing all takes 0.25 s
    quiet = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True, x_save_requirements=False)
    return wandb.init(
        dir=str(folder),
        id=identity,
        name=f"{config.method.name}-seed{config.seed}",
        # offline, a part that is synced replaces an earlier one, as it has all steps
        resume="allow" if config.tracking.mode == "online" else None,
        mode=config.tracking.mode,
        settings=quiet,
        **said,
    )


def _trackio(config: Config, folder: Path, identity: str, /, **said: Any) -> Any:
    """Start a run in the database ``trackio`` of all results, or in TRACKIO_DIR, and drop the rows that it has."""
    os.environ.setdefault("TRACKIO_DIR", str(Path(config.paths.results, "trackio").resolve()))
    for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        if os.environ.pop(variable, None):
            print(f"{variable} is not used: tracking=trackio logs on this machine", file=sys.stderr)
    import trackio
    from trackio import fragments

    trackio.run.Run._get_username = lambda run: None  # it asks the hub
    fragments.import_inbox_dir()  # what runs wrote beside the database, on a network's disk
    with redirect_stdout(sys.stderr):
        run = trackio.init(
            name=f"{config.method.name}-seed{config.seed}-{identity}",
            resume="allow",
            auto_log_cpu=False,
            auto_log_gpu=False,
            **said,
        )
    trackio.context_vars.current_run.set(None)  # it would be finished once more, on stdout, when the process ends
    trackio.api.Run(run.project, run.name, run.id).delete()
    return run
