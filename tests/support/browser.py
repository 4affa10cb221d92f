"""Chromium without a window, driven over its own DevTools protocol: what a page draws, asks for and complains about."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
PATIENCE = 60.0  # seconds for the start and for each answer: other tests run beside this one


def executable() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


#: for tests that need it
needed = pytest.mark.skipif(
    executable() is None, reason="no Chromium here; tests/support/install_chromium installs Debian's"
)


class Browser:
    """One page. requests: URLs asked of a network; complaints: console errors and warnings, exceptions, refusals."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()

    def __enter__(self) -> Browser:
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        root = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own rule
        command = [str(executable()), *FLAGS, *root, f"--user-data-dir={self._folder}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._loop = asyncio.new_event_loop()
        try:
            self._wait(self._connect())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_reader"):
            self._reader.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(self._session.close())
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -------------------------------------------------------------------------------------------- the protocol

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    async def _connect(self) -> None:
        self._session = aiohttp.ClientSession()
        port = Path(self._folder, "DevToolsActivePort")
        while not port.exists() or not port.read_text().strip():
            if self._process.poll() is not None:
                raise RuntimeError(f"Chromium ended with status {self._process.returncode}")
            await asyncio.sleep(0.05)
        address = f"http://127.0.0.1:{port.read_text().split()[0]}/json/list"
        async with self._session.get(address) as answer:
            page = next(t for t in await answer.json() if t["type"] == "page")
        self._socket = await self._session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
        self._reader = asyncio.ensure_future(self._read())
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._ask(f"{domain}.enable")

    async def _read(self) -> None:
        async for message in self._socket:
            content = message.json()
            if "id" in content:
                self._waiting.pop(content["id"]).set_result(content)
            else:
                self._event(content["method"], content["params"])

    def _event(self, name: str, given: dict[str, Any]) -> None:
        if name == "Page.loadEventFired":
            self._loaded.set()
        elif name == "Network.requestWillBeSent":
            url = given["request"]["url"]
            if not url.startswith(("data:", "blob:", "file:", "about:")):
                self.requests.append(url)
        elif name == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif name == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in given["args"]))
        elif name == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(given["entry"]["text"])

    async def _ask(self, method: str, **given: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._waiting[number] = self._loop.create_future()
        await self._socket.send_json({"id": number, "method": method, "params": given})
        answer = await self._waiting[number]
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def ask(self, method: str, **given: Any) -> dict[str, Any]:
        """One command of the protocol."""
        return self._wait(self._ask(method, **given))

    # -------------------------------------------------------------------------------------------- what tests do

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file from disk in a window of this size; returns when everything in it is loaded."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        self._wait(self._loaded.wait())

    def run(self, script: str) -> Any:
        """The value of an expression, a promise's once it is there."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Waits until the expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def middle(self, selector: str) -> tuple[float, float]:
        """Where an element is, once it is scrolled into view."""
        found = self.run(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return found[0], found[1]

    def mouse(self, kind: str, x: float, y: float, **given: Any) -> None:
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **given)

    def click(self, selector: str) -> None:
        """A click where the element is: what covers it gets it instead, as a user's would."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)

    def press(self, key: str, code: str | None = None, number: int = 0) -> None:
        """A key as KeyboardEvent.key names it; number: its virtual key code, which Enter and Escape need."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.ask(
            "Input.dispatchKeyEvent", type="keyDown", key=key, code=code or key, windowsVirtualKeyCode=number, **text
        )
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=code or key, windowsVirtualKeyCode=number)

    def type(self, selector: str, words: str) -> None:
        """Types into a field after emptying it."""
        self.run(f"(() => {{ const e = document.querySelector({selector!r}); e.focus(); e.select(); }})()")
        if words:
            self.ask("Input.insertText", text=words)
        else:
            self.press("Delete", number=46)

    def choose(self, selector: str, value: str) -> None:
        self.run(
            f"(() => {{ const e = document.querySelector({selector!r}); e.value = {value!r};"
            " e.dispatchEvent(new Event('input', {bubbles: true}));"
            " e.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def picture(self, selector: str | None = None, whole: bool = False) -> bytes:
        """A PNG of the window, of one element, or of the whole page."""
        given: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole or bool(selector)}
        if selector:
            box = self.run(
                f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
                " return [b.x + scrollX, b.y + scrollY, b.width, b.height]; })()"
            )
            given["clip"] = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": 1}
        return base64.b64decode(self.ask("Page.captureScreenshot", **given)["data"])
