"""Reads a pretrained model's sizes and tokens from its files, for ``model=hf``, which ``experiments/`` does not know.

Only JSON and the headers of safetensors files are read, and no library of models is imported. A local folder is read
whenever a configuration is composed. The base job describes a model on the hub once it has fetched it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from bapo.experiments.identity import base_identity
from bapo.experiments.places import base_directory
from bapo.experiments.schema import Config, SizesConfig
from bapo.store.files import SUMMARY, Json, read_json
from bapo.validate import wrong

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
#: the keys of CONFIG that hold the number of positions in one family or another
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
#: model.sizes -> the key of CONFIG
_SIZES = {"vocabulary": "vocab_size", "width": "hidden_size", "layers": "num_hidden_layers", "mlp": "intermediate_size"}


class Facts(NamedTuple):
    """Holds what the files of a model tell.

    parameters: their number; None where the weights are not in safetensors files
    sizes: as model.sizes; None where CONFIG lacks one of them
    positions: the longest sequence; None where CONFIG lacks it
    ends: whether a token ends a response
    template: whether there is a chat template
    """

    parameters: int | None
    sizes: dict[str, int] | None
    positions: int | None
    ends: bool
    template: bool


def fill(config: Config) -> Config:
    """Set ``model.parameters``, ``sizes`` and ``context_length`` where they are not set, and return ``config``.

    The values of a model on the hub that was not fetched yet are left alone. Raises UserError for a file that is
    missing or broken, and where prompt and response exceed the context.
    """
    model = config.model
    if not model.from_files or not model.path:
        return config
    if Path(model.path).is_dir():
        facts = read(Path(model.path))._asdict()
    else:
        file = base_directory(config) / SUMMARY
        summary = read_json(file) if file.exists() else {}
        if summary.get("identity") != base_identity(config) or "facts" not in summary:
            return config
        facts = summary["facts"]
    if model.parameters is None:
        model.parameters = facts["parameters"]
    if model.sizes is None and facts.get("sizes"):  # earlier summaries lack them
        model.sizes = SizesConfig(**facts["sizes"])
    if model.context_length is None:
        model.context_length = facts["positions"]
        config.require_context(f" ({model.path}: {CONFIG})")
    return config


def read(folder: Path) -> Facts:
    """Read the files in ``folder``. Raises UserError naming file, field and cure."""
    if not (folder / CONFIG).is_file():
        raise wrong(folder / CONFIG, "", None, "missing: model.path must name a model in Hugging Face's format")
    content, tokenizer, generation = (_json(folder / name) for name in (CONFIG, TOKENIZER, GENERATION))
    if "quantization_config" in content:
        cure = "quantised weights cannot be trained; take the original model"
        raise wrong(folder / CONFIG, "quantization_config", None, cure)
    text = content.get("text_config") or content
    ends = [tokenizer.get("eos_token"), *(source.get("eos_token_id") for source in (generation, text, content))]
    return Facts(
        parameters=_parameters(folder, content.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        sizes={name: text[key] for name, key in _SIZES.items()} if all(map(text.get, _SIZES.values())) else None,
        positions=next((text[key] for key in _POSITIONS if text.get(key)), None),
        ends=any(end not in (None, "", []) for end in ends),
        template=bool(tokenizer.get("chat_template")) or any(folder.glob("chat_template.j*")),
    )


def require(config: Config, folder: Path, facts: Facts) -> None:
    """Raise UserError, naming file, field and cure, where a model's files do not suit the run."""
    if not facts.template and config.data.chat_template != "plain":
        cure = (
            "has no value, and the prompts are conversations; take an instruction-tuned model, add one to the file, or "
            "set data.chat_template=plain for prompts to be continued"
        )
        raise wrong(folder / TOKENIZER, "chat_template", None, cure)
    if not (facts.ends or config.sampling.stop_tokens):
        cure = "has no value, so no response would ever end; name the token in sampling.stop_tokens"
        raise wrong(folder / GENERATION, "eos_token_id", None, cure)


def _json(path: Path) -> Json:
    """Return the object of a JSON file, or {} where there is none. Raises UserError for other content."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (ValueError, TypeError) as error:
        raise wrong(path, "", None, f"must be a JSON object ({error}); get the model again") from None


def _parameters(folder: Path, tied: bool) -> int | None:
    """Count the weights by the headers of their files. tied: whether head and embeddings are one, and counted once."""
    from huggingface_hub import errors, get_local_safetensors_metadata

    try:
        files = get_local_safetensors_metadata(folder).files_metadata.values()
    except errors.NotASafetensorsRepoError:
        return None
    except (errors.SafetensorsParsingError, OSError) as error:
        raise wrong(folder, "", None, f"{error}; get the model again") from None
    weights = ((name, tensor) for file in files for name, tensor in file.tensors.items())
    return sum(tensor.parameter_count for name, tensor in weights if not (tied and name == "lm_head.weight"))
