"""Table 3 of the paper, hyper-parameters: what the runs' own config.yaml say, beside what the paper prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from analysis import paper, reading
from analysis.page import Page, Table, at_scale
from analysis.study import Block, Study
from analysis.text import flat
from bapo.errors import UserError
from bapo.store.files import CONFIG

#: whose options stand beside the paper's BAPO; the first method of a block where it has none of them
SUBJECTS = ("bapo", "bapo+corrected", "bapo_code")
#: sections that say what a run means, and the fields in them that only name things
SHARED = ("sampling", "train", "evaluation", "probe", "data", "model", "base")
NAMES = ("method.name", "method.title", "method.kind", "model.title")
#: shown in Markdown, but for what a backend of the evaluation that was not used is told; the rest is in the CSV
SHOWN = ("sampling.", "train.", "evaluation.")
BACKENDS = ("vllm", "server")


#: method -> seed -> the flat configuration of the run
Configurations = Mapping[str, Mapping[int, Mapping[str, Any]]]


def configurations(block: Block, study: Study) -> Configurations:
    """method -> seed -> the flat configuration of the run. Raises UserError where a run has none."""
    configs: dict[str, dict[int, dict[str, Any]]] = {}
    for method, cells in block.methods.items():
        for cell in cells:
            config = flat(reading.config(cell, study))
            if not config:
                raise UserError(f"{cell.run}: no {CONFIG}; make the run with `{study.command}`")
            configs.setdefault(method, {})[cell.seed] = config
    return configs


def shown(value: Any) -> str:
    """Return a value as text: null -> "none", 1e-06 -> "1e-06", [0.125, 0.5] -> "[0.125, 0.5]"."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(shown(v) for v in value) + "]"
    return str(value)


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return each value once, in the order of their first appearance; values may be lists."""
    seen: list[Any] = []
    for value in values:
        if value not in seen:
            seen.append(value)
    return seen


def same(ours: Any, printed: Any) -> bool:
    """Return whether a value of ours is the paper's number or list of numbers."""
    if isinstance(ours, (list, tuple)) and isinstance(printed, (list, tuple)):
        return len(ours) == len(printed) and all(same(a, b) for a, b in zip(ours, printed, strict=True))
    numbers = (int, float)
    if isinstance(ours, numbers) and isinstance(printed, numbers):
        return abs(ours - printed) <= 1e-9 * max(1e-6, abs(printed))
    return ours == printed


# ------------------------------------------------------------------------------------------------ the paper's table


def beside_the_paper(block: Block, methods: Configurations) -> list[dict[str, Any]]:
    """Return one row a parameter of Table 3: what the paper prints, what our BAPO used, whether they differ."""
    subject = next((m for m in SUBJECTS if m in methods), next(iter(methods)))
    rows = []
    for entry in paper.read("table3")["parameters"]:
        key = entry["key"]
        values: dict[str, tuple[Any, Mapping[str, Any]]] = {}
        for config in methods[subject].values():
            if key in config:
                values.setdefault(shown(config[key]), (config[key], config))
        used = ", ".join(_named(entry, v, c) for v, c in values.values())
        effective = [_effective(entry, v, c) for v, c in values.values()]
        rows.append(
            {
                **block.keys(subject),
                "part": entry["part"],
                "parameter": entry["title"],
                "paper": entry["printed"],
                "key": key or "",
                "used": used or entry.get("note", "not in the configuration"),
                "differs": any(not same(v, entry["value"]) for v in effective),
                "others": _others(methods, subject, key) if key else "",
            }
        )
    return rows


def _named(entry: Mapping[str, Any], value: Any, config: Mapping[str, Any]) -> str:
    """Return the value, or in its place what a null there means, with the fields that it names filled in."""
    if value is None and "unset" in entry:
        return re.sub(r"\{([\w.]+)\}", lambda m: shown(config.get(m[1])), entry["unset"])
    return shown(value)


def _effective(entry: Mapping[str, Any], value: Any, config: Mapping[str, Any]) -> Any:
    """Return what is compared with the paper's number: a null that stands for a number is that number."""
    if value is not None or "unset" not in entry:
        return value
    said = _named(entry, value, config)
    number = re.search(r"\d+", said)
    if not number or "steps" in said:
        return None
    return int(number[0]) // 2 if said.startswith("half of") else int(number[0])


def _others(by_method: Configurations, subject: str, key: str) -> str:
    """Methods of the block whose value is another one than the subject's: "repo: 1e-4"; seeds are told apart too."""
    ours = distinct(c.get(key) for c in by_method[subject].values())
    others = []
    for method, configs in by_method.items():
        values = distinct(c[key] for c in configs.values() if key in c)
        if values and method != subject and any(v not in ours for v in values):
            others.append(f"{method}: {', '.join(shown(v) for v in values)}")
    return "; ".join(others)


def _paper_table(block: Block, by_method: Configurations) -> Table:
    rows = beside_the_paper(block, by_method)
    header = ["Part", "Parameter", "Paper", "Used", "Differs", "Other methods of the study"]
    cells = [
        [r["part"], r["parameter"], r["paper"], r["used"], "differs" if r["differs"] else "", r["others"]] for r in rows
    ]
    method = block.method_title(rows[0]["method"]).lstrip("+")
    return Table(f"{block.title}: {method} beside the paper's Table 3", header, cells, "llllll")


# ------------------------------------------------------------------------------------------------ every option


def options(by_method: Configurations) -> dict[str, dict[str, str]]:
    """option -> method -> value, of every ``method.*`` field but its names; methods without the option are left out."""
    table: dict[str, dict[str, str]] = {}
    for method, configs in by_method.items():
        for key in distinct(k for c in configs.values() for k in c if k.startswith("method.") and k not in NAMES):
            values = distinct(c.get(key) for c in configs.values())
            table.setdefault(key.removeprefix("method."), {})[method] = ", ".join(shown(v) for v in values)
    return table


def _options_table(block: Block, by_method: Configurations) -> Table:
    methods = list(by_method)
    rows = [[option, *(values.get(m, "") for m in methods)] for option, values in options(by_method).items()]
    titles = [block.method_title(m).lstrip("+") for m in methods]
    return Table(f"{block.title}: every method's own options", ["Option", *titles], rows, "l" * (1 + len(methods)))


def shared(by_method: Configurations) -> dict[str, str]:
    """Return every field of the sections that all methods share -> its value, or which methods have which value."""
    keys = distinct(
        k for configs in by_method.values() for c in configs.values() for k in c if k.split(".")[0] in (*SHARED, "seed")
    )
    table = {}
    for key in keys:
        by_value: dict[str, list[str]] = {}
        for method, configs in by_method.items():
            values = distinct(c[key] for c in configs.values() if key in c)
            if values:
                by_value.setdefault(", ".join(shown(v) for v in values), []).append(method)
        if len(by_value) == 1:
            table[key] = next(iter(by_value))
        else:
            most = max(by_value, key=lambda v: len(by_value[v]))
            rest = [f"{', '.join(methods)}: {value}" for value, methods in by_value.items() if value != most]
            table[key] = f"{most} ({'; '.join(rest)})"
    return table


def _shown(fields: Mapping[str, str]) -> list[list[str]]:
    idle = tuple(f"evaluation.{b}." for b in BACKENDS if b not in fields.get("evaluation.backend", ""))
    return [[k, v] for k, v in fields.items() if k == "seed" or (k.startswith(SHOWN) and not k.startswith(idle))]


# ------------------------------------------------------------------------------------------------ files


def notes(study: Study) -> list[str]:
    return [
        "Read from the config.yaml of every run; where seeds or methods have different values, all are given.",
        f"The paper's values: {paper.read('table3')['source']}. 'differs': the value used is not the printed one.",
        "Blank: the method does not have the option; 'none': left to its default. Every field is in the CSV.",
        *([study.note] if study.note else []),
    ]


def write(study: Study, out: Path) -> list[Path]:
    """table3.csv (the paper's parameters), table3_options.csv (every field of every run), table3.md, table3.tex."""
    import pandas as pd

    read = {id(b): configurations(b, study) for b in study.blocks}
    rows = [r for b in study.blocks for r in beside_the_paper(b, read[id(b)])]
    every = [
        {**b.keys(m), "seed": seed, "key": key, "value": shown(value)}
        for b in study.blocks
        for m, configs in read[id(b)].items()
        for seed, config in configs.items()
        for key, value in config.items()
        if key.split(".")[0] in (*SHARED, "method", "engine", "seed")
    ]
    tables = [_paper_table(b, read[id(b)]) for b in study.blocks]
    tables += [_options_table(b, read[id(b)]) for b in study.blocks]
    title = "sampling, training with its budget, and evaluation"
    tables += [
        Table(f"{b.title}: {title}", ["Field", "Value"], _shown(shared(read[id(b)])), "ll") for b in study.blocks
    ]
    page = Page(at_scale("Table 3: hyper-parameters as used", study.scale), tables, notes(study))
    return page.write(out, "table3", pd.DataFrame(rows), options=pd.DataFrame(every))
