"""Table 3 of the paper, hyper-parameters: what the runs' own config.yaml say, beside what the paper prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis import paper, reading, text
from analysis.page import Page, Table
from analysis.study import Block, StudyFile
from analysis.text import flat

#: methods that may stand beside the paper's BAPO: the first of these that a block has, else its first method
SUBJECTS = ("bapo", "bapo+corrected", "bapo_code")
#: sections that say what a run means, and the fields in them that only name things
SHARED = ("sampling", "train", "evaluation", "probe", "data", "model", "base")
NAMES = ("method.name", "method.title", "method.kind", "model.title")
#: sections shown in Markdown; the rest is in the CSV
SHOWN = ("seed", "sampling", "train", "evaluation")
#: method -> seed -> the flat configuration of the run
Configurations = Mapping[str, Mapping[int, Mapping[str, Any]]]


def configurations(block: Block) -> Configurations:
    """Return the configurations of a block's runs."""
    return {m: {cell.seed: flat(reading.config(cell)) for cell in cells} for m, cells in block.methods.items()}


def as_text(value: Any) -> str:
    """Return a value as text: null -> "none", 1e-06 -> "1e-06", [0.125, 0.5] -> "[0.125, 0.5]"."""
    if isinstance(value, bool) or value is None:
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(as_text(v) for v in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def option_values(by_method: Configurations, select: Callable[[str], bool]) -> dict[str, dict[str, str]]:
    """Return key -> method -> its value in the method's runs, of the keys that ``select`` takes."""
    of_key: dict[str, dict[str, str]] = {}
    for method, configs in by_method.items():
        for key in dict.fromkeys(k for c in configs.values() for k in c if select(k)):
            each = dict.fromkeys(as_text(c[key]) for c in configs.values() if key in c)
            of_key.setdefault(key, {})[method] = ", ".join(each)
    return of_key


def beside_the_paper(block: Block, methods: Configurations) -> list[dict[str, Any]]:
    """Return one row a parameter of Table 3: what the paper prints, what our BAPO used, whether they differ.

    others: methods of the block that have another value than it in some run.
    """
    subject = next((m for m in SUBJECTS if m in methods), next(iter(methods)))
    rows = []
    for entry in paper.read("table3")["parameters"]:
        key = entry["key"]
        used = [(c[key], c) for c in methods[subject].values() if key in c]
        others = {m: [as_text(c[key]) for c in configs.values() if key in c] for m, configs in methods.items()}
        ours = {as_text(value) for value, _ in used} or {as_text(None)}
        rows.append(
            {
                **block.keys(subject),
                "part": entry["part"],
                "parameter": entry["title"],
                "paper": entry["printed"],
                "key": key or "",
                "used": ", ".join(dict.fromkeys(_named(entry, v, c) for v, c in used))
                or entry.get("note", "not in the configuration"),
                "differs": any(as_text(_effective(entry, v, c)) != as_text(entry["value"]) for v, c in used),
                "others": "; ".join(f"{m}: {', '.join(dict.fromkeys(v))}" for m, v in others.items() if set(v) - ours),
            }
        )
    return rows


def _named(entry: Mapping[str, Any], value: Any, config: Mapping[str, Any]) -> str:
    """Return the value, or in its place what a null there means, with the fields that it names filled in."""
    if value is None and "unset" in entry:
        return re.sub(r"\{([\w.]+)\}", lambda m: as_text(config.get(m[1])), entry["unset"])
    return as_text(value)


def _effective(entry: Mapping[str, Any], value: Any, config: Mapping[str, Any]) -> Any:
    """Return what is compared with the paper's number: a null that stands for a share of another field is that."""
    if value is not None or "share_of" not in entry:
        return value
    field, share = entry["share_of"]
    return config[field] * share


def shared(values: Mapping[str, str]) -> str:
    """Return the value of most methods, and which have another: "16 (bapo: 32)". values: by method."""
    by_value = {value: [m for m, theirs in values.items() if theirs == value] for value in values.values()}
    most = max(by_value, key=lambda value: len(by_value[value]))
    rest = [f"{', '.join(methods)}: {value}" for value, methods in by_value.items() if value != most]
    return f"{most} ({'; '.join(rest)})" if rest else most


def _tables(block: Block, by_method: Configurations, rows: list[dict[str, Any]]) -> Iterator[Table]:
    titles = {m: block.method_title(m).lstrip("+") for m in by_method}
    header = ["Part", "Parameter", "Paper", "Used", "Differs", "Other methods of the study"]
    cells = [
        [r["part"], r["parameter"], r["paper"], r["used"], "differs" if r["differs"] else "", r["others"]] for r in rows
    ]
    title = f"{block.title}: {titles[rows[0]['method']]} beside the paper's Table 3"
    yield Table(title, header, cells, "llllll")
    options = option_values(by_method, lambda key: key.startswith("method.") and key not in NAMES)
    cells = [[key.removeprefix("method."), *(of.get(m, "") for m in by_method)] for key, of in options.items()]
    header, align = ["Option", *titles.values()], "l" * (1 + len(by_method))
    yield Table(f"{block.title}: every method's own options", header, cells, align)
    fields = {key: shared(of) for key, of in option_values(by_method, lambda key: key.split(".")[0] in SHOWN).items()}
    idle = "evaluation.vllm." if "vllm" not in fields.get("evaluation.backend", "") else "-"  # its options say nothing
    cells = [[key, value] for key, value in fields.items() if not key.startswith(idle)]
    yield Table(f"{block.title}: sampling, training with its budget, and evaluation", ["Field", "Value"], cells, "ll")


def write(study: StudyFile, out: Path) -> list[Path]:
    """Write table3.csv (the paper's parameters), .md, .tex, and table3_options.csv (every field of every run)."""
    read = {b: configurations(b) for b in study.blocks}
    rows = {b: beside_the_paper(b, configs) for b, configs in read.items()}
    every = [
        {**b.keys(m), "seed": seed, "key": key, "value": as_text(value)}
        for b, by_method in read.items()
        for m, configs in by_method.items()
        for seed, config in configs.items()
        for key, value in config.items()
        if key.split(".")[0] in (*SHARED, "method", "engine", "seed")
    ]
    kinds = zip(*(_tables(b, configs, rows[b]) for b, configs in read.items()), strict=True)
    notes = text.words("table3", source=paper.read("table3")["source"])
    page = Page.of(study, "Table 3: hyper-parameters as used", [t for kind in kinds for t in kind], notes)
    return page.write(out, "table3", [row for of_block in rows.values() for row in of_block], options=every)
