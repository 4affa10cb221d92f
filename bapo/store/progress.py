"""Reports a job while it works: progress on stderr, and metrics to wandb or trackio."""

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

    In a terminal the line is redrawn. Elsewhere a line is printed at every tenth of the total.
    """

    monitor_interval = 0  # no thread of tqdm, as jobs fork

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
        """Count further steps. note: shown after the count from now on."""
        if note:
            self.set_postfix_str(note, refresh=False)
        self.update(count)
        if self.n >= self.total:
            self.close()

    def display(self, *arguments: object, **options: object) -> None:
        """Draw the bar in a terminal; elsewhere print a line where another tenth is done."""
        if self.fp.isatty():
            super().display(*arguments, **options)
        elif (tenth := 10 * int(self.n) // max(1, int(self.total))) > self.tenth:
            self.tenth = tenth
            print(self, file=self.fp, flush=True)

    def close(self) -> None:
        """End the line of the bar in a terminal; elsewhere each line is complete."""
        if self.fp.isatty():
            super().close()
        self.disable = True


class Tracking:
    """Logs a run to wandb or trackio, on this machine by default; with ``tracking=none`` it logs nothing.

    The run's identity is part of its id or name, so that it stays one curve. It begins with the rows that a resumed run
    has already, as both libraries lose what they have not written when the process is killed.
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
        """Log a row of steps.parquet, which may have further values."""
        if self.run:
            self.run.log({k: v for k, v in row.items() if v == v and k != "step"}, step=row["step"])

    def finish(self) -> None:
        if self.run:
            with redirect_stdout(sys.stderr):
                self.run.finish()


def _wandb(config: Config, folder: Path, identity: str, /, **options: Any) -> Any:
    """Start a run in the run directory, offline by default. Online, wandb drops the steps that it has already."""
    # wandb's telemetry reads this variable; without it, it would try the network offline, too
    os.environ.setdefault("WANDB_MODE", config.tracking.mode)
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    for run in folder.glob("wandb/offline-run-*"):  # the new run holds their steps, and `wandb sync` fails on a cut one
        shutil.rmtree(run)
    # the manifest has the packages, and listing all of them takes 0.25 s
    quiet = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True, x_save_requirements=False)
    return wandb.init(
        dir=str(folder),
        id=identity,
        name=f"{config.method.name}-seed{config.seed}",
        # offline, a run that is synced replaces an earlier one, as it has all steps
        resume="allow" if config.tracking.mode == "online" else None,
        mode=config.tracking.mode,
        settings=quiet,
        **options,
    )


def _trackio(config: Config, folder: Path, identity: str, /, **options: Any) -> Any:
    """Start a run in the database ``trackio`` of all results, or in TRACKIO_DIR, without the rows that it had."""
    os.environ.setdefault("TRACKIO_DIR", str(Path(config.paths.results, "trackio").resolve()))
    for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        if os.environ.pop(variable, None):
            print(f"{variable} is not used: tracking=trackio logs on this machine", file=sys.stderr)
    import trackio
    from trackio import fragments

    trackio.run.Run._get_username = lambda run: None  # trackio's own asks the hub
    fragments.import_inbox_dir()  # on a network's disk, runs write beside the database
    with redirect_stdout(sys.stderr):
        run = trackio.init(
            name=f"{config.method.name}-seed{config.seed}-{identity}",
            resume="allow",
            auto_log_cpu=False,
            auto_log_gpu=False,
            **options,
        )
    trackio.context_vars.current_run.set(None)  # or it is finished again at the end of the process, on stdout
    trackio.api.Run(run.project, run.name, run.id).delete()
    return run
