"""A stand-in for an OpenAI-compatible completions server, on loopback. It honours seeds: same seed, same answer."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, str | bytes]  # status and body


class StandIn(ThreadingHTTPServer):
    """``requests`` holds every payload, ``texts`` every text sent, ``most`` the most requests at the same time.

    solutions: prompt tokens -> a right answer, given to a quarter of the requests; fault: called with the number of the
    request (from 0), what it returns is sent instead of an answer; usage: whether tokens are counted.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        solutions: dict[tuple[int, ...], str] | None = None,
        fault: Callable[[int], Reply | None] = lambda number: None,
        usage: bool = True,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.solutions, self.fault, self.usage = solutions or {}, fault, usage
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.texts: list[str] = []
        self.running = self.most = 0
        self.lock, self.closing, self.fresh = threading.Lock(), threading.Event(), itertools.count()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/completions"

    def reply(self, payload: dict[str, Any]) -> Reply:
        with self.lock:
            number = len(self.requests)
            self.requests.append(payload)
            seed = payload.get("seed")
            rng = random.Random(f"{seed}" if seed is not None else f"own {next(self.fresh)}")
        fault = self.fault(number)
        if fault is not None:
            return fault
        solution = self.solutions.get(tuple(payload["prompt"][0]))
        wrong = f"{rng.randrange(10**5)} + {rng.randrange(10**5)} = {rng.randrange(10**5)}"
        text = solution if solution is not None and rng.random() < 0.25 else wrong
        with self.lock:
            self.texts.append(text)
        content: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
        if self.usage:
            content["usage"] = {"completion_tokens": counted(text)}
        return 200, json.dumps(content)


def counted(text: str) -> int:
    """A number of tokens that no tokenizer here would give."""
    return 1000 + len(text)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # header and body are two writes: 40 ms a request otherwise
    server: StandIn

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.headers.append(dict(self.headers))
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
        try:
            status, body = self.server.reply(payload)
        finally:
            with self.server.lock:
                self.server.running -= 1
        body = body.encode() if isinstance(body, str) else body
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the client has given up
            self.close_connection = True

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def serving(**options: Any) -> Iterator[StandIn]:
    server = StandIn(**options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
