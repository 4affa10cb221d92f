"""What a pretrained model says of itself: ``model=hf`` reads it from the model's files instead of ``experiments/``.

JSON and the headers of safetensors files alone; no library of models is imported. A local folder is read whenever a
configuration is composed. A model on the hub is described by its base job, once that has fetched it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from bapo.errors import UserError
from bapo.experiments.identity import base_identity
from bapo.experiments.places import base_directory
from bapo.experiments.schema import Config
from bapo.store.files import SUMMARY, Json, read_json
from bapo.validate import wrong

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

    def as_json(self) -> Json:
        return asdict(self)


def name_of(path: str) -> str:
    """Name a model for results' folders by its path, so that two paths have two names."""
    whole = Path(path).resolve()
    parts = [whole.name] if Path(path).is_dir() else path.split("/")
    name = "hf-" + "--".join(re.sub(r"[^A-Za-z0-9._-]", "_", part) for part in parts)
    return f"{name}-{hashlib.sha256(str(whole).encode()).hexdigest()[:8]}" if Path(path).is_dir() else name


def derive(config: DictConfig) -> None:
    """Give a model that is read from its files the values that follow from path and engine. Raises UserError."""
    model = config.model
    if not model.from_files:
        return
    if not model.path:
        raise wrong(
            None, "model.path", None, "has no value: name a folder, or a model on the hub: model.path=OWNER/NAME"
        )
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
    if not (folder / CONFIG).is_file():
        raise wrong(folder / CONFIG, "", None, "missing: model.path must name a model in Hugging Face's format")
    content, tokenizer, generation = (_json(folder / name) for name in (CONFIG, TOKENIZER, GENERATION))
    if "quantization_config" in content:
        cure = "quantised weights cannot be trained; take the original model"
        raise wrong(folder / CONFIG, "quantization_config", None, cure)
    if not content.get("model_type"):
        raise wrong(folder / CONFIG, "model_type", None, "has no value; get the model again")
    text = content.get("text_config") or content
    named = [source.get("eos_token_id") for source in (generation, text, content)]
    ends = [end for given in named for end in (given if isinstance(given, list) else [given]) if isinstance(end, int)]
    return Facts(
        kind=content["model_type"],
        architectures=tuple(content.get("architectures") or ()),
        parameters=_parameters(folder, content.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        positions=next((text[key] for key in _POSITIONS if text.get(key)), None),
        vocabulary=text.get("vocab_size", content.get("vocab_size")),
        ends=tuple(dict.fromkeys(ends)),
        end_token=bool(tokenizer.get("eos_token")),
        template=bool(tokenizer.get("chat_template")) or any(folder.glob("chat_template.j*")),
        images="vision_config" in content,
    )


def require(config: Config, folder: Path, facts: Facts) -> None:
    """Raise UserError where what a model says of itself does not fit the run: file, field and cure."""
    if not facts.template and config.data.chat_template != "plain":
        cure = (
            "has no value, and the prompts are conversations; take an instruction-tuned model, add one to the file, or "
            "set data.chat_template=plain for prompts to be continued"
        )
        raise wrong(folder / TOKENIZER, "chat_template", None, cure)
    if not (facts.ends or facts.end_token or config.sampling.stop_tokens):
        cure = f"has no value, nor has eos_token in {TOKENIZER}: no response would ever end; name the token in "
        raise wrong(folder / GENERATION, "eos_token_id", None, f"{cure}sampling.stop_tokens")
    for end in facts.ends:
        if facts.vocabulary is not None and not 0 <= end < facts.vocabulary:
            cure = f"but {CONFIG} has vocab_size={facts.vocabulary}; get the model again"
            raise UserError(f"{folder / GENERATION}: eos_token_id={end}, {cure}")


def _json(path: Path) -> Json:
    """Return the object of a file, {} where there is no file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return dict(content)
    except (ValueError, TypeError) as error:
        raise wrong(path, "", None, f"must be a JSON object ({error}); get the model again") from None


def _parameters(folder: Path, tied: bool) -> int | None:
    """Count the weights by the headers of their files. tied: the head is the embeddings; some files hold both."""
    from safetensors import SafetensorError, safe_open

    count = 0
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, "np") as weights:
                names = (name for name in weights.keys() if not (tied and name == "lm_head.weight"))  # noqa: SIM118
                count += sum(math.prod(weights.get_slice(name).get_shape()) for name in names)
        except SafetensorError as error:
            raise wrong(file, "", None, f"not a safetensors file ({error}); get the model again") from None
    return count or None
