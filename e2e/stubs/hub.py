"""A model hub with one private repository. It serves the requests of huggingface_hub for metadata and files.

    python hub.py DIRECTORY PORT BYTES_PER_SECOND [held]

`org/private` has the checkpoint in DIRECTORY, with its weights in four shards. Requests need the token in the
environment variable TOKEN. Its revision `v1` is that checkpoint. Its newer revision `main` has a config with an unknown
model type. `org/gated` refuses every request. Files are sent one at a time at the given rate, so that a test can
observe the progress of a download. With `held` a download stops halfway until POST /release. Until then it sends one
byte per second, so that no client times out. POST /flip changes a byte of the weights that are sent, and another one
ends that. GET /requests returns how often the content of each file was requested.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SHARDS = 4
PIECE = 64 * 1024
COMMITS = {"v1": hashlib.sha1(b"v1").hexdigest(), "main": hashlib.sha1(b"main").hexdigest()}
PATH = re.compile(
    r"/api/models/(?P<model>\w+/\w+)(/revision/(?P<revision>\w+)|/tree/(?P<tree>\w+))?"
    r"|/(?P<repository>\w+/\w+)/resolve/(?P<commit>\w+)/(?P<file>.+)"
)


def checkpoint(directory: Path) -> dict[str, bytes]:
    """Returns the checkpoint's files, with the weights as shards with an index, like those of large models."""
    files = {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix == ".json"}
    content = (directory / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    tensors = {k: v for k, v in json.loads(content[8 : 8 + length]).items() if k != "__metadata__"}
    names, data = sorted(tensors), content[8 + length :]
    listed = {}
    for number in range(SHARDS):
        shard, header, content = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors", {}, b""
        for name in names[number::SHARDS]:
            start, end = tensors[name]["data_offsets"]
            header[name] = tensors[name] | {"data_offsets": [len(content), len(content) + end - start]}
            content += data[start:end]
            listed[name] = shard
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)  # aligns the data that follows
        files[shard] = len(head).to_bytes(8, "little") + head + content
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": listed}).encode()
    return files


@dataclass
class Hub:
    """State of the hub.

    Attributes:
        commits: files by commit.
        token: token that requests need.
        bytes_per_second: rate at which files are sent.
        held: whether downloads stop halfway until they are released.
    """

    commits: dict[str, dict[str, bytes]]
    token: str
    bytes_per_second: float
    held: bool = False

    def __post_init__(self) -> None:
        self.line = threading.Lock()  # one file is sent at a time
        self.sent = 0  # bytes of files
        self.requests: dict[str, int] = {}  # of the content of files, by name
        self.flipped = False
        self.released = threading.Event()
        if not self.held:
            self.released.set()

    def is_halfway(self, commit: str) -> bool:
        """Returns whether half of the bytes of a commit's files has been sent."""
        return 2 * self.sent >= sum(map(len, self.commits[commit].values()))

    def pieces(self, commit: str, content: bytes) -> Iterator[bytes]:
        """Yields a file's content in pieces, at the hub's rate."""
        start = 0
        while start < len(content):
            stopped = self.is_halfway(commit) and not self.released.wait(1.0)
            piece = content[start : start + (1 if stopped else PIECE)]
            start += len(piece)
            self.sent += len(piece)
            yield piece
            if not stopped:
                time.sleep(len(piece) / self.bytes_per_second)

    @classmethod
    def of(cls, directory: Path, token: str, bytes_per_second: float, *, held: bool = False) -> Hub:
        good = checkpoint(directory)
        config = json.loads(good["config.json"]) | {"model_type": "nobody_has_it"}
        bad = good | {"config.json": json.dumps(config).encode()}
        return cls({COMMITS["v1"]: good, COMMITS["main"]: bad}, token, bytes_per_second, held)

    def refusal(self, repository: str, authorization: str) -> tuple[int, str] | None:
        """Returns the HTTP status and the hub's error code of a refused request; None for an allowed one."""
        if authorization != f"Bearer {self.token}":
            return 401, "" if authorization else "RepoNotFound"
        if repository == "org/gated":
            return 403, "GatedRepo"
        return None if repository == "org/private" else (404, "RepoNotFound")


def identity(content: bytes) -> str:
    """Returns the hash of a file's content, the id of the file in the hub."""
    return hashlib.sha256(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Handles GET and HEAD of a model's metadata, its file tree and its files, and POST /release."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        path, _, _ = self.path.partition("?")
        if path == "/requests":
            return self.answer(json.dumps(self.hub.requests).encode(), {"Content-Type": "application/json"})
        asked = PATH.fullmatch(path)
        if asked is None:
            return self.refuse(404, "EntryNotFound")
        repository = asked["model"] or asked["repository"]
        if refused := self.hub.refusal(repository, self.headers.get("Authorization", "")):
            return self.refuse(*refused)
        revision = asked["revision"] or asked["tree"] or asked["commit"] or "main"
        commit = COMMITS.get(revision, revision)
        if commit not in self.hub.commits:
            return self.refuse(404, "RevisionNotFound")
        files = self.hub.commits[commit]
        if asked["file"]:
            if self.command == "GET":
                self.hub.requests[asked["file"]] = self.hub.requests.get(asked["file"], 0) + 1
            return self.send_file(commit, files.get(asked["file"]))
        siblings = [
            {"type": "file", "path": name, "rfilename": name, "size": len(content)}
            | {"oid": identity(content), "blobId": identity(content)}
            for name, content in sorted(files.items())
        ]
        model = {"id": repository, "modelId": repository, "sha": commit, "private": True, "siblings": siblings}
        self.answer(json.dumps(siblings if asked["tree"] else model).encode(), {"Content-Type": "application/json"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if self.path == "/release":
            self.hub.released.set()
        elif self.path == "/flip":
            self.hub.flipped = not self.hub.flipped
        else:
            return self.refuse(404, "EntryNotFound")
        self.answer(b"{}", {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str) -> None:
        message = {"X-Error-Message": "Invalid credentials in Authorization header"} if not code else {}
        self.answer(b"", message | ({"X-Error-Code": code} if code else {}), status)

    def send_file(self, commit: str, content: bytes | None) -> None:
        if content is None:
            return self.refuse(404, "EntryNotFound")
        headers = {"ETag": f'"{identity(content)}"', "X-Repo-Commit": commit}
        self.head(200, headers | {"Content-Type": "application/octet-stream", "Content-Length": str(len(content))})
        if self.command == "HEAD":
            return
        if self.hub.flipped and len(content) > PIECE:
            content = content[:-1] + bytes([content[-1] ^ 1])
        with self.hub.line:
            for piece in self.hub.pieces(commit, content):
                self.wfile.write(piece)

    def answer(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
        """Sends a response immediately, even while a file is being sent."""
        self.head(status, headers | {"Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


class Server(ThreadingHTTPServer):
    """Accepts IPv6 and IPv4, or IPv4 alone on a host without IPv6."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def main() -> None:
    directory, port, bytes_per_second, *more = sys.argv[1:]
    Handler.hub = Hub.of(Path(directory), os.environ["TOKEN"], float(bytes_per_second), held=more == ["held"])
    server = Server(("", int(port)), Handler)
    print(f"listening on port {server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
