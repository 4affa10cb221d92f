"""What a pretrained model says of itself: ``model=hf`` reads it from the model's files instead of ``experiments/``.

JSON and the headers of safetensors files alone; no library of models is imported. A local folder is read whenever a
configuration is composed. A model on the hub is described by its base job, once that has fetched it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bapo.errors import UserError
from bapo.experiments.identity import base_identity
from bapo.experiments.places import base_directory
from bapo.experiments.schema import Config
from bapo.store.files import SUMMARY, read_json

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
#: the key of CONFIG that holds the number of positions, by family
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


@dataclass(frozen=True)
class Facts:
    """What the files say. parameters: None where the weights are not in safetensors files; positions: None where the
    configuration has none; ends: ids of the end tokens of CONFIG and GENERATION; template: whether there is one."""

    kind: str
    architectures: tuple[str, ...]
    parameters: int | None
    positions: int | None
    vocabulary: int | None
    ends: tuple[int, ...]
    end_token: bool  # whether the tokenizer names one
    template: bool
    images: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def name_of(path: str) -> str:
    """Name a model for results' folders by its path, so that two paths have two names."""
    if Path(path).is_dir():
        whole = Path(path).resolve()
        return f"hf-{_plain(whole.name)}-{hashlib.sha256(str(whole).encode()).hexdigest()[:8]}"
    return "hf-" + "--".join(_plain(part) for part in path.split("/"))


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)


def derive(config: DictConfig) -> None:
    """Give a model that is read from its files the values that follow from path and engine. Raises UserError."""
    model = config.model
    if not model.from_files:
        return
    if not model.path:
        raise UserError("model.path has no value: name a folder, or a model on the hub: model=hf model.path=OWNER/NAME")
    if OmegaConf.is_missing(model, "name"):
        model.name = name_of(model.path)
    model.title = model.title or Path(model.path).name
    if model.dtype == "auto":
        model.dtype = "bfloat16" if config.engine == "verl" else "float32"


def fill(config: Config) -> Config:
    """Set ``model.parameters`` and ``model.context_length`` where nobody has, and return ``config``.

    Raises UserError for a file that is missing or broken, and where prompt and response exceed the context. A model on
    the hub that was not fetched stays as it is.
    """
    model = config.model
    if not model.from_files or not model.path:
        return config
    if Path(model.path).is_dir():
        facts, where = read(Path(model.path)), f"{model.path}/{CONFIG}"
    else:
        noted = base_directory(config) / SUMMARY
        summary = read_json(noted) if noted.exists() else {}
        if summary.get("identity") != base_identity(config) or "facts" not in summary:
            return config
        facts, where = Facts(**summary["facts"]), f"{model.path}: {CONFIG}"
    if model.parameters is None:
        model.parameters = facts.parameters
    if model.context_length is None:
        model.context_length = facts.positions
        config.require_context(f" ({where})")
    return config


def read(folder: Path) -> Facts:
    """Read what the files in ``folder`` say. Raises UserError naming file, field and cure."""
    content = _json(folder / CONFIG)
    if content is None:
        raise UserError(f"{folder / CONFIG}: missing: model.path must name a model in Hugging Face's format")
    if "quantization_config" in content:
        raise UserError(
            f"{folder / CONFIG}: quantization_config: quantised weights cannot be trained; take the original model"
        )
    if not isinstance(content.get("model_type"), str):
        raise UserError(f"{folder / CONFIG}: model_type has no value; get the model again")
    text = content["text_config"] if isinstance(content.get("text_config"), Mapping) else content
    tokenizer, generation = _json(folder / TOKENIZER) or {}, _json(folder / GENERATION) or {}
    ends = [e for source in (generation, text, content) for e in _ids(source.get("eos_token_id"))]
    tied = content.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    return Facts(
        kind=content["model_type"],
        architectures=tuple(content.get("architectures") or ()),
        parameters=_parameters(folder, bool(tied)),
        positions=next((n for key in _POSITIONS if isinstance(n := text.get(key), int)), None),
        vocabulary=next((n for part in (text, content) if isinstance(n := part.get("vocab_size"), int)), None),
        ends=tuple(dict.fromkeys(ends)),
        end_token=bool(tokenizer.get("eos_token")),
        template=bool(tokenizer.get("chat_template"))
        or any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json")),
        images="vision_config" in content,
    )


def require(config: Config, folder: Path, facts: Facts) -> None:
    """Raise UserError where what a model says of itself does not fit the run: file, field and cure."""
    if not facts.template and config.data.chat_template != "plain":
        raise UserError(
            f"{folder / TOKENIZER}: chat_template has no value, and the prompts are conversations; take an "
            "instruction-tuned model, add one to the file, or set data.chat_template=plain for prompts to be continued"
        )
    if not (facts.ends or facts.end_token or config.sampling.stop_tokens):
        raise UserError(
            f"{folder / GENERATION}: eos_token_id has no value, nor has eos_token in {TOKENIZER}: no response would "
            "ever end; name the token in sampling.stop_tokens"
        )
    beyond = [end for end in facts.ends if facts.vocabulary is not None and not 0 <= end < facts.vocabulary]
    if beyond:
        raise UserError(
            f"{folder / GENERATION}: eos_token_id={beyond[0]}, but {CONFIG} has vocab_size={facts.vocabulary}; get the "
            "model again, or correct the files"
        )


def _ids(value: Any) -> list[int]:
    return [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]


def _json(path: Path) -> dict[str, Any] | None:
    """Return the object of a file, None where there is no file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as JSON ({error}); get the model again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a JSON object; get the model again")
    return content


def _parameters(folder: Path, tied: bool) -> int | None:
    """Count the weights by the headers of their files. tied: the head is the embeddings; some files hold both."""
    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as handle:
                length = int.from_bytes(handle.read(8), "little")
                if not 2 <= length <= 100_000_000:
                    raise ValueError("its header is broken")
                header = json.loads(handle.read(length))
            shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}: not a safetensors file ({error}); get the model again") from None
    if tied:
        shapes.pop("lm_head.weight", None)
    return sum(math.prod(shape) for shape in shapes.values()) or None
