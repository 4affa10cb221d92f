"""A stand-in for the hub, on loopback: datasets and models at commits, with the few requests that are made of it."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """repositories: name -> file -> bytes, at ``commit`` or their own of ``commits``. ``paths``: what was asked for."""

    daemon_threads = True

    def __init__(self, repositories: dict[str, dict[str, bytes]], commits: dict[str, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.commit, self.commits, self.paths = repositories, COMMIT, commits or {}, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def serve(
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
    repositories: dict[str, dict[str, bytes]],
    commits: dict[str, str] | None = None,
) -> Hub:
    """Start a hub with these repositories, and have ``huggingface_hub`` ask it."""
    from huggingface_hub import constants

    server = Hub(repositories, commits)
    pattern = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    settings = {"ENDPOINT": server.url, "HUGGINGFACE_CO_URL_TEMPLATE": pattern, "HF_HUB_CACHE": str(cache)}
    for name, value in {**settings, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(constants, name, value)
    return server


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        hub, path = self.server, unquote(self.path.partition("?")[0])
        hub.paths.append(path)
        api = re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name, revision = (api[1], api[3] or "main") if api else (file[1], file[2]) if file else ("", "")
        files, commit = hub.repositories.get(name), hub.commits.get(name, hub.commit)
        if files is None:
            self._send(404, b"{}", X_Error_Code="RepoNotFound")
        elif revision not in ("main", commit):
            self._send(404, b"{}", X_Error_Code="RevisionNotFound")
        elif api and api[2] == "tree":
            tree = [{"type": "file", "path": f, "oid": _oid(b), "size": len(b)} for f, b in files.items()]
            self._send(200, json.dumps(tree).encode(), Content_Type="application/json")
        elif api:
            siblings = [{"rfilename": f} for f in files]
            info = {"id": name, "sha": commit, "private": False, "tags": [], "downloads": 0, "likes": 0}
            self._send(200, json.dumps({**info, "siblings": siblings}).encode(), Content_Type="application/json")
        elif file[3] not in files:
            self._send(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        else:
            body = files[file[3]]
            self._send(200, body, X_Repo_Commit=commit, ETag=f'"{_oid(body)}"')

    do_HEAD = do_GET


def _oid(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
