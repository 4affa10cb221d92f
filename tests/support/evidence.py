"""Tables of the pages beside those that the analysis makes of evidence, and what a study asked before its runs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from analysis import study as studies
from analysis.__main__ import main
from analysis.beyond import gates
from analysis.exchange import evidence
from bapo.store.files import Json
from bapo.validate import parse_yaml
from support.pages import FENCE
from support.paths import ROOT

MARK = re.compile(r"<!-- evidence: (\S+) (\S+) -->")
#: of a table that is computed, and compared with what this command prints by a test beside the command's code
COMPUTED = re.compile(r"<!-- python benchmarks/\S+\.py .*-->")
#: a number that is measured, such as -1.4 or 25.9%; neither a version nor the number of a paper
DECIMAL = re.compile(r"(?<![\w.])[-+]?\d{1,3}\.\d{1,2}(?![\d.])")

FILES = sorted((ROOT / "evidence").glob("*/*.zip"))
#: SCALE/STUDY -> its evidence, several files where its runs came in portions
OF_STUDY: dict[str, list[Path]] = {}
for each in FILES:
    OF_STUDY.setdefault(re.sub(r"_\d+$", "", f"{each.parent.name}/{each.stem}"), []).append(each)


@dataclass(frozen=True)
class Table:
    """A table of a page. place, product: what the comment above it names, "" without one; computed: a command."""

    page: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    place: str = ""
    product: str = ""
    computed: bool = False

    def __str__(self) -> str:
        return f"{self.page}: {' | '.join(self.header)}"

    @property
    def measured(self) -> bool:
        """Return whether a column holds decimals in half of its cells: no table of options or files does."""
        if self.computed:
            return False
        columns = list(zip(*(row for row in self.rows if len(row) == len(self.header)), strict=True))
        return any(2 * sum(bool(DECIMAL.search(cell)) for cell in column) >= len(column) for column in columns)


def tables(text: str, page: str) -> Iterator[Table]:
    """Yield the tables of Markdown that lie outside fenced blocks. page: how they are named."""
    mark, computed, lines = None, False, []
    for line in [*FENCE.sub("", text).splitlines(), ""]:
        if line.startswith("|"):
            lines.append(tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))))
        elif lines:
            header, _, *rows = lines
            yield Table(page, header, tuple(rows), *(mark.groups() if mark else ("", "")), computed)
            mark, computed, lines = None, False, []
        elif line.strip():
            mark, computed = MARK.fullmatch(line.strip()), bool(COMPUTED.fullmatch(line.strip()))


def made_of(paths: pytest.TempPathFactory, place: str, product: str) -> Path:
    """Return the folder with a product of a study's evidence, which a process makes once.

    product: as a comment names it, a table, ``figure:NAME``, ``specifications:REFERENCE``, or ``MEASURE:OF:MINUS`` for
    a difference of two methods that no study asked for before its runs.
    """
    home = paths.getbasetemp() / "evidence" / place
    study = home / Path(place).parent / "studies" / f"{Path(place).name}.json"
    if not study.exists():
        assert [evidence.unpack(file, home) for file in OF_STUDY[place]][-1] == study
    if not (home / product).exists():
        name, _, other = product.partition(":")
        if ":" in other:
            _write_difference(
                study, home / product, measure=name, **dict(zip(("of", "minus"), other.split(":"), strict=True))
            )
            return home / product
        command = [name, *([other] if name == "figure" else ["--reference", other]) * bool(other)]
        assert main([*command, "--study", str(study), "--out", str(home / product)]) == 0
    return home / product


def _write_difference(file: Path, out: Path, **quantity: str) -> None:
    """Write the mean of a quantity of the study's runs, in points, and its 95% interval."""
    study = studies.load(file)
    (block,) = study.blocks
    estimate = gates.RunsOfBlock(block, study).estimate(gates.Quantity.model_validate(quantity))
    out.mkdir(parents=True)
    ends = ",".join(map(str, estimate.ends))
    (out / "difference.csv").write_text(f"mean,low,high\n{ends}\n", encoding="utf-8")


def _plain(cell: str) -> str:
    """Return a cell or title without emphasis and the table's own plus of methods."""
    text = cell.replace("**", "").strip()
    return text[1:] if re.match(r"\+[A-Za-z]", text) else text


def differences(table: Table, made: Sequence[Table]) -> list[str]:
    """Return what a page's table says other than every one of ``made``: the fewest, [] where one agrees."""
    return min((list(_differences(table, other)) for other in made), key=len)


def _differences(table: Table, made: Table) -> Iterator[str]:
    titles, rows = [_plain(title) for title in made.header], [[*map(_plain, row)] for row in made.rows]
    columns = [_plain(title) for title in table.header]
    yield from (f"no column {title}; there are {titles}" for title in columns[1:] if title not in titles)
    for label, *cells in ([*map(_plain, row)] for row in table.rows):
        alike = [row for row in rows if row[0] == label]
        if not alike:
            yield f"no row {label}; there are {[row[0] for row in rows]}"
            continue
        made_row = next((row for row in alike if row[1] == cells[0]), alike[-1])  # of several, that with this cell
        for title, shown in zip(columns[1:], cells, strict=True):
            if title in titles:
                full = made_row[titles.index(title)]
                if full != shown and not (shown and full.startswith(f"{shown} ")):
                    yield f"{label}, {title}: {shown}, but the evidence gives {full}"


# ------------------------------------------------------------------------------------------------ what was asked


def registered_late(about: Json, file: Path) -> list[str]:
    """Return why a study's file did not ask, before the runs of ``about`` started, what it asks now; [] where it did.

    file: the study's file in a checkout, whose history is read. Times are those at which commits were written.
    """

    def git(*words: str) -> str:
        command = ["git", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def digest(text: str | None = None) -> str:
        content = parse_yaml(file, text)
        # the key "problems" was "on" when the runs of pocket_hard_pilot started, which YAML reads as true
        gates = [{"problems" if key is True else key: value for key, value in g.items()} for g in content["gates"]]
        return evidence.question_digest({**content, "gates": gates}, about["scale"])

    found = [] if digest() == about["asked"] else [f"{file.name} asks something else than when its runs were packed"]
    commits = [line.split() for line in git("log", "--format=%H %at", "--", file.name).splitlines()]
    started = datetime.fromisoformat(about["started"]).timestamp()
    before = [commit for commit, written in commits if int(written) <= started]
    if not before:
        return [*found, f"{file.name} was committed after the first run started ({about['started']})"]
    asked = digest(git("show", f"{before[0]}:./{file.name}"))
    late = f"{file.name} asked something else when the first run started"
    return found if asked == about["asked"] else [*found, late]
