"""The tables and figures of a results folder, ready for the page: files as data: URIs, Markdown as HTML."""

from __future__ import annotations

import base64
import csv
import gzip
import html
import io
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from analysis.products import FIGURES, robustness_reports
from analysis.report import markdown
from bapo.errors import UserError


@dataclass(frozen=True)
class Data:
    """A text file inside the page. href: data: URI of it, gzipped; rows, columns: of a CSV file, without its header."""

    name: str
    size: int  # bytes
    href: str
    rows: int = 0
    columns: int = 0

    @property
    def is_table(self) -> bool:
        return self.name.endswith(".csv")


@dataclass(frozen=True)
class Figure:
    """image: data: URI; width, height: for its proportions; description: what the file says of itself."""

    key: str
    title: str
    image: str
    suffix: str
    width: float
    height: float
    description: str
    data: tuple[Data, ...] = ()


@dataclass(frozen=True)
class Table:
    key: str
    title: str
    body: Markup  # "" where there is only data
    data: tuple[Data, ...]
    figures: tuple[Figure, ...] = ()


def data(path: Path) -> Data:
    """Raises UserError where a CSV file is not text."""
    content = path.read_bytes()
    rows = columns = 0
    if path.suffix == ".csv":
        try:
            lines = list(csv.reader(io.StringIO(content.decode("utf-8"))))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path} is damaged ({error}); delete it and give the same command again") from None
        rows, columns = max(0, len(lines) - 1), len(lines[0]) if lines else 0
    packed = base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()
    return Data(path.name, len(content), f"data:application/gzip;base64,{packed}", rows, columns)


def _by_number(path: Path) -> tuple[bool, list[int | str]]:
    """Return the paper's tables first, table2 before table10."""
    parts: list[int | str] = [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", path.stem)]
    return not path.stem.startswith("table"), parts


def tables(folder: Path) -> list[Table]:
    """Return every table of a folder: NAME.md with NAME.csv, .tex, .svg and what else begins with NAME_."""
    texts = sorted(folder.glob("*.md"), key=_by_number)
    rest = sorted((p for s in ("csv", "tex") for p in folder.glob(f"*.{s}")), key=_by_number)
    stems = sorted({p.stem for s in ("svg", "png") for p in folder.glob(f"*.{s}")})
    listed = []
    for path in texts:
        longer = [t.stem for t in texts if t.stem.startswith(path.stem + "_")]
        belonging = [p for p in rest if _belongs(p.stem, path.stem, longer)]
        shown = tuple(_figure(folder, s) for s in stems if _belongs(s, path.stem, longer))
        title, body = markdown.title(path.read_text(encoding="utf-8"))
        files = tuple(map(data, belonging))
        listed.append(Table(path.stem, title or _spoken(path.stem), markdown.html(body), files, shown))
        rest = [p for p in rest if p not in belonging]
    listed += [Table(p.stem, _spoken(p.stem), Markup(""), (data(p),)) for p in rest]
    return listed


def _belongs(stem: str, name: str, longer: Iterable[str] = ()) -> bool:
    """Return whether a file goes with the table ``name``, and with none of a longer name."""
    return (stem == name or stem.startswith(name + "_")) and not any(_belongs(stem, other) for other in longer)


def sweeps(results: Path) -> list[Table]:
    """Return every finished robustness report; its files, named alike in all sweeps, get the sweep's name."""
    folders = [text.parent for text, *_ in robustness_reports(results)]
    return [_renamed(t, p.name) for p in folders for t in tables(p) if t.key == "robustness"]


def _renamed(table: Table, sweep: str) -> Table:
    files = tuple(replace(d, name=f"{sweep}_{d.name}") for d in table.data)
    shown = tuple(replace(f, key=f"{sweep}_{f.key}") for f in table.figures)
    return replace(table, key=f"{sweep}_{table.key}", data=files, figures=shown)


def _spoken(name: str) -> str:
    return name.replace("_", " ").capitalize()


def figure_list(folder: Path) -> list[Figure]:
    """Draw every figure in the paper's order, then the others by name: SVG, else PNG, with the data behind it."""
    order = list(FIGURES)
    stems = {p.stem for s in ("svg", "png") for p in folder.glob(f"*.{s}")}
    known = sorted(stems, key=lambda s: (order.index(s) if s in order else len(order), s))
    return [_figure(folder, stem, folder / f"{stem}.csv") for stem in known]


def _figure(folder: Path, stem: str, *behind: Path) -> Figure:
    path = next(p for p in (folder / f"{stem}.svg", folder / f"{stem}.png") if p.exists())
    content = path.read_bytes()
    title = description = ""
    if path.suffix == ".svg":
        text = content.decode("utf-8", "replace")
        kind, (width, height) = "svg+xml", _svg_size(text)
        title, description = _said(text, "title"), _said(text, "dc:description|desc")
    else:
        kind, (width, height) = "png", _png_size(content, path)
    if entry := FIGURES.get(stem):
        title = entry.heading
    title = _spoken(stem) if title in ("", stem) else title
    image = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    files = tuple(data(p) for p in behind if p.exists())
    return Figure(stem, title, image, path.suffix, width, height, description, files)


def _svg_size(text: str) -> tuple[float, float]:
    """Return the size of the viewBox; 4 by 3 where there is none."""
    match = re.search(r'<svg\b[^>]*\bviewBox="\s*[-\d.e]+[\s,]+[-\d.e]+[\s,]+([\d.e]+)[\s,]+([\d.e]+)', text)
    return (float(match[1]), float(match[2])) if match else (640.0, 480.0)


def _said(text: str, names: str) -> str:
    """Return the text of the first element of an SVG with one of these names."""
    match = re.search(rf"<({names})\b[^>]*>(.*?)</\1>", text, re.DOTALL)
    return " ".join(html.unescape(match[2]).split()) if match else ""


def _png_size(content: bytes, path: Path) -> tuple[float, float]:
    if content[:8] != b"\x89PNG\r\n\x1a\n" or len(content) < 24:
        raise UserError(f"{path} is damaged (not a PNG file); delete it and give the same command again")
    width, height = struct.unpack(">II", content[16:24])
    return float(width), float(height)


def total(items: Iterable[Table | Figure]) -> int:
    """Bytes that the files of tables or figures take in the page."""
    data = sum(len(d.href) for item in items for d in item.data)
    shown = [f for item in items for f in (item.figures if isinstance(item, Table) else (item,))]
    return data + sum(len(f.image) for f in shown)
