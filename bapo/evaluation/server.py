"""An OpenAI-compatible completions server as an lm-eval model, registered under the name ``bapo-server``.

lm-eval's ``local-completions`` makes the requests' contents (tokens, not text) and reads the answers. Its sending is
replaced: one failed request would let it try all the others first, an answer without a completion would shift all the
later ones, and it drops the number of tokens that the server has counted. The ``openai`` client is no substitute: it
does not try again after an answer without a completion, sends 300 requests a second instead of 900 to 2600, and takes
1.3 s to import.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI

from bapo.engines.shared.prompts import Response
from bapo.errors import UserError
from bapo.evaluation.prompts import Limits

#: Seconds before the second attempt of a request; doubled before each further one, up to ten seconds.
WAIT = 1.0


class _Failed(Exception):
    """This attempt failed; another one may not. The argument is what the user is told if none is left."""


@register_model("bapo-server")
class ServerLM(LocalCompletionsAPI):
    """Samples from a server, one request a response, at most ``num_concurrent`` at a time.

    base_url: of the completions; model: the name that the server knows; tokenizer, revision: of the checkpoint that it
    serves; timeout: seconds for one answer; max_attempts: of one request, after which the evaluation ends; advance:
    called with the number of new responses. OPENAI_API_KEY is sent where it is set.

    No seed is sent: the requests of a problem differ in nothing else, and a server that honours seeds would answer all
    of them alike. A response's tokens are those that the server counts, else those of the text tokenised again and the
    end token.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        tokenizer: str,
        limits: Limits,
        revision: str = "main",
        num_concurrent: int = 32,
        timeout: float = 600.0,
        max_attempts: int = 3,
        advance: Callable[[int], None] = lambda count: None,
    ) -> None:
        super().__init__(
            base_url=base_url,
            model=model,
            tokenizer=tokenizer,
            tokenizer_backend="huggingface",
            tokenized_requests=True,
            revision=revision,
            num_concurrent=num_concurrent,
            max_length=limits.prompt + limits.response,
        )
        self.limits, self.seconds, self.max_attempts, self.advance = limits, timeout, max_attempts, advance

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Response]:
        """Return one text a request, in order. Nothing is sent before every prompt has been checked."""
        payloads = {id(r): self._payload(r) for r in {id(r): r for r in requests}.values()}
        return asyncio.run(self._all([payloads[id(r)] for r in requests]))

    def _payload(self, request: Instance) -> dict[str, Any]:
        text, arguments = request.args
        if arguments.get("seed", 0) is not None:
            raise UserError(
                f"{request.task_name}: generation_kwargs must set seed: null, or a server that honours seeds answers "
                "every repeat alike"
            )
        tokens = self.tok_encode(text)
        self.limits.check(str(request.task_name), request.doc["id"], len(tokens))
        return self._create_payload(
            self.create_message([tokens]), generate=True, gen_kwargs=copy.deepcopy(arguments), seed=self._seed
        )

    # -------------------------------------------------------------------------------------------- sending

    async def _all(self, payloads: list[dict[str, Any]]) -> list[Response]:
        """Return every answer, in order. The first request that fails for good ends all the others."""
        answers = [Response("", 0)] * len(payloads)
        places = iter(range(len(payloads)))
        connections = aiohttp.TCPConnector(limit=self._concurrent, ssl=self.verify_certificate)
        timeout = aiohttp.ClientTimeout(total=self.seconds)
        async with aiohttp.ClientSession(connector=connections, timeout=timeout, headers=self.header) as session:
            count = min(self._concurrent, len(payloads))
            workers = [asyncio.create_task(self._work(session, payloads, places, answers)) for _ in range(count)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        return answers

    async def _work(
        self, session: Any, payloads: list[dict[str, Any]], places: Iterator[int], answers: list[Response]
    ) -> None:
        for place in places:  # shared by all workers
            answers[place] = await self._ask(session, payloads[place])
            self.advance(1)

    async def _ask(self, session: Any, payload: dict[str, Any]) -> Response:
        for attempt in range(1, self.max_attempts + 1):
            try:
                return self._read(*await self._post(session, payload))
            except _Failed as failed:
                if attempt == self.max_attempts:
                    times = "once" if attempt == 1 else f"{attempt} times"
                    raise UserError(f"{self.base_url}: tried {times}: {failed}") from None
            await asyncio.sleep(min(10.0, WAIT * 2 ** (attempt - 1)))
        raise AssertionError("unreachable")

    async def _post(self, session: Any, payload: dict[str, Any]) -> tuple[int, str]:
        try:
            async with session.post(self.base_url, json=payload) as response:
                return response.status, (await response.read()).decode("utf-8", errors="replace")
        except TimeoutError:  # before OSError, of which it is one
            raise _Failed(
                f"no answer within {self.seconds:g} s; raise evaluation.server.timeout or lower "
                "evaluation.server.num_concurrent"
            ) from None
        except aiohttp.InvalidURL:
            raise UserError(f"{self.base_url}: not a valid URL; correct evaluation.server.base_url") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise _Failed(f"no server answers ({reason}); start it, or correct evaluation.server.base_url") from None

    def _read(self, status: int, body: str) -> Response:
        """Return one answer. Raises _Failed, or UserError if another attempt would be refused too."""
        excerpt = " ".join(body.split())[:200] or "nothing"
        if status >= 500 or status in (408, 409, 425, 429):  # timeout, conflict, too early, too many requests
            raise _Failed(
                f"the server answered with the error {status} ({excerpt}); look at its log, then give the same command "
                "again: finished benchmarks are kept"
            )
        if status != 200:
            raise UserError(
                f"{self.base_url}: the server refused the request with {status} ({excerpt}); correct "
                "evaluation.server.base_url, evaluation.server.model or, for 401 and 403, OPENAI_API_KEY"
            )
        try:
            reply = json.loads(body)
            (choice,) = reply["choices"]
            (text,) = self.parse_generations(reply)
            if not isinstance(text, str):
                raise TypeError
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            raise _Failed(
                f"the answer holds no completion ({excerpt}); evaluation.server.base_url must be the URL of an "
                "OpenAI-compatible server's completions, for example http://127.0.0.1:8000/v1/completions"
            ) from None
        usage = reply.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if isinstance(counted, int) and counted > 0:
            return Response(text, counted)
        return Response(text, len(self.tok_encode(text)) + (choice.get("finish_reason") != "length"))
