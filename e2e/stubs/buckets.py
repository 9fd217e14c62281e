"""An object store with one bucket, `models`, as S3 and Google Cloud Storage present it to obstore.

    python buckets.py DIRECTORY PORT

`models/org/name/` has the files of DIRECTORY. If the environment variable ACCESS_KEY is set, requests need this access
key id. Lists have pages of PAGE objects. GET /requests returns how often the content of each object was requested.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 3
PIECE = 64 * 1024
BUCKET = "models"


class Buckets:
    """State of the object store.

    Attributes:
        objects: Content by key.
        access_key: Id of the only access key of S3; "" admits every request.
        broken: Key of an object whose content ends halfway in the first response, and is refused in later ones.
        requests: Number of requests for the content of objects, by key.
        lists: Number of requests for a page of a list.
        starts: First byte of the last response, by key.
    """

    def __init__(self, objects: dict[str, bytes], access_key: str = "") -> None:
        self.objects, self.access_key, self.broken = objects, access_key, ""
        self.requests: dict[str, int] = {}
        self.lists = 0
        self.starts: dict[str, int] = {}

    def is_allowed(self, authorization: str) -> bool:
        return not self.access_key or f"Credential={self.access_key}/" in authorization

    def sending(self, key: str) -> None:
        """Called before the content of an object is sent."""


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


class Handler(BaseHTTPRequestHandler):
    """Handles lists and reads."""

    protocol_version = "HTTP/1.1"
    buckets: Buckets

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        bucket, _, key = unquote(place.path).lstrip("/").partition("/")
        if bucket == "requests":
            return self.answer(200, json.dumps(self.buckets.requests).encode())
        if not self.buckets.is_allowed(self.headers.get("Authorization", "")):
            return self.refuse(403, "InvalidAccessKeyId")
        if bucket != BUCKET:
            return self.refuse(404, "NoSuchBucket")
        if not key:
            return self.list(parse_qs(place.query))
        content = self.buckets.objects.get(key)
        if content is None:
            return self.refuse(404, "NoSuchKey")
        self.buckets.requests[key] = self.buckets.requests.get(key, 0) + 1
        self.buckets.sending(key)
        content = self.buckets.objects[key]
        if self.headers.get("If-Match", etag(content)) != etag(content):
            return self.refuse(412, "PreconditionFailed")
        self.send(key, content)

    def list(self, query: dict[str, list[str]]) -> None:
        self.buckets.lists += 1
        prefix, after = (query.get(name, [""])[0] for name in ("prefix", "continuation-token"))
        keys = sorted(key for key in self.buckets.objects if key.startswith(prefix) and key > after)
        more, keys = len(keys) > PAGE, keys[:PAGE]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
            f"<ETag>{escape(etag(self.buckets.objects[key]))}</ETag><Size>{len(self.buckets.objects[key])}</Size>"
            "</Contents>"
            for key in keys
        )
        token = f"<NextContinuationToken>{escape(keys[-1])}</NextContinuationToken>" if more else ""
        body = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        self.answer(200, body.encode(), {"Content-Type": "application/xml"})

    def send(self, key: str, content: bytes) -> None:
        headers = {"ETag": etag(content), "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}
        first, total, status = 0, len(content), 200
        if part := re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("Range", "")):
            first, status = int(part[1]), 206
            headers["Content-Range"] = f"bytes {first}-{total - 1}/{total}"
        if key != self.buckets.broken:
            self.buckets.starts[key] = first
            return self.answer(status, content[first:], headers)
        if self.buckets.requests[key] > 1:
            return self.refuse(400, "Broken")
        self.head(status, headers | {"Content-Length": str(total)})
        self.wfile.write(content[: total // 2])
        self.close_connection = True

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code><Message>refused</Message></Error>".encode())

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.head(status, {**(headers or {}), "Content-Length": str(len(body))})
        self.wfile.write(body)

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    address_family = socket.AF_INET


def main() -> None:
    directory, port = sys.argv[1:]
    files = {f"org/name/{path.name}": path.read_bytes() for path in Path(directory).iterdir() if path.is_file()}
    Handler.buckets = Buckets(files, os.environ.get("ACCESS_KEY", ""))
    Server(("", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
