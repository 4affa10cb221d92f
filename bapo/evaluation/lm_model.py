"""The torch engine's sampler as an lm-eval model, registered under the name ``bapo-torch``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from bapo import seeds
from bapo.engines.shared.images import Images, prepare
from bapo.engines.shared.sampler import SamplingParameters, sample
from bapo.errors import UserError
from bapo.evaluation import prompts
from bapo.evaluation.prompts import Limits

_NO_LIKELIHOOD = "bapo-torch only generates: a task that needs log-likelihoods wants lm-eval's own `hf` model"
_KEYS = {"until", "do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "max_gen_toks"}


@dataclass(frozen=True)
class _Problem:
    """One document of one task and the places of its repeats in the list of requests."""

    task: str
    id: str
    tokens: list[int]
    places: list[int]
    images: Images | None = None


@register_model("bapo-torch")
class TorchLM(TemplateLM):
    """Samples with random numbers keyed by (seed, task, problem id, repeat).

    A response therefore depends neither on the batch size, nor on the other problems and tasks of the evaluation.

    model, tokenizer: a Hugging Face causal model and its tokenizer; seed: of the evaluation; max_prompt_tokens: a
    longer prompt is an error, never cut; batch_size: rows in flight; advance: called with the number of responses
    after each batch; processor: of a model that reads images, around the same tokenizer. Afterwards
    ``tokens[task, id]`` holds the length of each response, its end token included.
    """

    MULTIMODAL = True  # lm-eval's word for: requests may bring images

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        seed: int,
        max_prompt_tokens: int,
        batch_size: int = 1024,
        advance: Callable[[int], None] = lambda count: None,
        processor: Any | None = None,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.seed = model, tokenizer, seed
        self.max_prompt_tokens, self.batch_size, self.advance = max_prompt_tokens, int(batch_size), advance
        self.processor = processor
        self.tokens: dict[tuple[str, str], list[int]] = {}

    # -------------------------------------------------------------------------------------------- prompts

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return prompts.chat(self.tokenizer, chat_history, add_generation_prompt, images=self.processor is not None)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return prompts.encode(self.tokenizer, string, bool(add_special_tokens))

    # -------------------------------------------------------------------------------------------- sampling

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One text a request, in order. lm-eval passes the same Instance once for each repeat."""
        texts: list[str] = [""] * len(requests)
        for settings, count, problems in self._batches(requests):
            keys = np.array([seeds.key64(p.id) for p in problems], dtype=np.uint64)
            drawn = sample(
                self.model,
                [p.tokens for p in problems],
                count,
                keys,
                seeds.key64(self.seed, "evaluation", problems[0].task),
                settings,
                max_rows=self.batch_size,
                images=[p.images for p in problems] if any(p.images is not None for p in problems) else None,
            )
            decoded = iter(
                self.tokenizer.batch_decode(
                    [s.tokens[i, : s.lengths[i]] for s in drawn for i in range(count)], skip_special_tokens=True
                )
            )
            for problem, samples in zip(problems, drawn, strict=True):
                self.tokens[problem.task, problem.id] = samples.lengths.tolist()
                for place in problem.places:
                    texts[place] = next(decoded)
            self.advance(count * len(problems))
        return texts

    def _batches(self, requests: list[Instance]) -> Iterator[tuple[SamplingParameters, int, list[_Problem]]]:
        """Problems of one task, one number of repeats and one setting, at most ``batch_size`` rows at a time."""
        places: dict[int, list[int]] = {}
        for place, request in enumerate(requests):
            places.setdefault(id(request), []).append(place)
        firsts = [requests[p[0]] for p in places.values()]
        buckets: dict[tuple[str, SamplingParameters, int], list[_Problem]] = {}
        for request, where in zip(firsts, places.values(), strict=True):
            task, settings = str(request.task_name), self._settings(request)
            tokens, images = self._prompt(request, settings)
            problem = _Problem(task, str(request.doc["id"]), tokens, where, images)
            buckets.setdefault((task, settings, len(where)), []).append(problem)
        for (_, settings, count), problems in buckets.items():
            problems.sort(key=lambda p: len(p.tokens))  # equal lengths side by side need no padding
            rows = max(1, self.batch_size // count)
            for start in range(0, len(problems), rows):
                yield settings, count, problems[start : start + rows]

    def _prompt(self, request: Instance, settings: SamplingParameters) -> tuple[list[int], Images | None]:
        """The prompt's tokens and images. Raises UserError where they are too many, or the model reads no images."""
        visual = request.args[2]["visual"] if len(request.args) > 2 else []
        if visual and self.processor is None:
            raise UserError(f"{request.task_name}: the problems have images, which this model cannot read")
        if visual:
            ((tokens, images),) = prepare(self.processor, [request.args[0]], [visual])
        else:
            tokens, images = self.tok_encode(request.args[0]), None
        context = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        limits = Limits(self.max_prompt_tokens, settings.max_tokens, context)
        limits.check(str(request.task_name), request.doc["id"], len(tokens))
        return tokens, images

    def _settings(self, request: Instance) -> SamplingParameters:
        """lm-eval's generation arguments, every one of them given and supported."""
        given = dict(request.args[1])
        if set(given) != _KEYS:
            wrong = sorted(set(given) ^ _KEYS)
            raise UserError(f"{request.task_name}: generation_kwargs must set exactly {sorted(_KEYS)}; see {wrong}")
        if given["until"] or given["repetition_penalty"] != 1.0 or not given["do_sample"]:
            raise UserError(
                f"{request.task_name}: bapo-torch samples until the end token: generation_kwargs must set until: [], "
                "repetition_penalty: 1.0 and do_sample: true"
            )
        end, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        return SamplingParameters(
            temperature=given["temperature"],
            top_p=given["top_p"],
            top_k=given["top_k"] or -1,  # lm-eval's 0 and our -1 both mean: off
            max_tokens=given["max_gen_toks"],
            eos_ids=() if end is None else (end,),
            pad_id=pad if pad is not None else end or 0,
        )

    # -------------------------------------------------------------------------------------------- refused

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        raise NotImplementedError(_NO_LIKELIHOOD)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError(_NO_LIKELIHOOD)

    def _loglikelihood_tokens(self, requests: list[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        raise NotImplementedError(_NO_LIKELIHOOD)
