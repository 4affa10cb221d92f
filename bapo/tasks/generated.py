"""Tasks whose problems are generated for small models: their options, splits and data, and tokenizers for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, Self

from pydantic import Field

from bapo import seeds
from bapo.errors import UserError
from bapo.experiments.schema import Node
from bapo.store.files import Json
from bapo.tasks import files
from bapo.tasks.base import Problem, Task
from bapo.validate import plain, read, wrong

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerFast

    from bapo.experiments.schema import Config, DataConfig

Share = Annotated[float, Field(ge=0, le=1)]


class Options(Node):
    """The keys of ``data.generator``: a subclass names them with types and bounds, and draws problems by them."""

    @classmethod
    def of(cls, data: DataConfig) -> Self:
        """Read ``data.generator``. Raises UserError naming key, value and cure."""
        return read(cls, plain(data.generator), None, "data.generator")


class GeneratedTask(Task):
    """Generates its problems (``data.source=generated``), or reads public sets (``data.source=hub``)."""

    ability: ClassVar[str]  #: goes into the column of this name that verl reads
    #: ``data.prompt`` -> the splits that can be generated for it; "base" counts documents, the others problems
    splits: ClassVar[Mapping[str, Collection[str]]]

    def problems(self, data: DataConfig, split: str, rng: np.random.Generator) -> tuple[list[Problem], dict[str, int]]:
        """Generate the problems of a split.

        Args:
            data: the options; ``data.split_sizes`` says how many
            split: one of :attr:`splits` for ``data.prompt``
            rng: where random choices come from; of the split alone

        Returns:
            The problems, and counts for the summary beside their number.
        """
        raise NotImplementedError

    def write_hub(self, config: Config, folder: Path) -> Json:
        """Write the splits from public sets, as :meth:`Task.write_data` does.

        Args:
            config: of a job
            folder: where to write

        Returns:
            Counts by split.
        """
        raise NotImplementedError

    def write_data(self, config: Config, folder: Path) -> Json:
        data = config.data
        if data.source == "hub":
            return self.write_hub(config, folder)
        check_data(data, self.splits, self.splits.get(data.prompt, ()))
        counts = {}
        for split in data.split_sizes:
            if split == "base":  # the base job draws its documents, if it trains at all
                continue
            problems, further_counts = self.problems(data, split, seeds.generator(data.seed, self.name, split))
            counts[split] = {"problems": len(problems), **further_counts}
            files.write_problems(folder / f"{split}.parquet", problems, self.name, self.ability, split)
        return counts


def check_data(data: DataConfig, prompts: Collection[str], splits: Collection[str]) -> None:
    """Check the keys of ``config.data`` that every source has. Raises UserError naming key, value and cure."""
    if data.prompt not in prompts:
        raise wrong(None, "data.prompt", data.prompt, f"with data.source={data.source} must be {' or '.join(prompts)}")
    for split, size in data.split_sizes.items():
        if split not in splits:
            raise wrong(None, f"data.split_sizes.{split}", None, f"no such split; allowed: {', '.join(splits)}")
        if size < 1:
            raise wrong(None, f"data.split_sizes.{split}", size, "must be at least 1")


def require_worked(data: DataConfig) -> None:
    """Raise UserError where a model trained from scratch would read anything but worked steps."""
    for key, only in (("source", "generated"), ("prompt", "chain")):
        if getattr(data, key) != only:
            cure = f"a model trained from scratch reads data.{key}={only} only; choose a pretrained model"
            raise wrong(None, f"data.{key}", getattr(data, key), cure)


#: draws in a row that bring no new problem, after which there are none
BARREN = 50


def too_many(split: str, count: int, available: int, what: str, more: str = "draw from more") -> UserError:
    """Return the error of a split that owns ``available`` of ``count`` problems.

    what: their name in the plural; more: what may give data.generator more of them.
    """
    cure = f"ask for fewer, or let data.generator {more}"
    return UserError(f"data.split_sizes.{split}: {count} distinct {what} are wanted but only {available} found; {cure}")


class Step(NamedTuple):
    """Holds ``a sign b = result``, all whole numbers of 0 and more."""

    a: int
    sign: str
    b: int
    result: int


def to_chain(steps: Sequence[Step]) -> str:
    """Write steps as the response of a small model: ``12 / 3 = 4 , 4 * 7 = 28 , 28 - 4 = 24``."""
    return " , ".join(f"{a} {sign} {b} = {result}" for a, sign, b, result in steps)


def owner(identity: str, shares: Mapping[str, float]) -> str:
    """Return the one split that a problem may appear in: a function of its name, not of a seed or size.

    shares: split -> share of all problems that it owns, in a fixed order; they add up to 1.
    """
    position = seeds.key64("split", identity) / 2**64
    for split, share in shares.items():
        position -= share
        if position < 0:
            return split
    return next(iter(shares))  # rounding: the shares add up to a hair less than 1


# ------------------------------------------------------------------------------------------------ tokenizers

PAD, EOS = "<pad>", "<eos>"  # ids 0 and 1
_CHAT = ("<|im_start|>", "<|im_end|>")  # verl looks these up by name

#: A message is its content: the small models know no roles.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def build_tokenizer(signs: Sequence[str], value_max: int, special: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Build a tokenizer of one token a number for ``signs`` and 0..value_max; value_max + len(signs) + 6 tokens.

    special: further special tokens, which lie behind all others and keep their ids where there are none.

    White space separates tokens and is no token: ``12 / 3 = 4`` and ``12/3=4`` are the same five tokens, and decode to
    ``12/3=4``. Two numbers in a row, which no answer holds, decode to their digits in a row. Characters outside the
    vocabulary are dropped.

    The class is Qwen2Tokenizer, whatever suits it less: transformers 5 makes one of any tokenizer that lies beside a
    config.json with model_type "qwen2", and rebuilds its parts except the added tokens. So every word is an added one.
    """
    from transformers import AddedToken, Qwen2Tokenizer

    tokens = [*signs, *map(str, range(value_max + 1))]
    line_break = "\u010a"  # verl needs one of one token: "Ċ" in this class's alphabet
    vocabulary = {token: i for i, token in enumerate((PAD, EOS, *_CHAT, line_break, *tokens, *special))}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        unk_token=None,  # type: ignore[arg-type]  # the library's own default is a token
        bos_token=None,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=[*_CHAT, *special],
    )
    tokenizer.add_tokens([AddedToken(word, lstrip=True, rstrip=True, normalized=False) for word in tokens])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
