"""Makes the torch engine's sampler an lm-eval model with the name ``bapo-torch``."""

from __future__ import annotations

from collections.abc import Callable

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from bapo import seeds
from bapo.algorithm.rollouts import Prompt
from bapo.engines.shared import models
from bapo.engines.shared.models.images import prepare
from bapo.engines.shared.prompts import PromptTokens, chat
from bapo.engines.shared.responses import Response, decode, sample_responses
from bapo.engines.shared.sampling import SamplingParameters


@register_model("bapo-torch")
class TorchLM(TemplateLM):
    """Samples with random numbers keyed by (seed, task, problem id, repeat).

    A response therefore depends neither on the batch size, nor on the other problems and tasks of the evaluation.

    Args:
        model, tokenizer: a Hugging Face causal model and its tokenizer
        seed: of the evaluation
        batch_size: rows at a time
        advance: called with the number of responses after each batch
        processor: of a model that reads images, with the same tokenizer
    """

    MULTIMODAL = True  # tells lm-eval that requests may have images

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        batch_size: int = 1024,
        advance: Callable[[int], None] = lambda count: None,
        processor: ProcessorMixin | None = None,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.processor = model, tokenizer, processor
        self.seed, self.batch_size, self.advance = seed, int(batch_size), advance

    # -------------------------------------------------------------------------------------------- prompts

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return chat(self.tokenizer, chat_history, add_generation_prompt, images=self.processor is not None)

    def tok_encode(self, string: str | list[str], add_special_tokens: bool | None = None, **kwargs: object) -> list:
        return self.tokenizer(string, add_special_tokens=bool(add_special_tokens))["input_ids"]

    # -------------------------------------------------------------------------------------------- sampling

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Response]:
        """Return one text a request, in order. lm-eval passes the same Instance once for each repeat."""
        indices: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            indices.setdefault(id(request), []).append(index)
        batches: dict[tuple[str, SamplingParameters, int], list[tuple[Prompt, list[int]]]] = {}
        firsts = [requests[repeats[0]] for repeats in indices.values()]
        for request, row, repeats in zip(firsts, self._rows(firsts), indices.values(), strict=True):
            task, parameters, name = str(request.task_name), self._parameters(request), str(request.doc["id"])
            batches.setdefault((task, parameters, len(repeats)), []).append((Prompt(name, row), repeats))
        texts = [Response("", 0)] * len(requests)
        for (task, parameters, count), batch in batches.items():
            key, size = seeds.key64(self.seed, "evaluation", task), max(1, self.batch_size // count)
            batch.sort(key=lambda entry: len(entry[0].row.tokens))  # equal lengths need no padding
            for start in range(0, len(batch), size):
                chunk = batch[start : start + size]
                groups = sample_responses(
                    self.model, [p for p, _ in chunk], count, key, parameters, max_rows=self.batch_size
                )
                for (_, repeats), samples in zip(chunk, groups, strict=True):
                    for index, text in zip(repeats, decode(self.tokenizer, samples), strict=True):
                        texts[index] = text
                self.advance(count * len(chunk))
        return texts

    def _rows(self, requests: list[Instance]) -> list[PromptTokens]:
        """Return the tokenised prompts."""
        texts = [request.args[0] for request in requests]
        rows = [PromptTokens(tuple(tokens), "") for tokens in self.tok_encode(texts)]
        pictures = [request.args[2]["visual"] if len(request.args) > 2 else [] for request in requests]
        if with_pictures := [i for i, images in enumerate(pictures) if images]:
            assert self.processor is not None, "the model reads no images"
            inputs = prepare(self.processor, [texts[i] for i in with_pictures], [pictures[i] for i in with_pictures])
            for i, (tokens, images) in zip(with_pictures, inputs, strict=True):
                rows[i] = PromptTokens(tuple(tokens), "", images)
        return rows

    def _parameters(self, request: Instance) -> SamplingParameters:
        """Return the sampling parameters of a request, from the generation arguments that ``Benchmark`` sets."""
        arguments = request.args[1]
        temperature, top_p, longest = (arguments[key] for key in ("temperature", "top_p", "max_gen_toks"))
        top_k = arguments["top_k"] or -1  # "off" is 0 for lm-eval
        ends = models.end_tokens(self.tokenizer, getattr(self.model, "generation_config", None))
        return SamplingParameters(temperature, top_p, top_k, longest, ends)

    def _refuse(self, *_: object, **__: object) -> None:
        raise NotImplementedError("bapo-torch only generates")

    loglikelihood = loglikelihood_rolling = _loglikelihood_tokens = _refuse
