"""``python -m runtime.fetch``: downloads a model to a volume that serving pods mount. It imports no torch.

Kubernetes runs it as a Job, before pods with GPUs start. `runtime/weights/snapshots.py` has the layout of the volume.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

from huggingface_hub.utils.tqdm import disable_progress_bars

from runtime import __version__
from runtime.commands.pull import ProgressLine, fetch_checked, files_read
from runtime.errors import ConfigError
from runtime.server.http_protocol.listener import listen
from runtime.weights import bucket, hub, snapshots
from runtime.weights.checkpoint import fetch_text
from runtime.weights.checkpoint_files import REPOSITORY
from runtime.weights.repository import write_repository

EPILOG = """\
Complete files of an earlier attempt are not downloaded again. A complete snapshot is only looked at.

The exit code is 0 if the snapshot is complete, 1 if another attempt may succeed, and 2 if none can: the model or its
revision does not exist, access is refused, or the volume is too small or cannot be written."""
REASONS: dict[type[ConfigError], str] = {
    hub.AccessError: "AccessDenied",
    hub.DirectoryError: "NotWritable",
    hub.SpaceError: "NotEnoughSpace",
}


def main(argv: list[str] | None = None) -> int:
    """Downloads a model. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m runtime.fetch", description="Downloads a model to a volume that several pods mount.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    models = "hf://ORG/NAME, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"
    parser.add_argument("uri", help=f"{models}, optionally with @REVISION")
    parser.add_argument("--to", type=Path, required=True, help="directory of the volume")
    parser.add_argument(
        "--keep", nargs="*", metavar="KEY/COMMIT",
        help="removes all other snapshots of the volume; without this flag none is removed",
    )  # fmt: skip
    parser.add_argument(
        "--writer", default=socket.gethostname(),
        help="name of this download; a later attempt with the same name continues it (default: the host's name)",
    )  # fmt: skip
    parser.add_argument("--result", type=Path, help="file for the result as JSON, such as /dev/termination-log")
    parser.add_argument("--port", type=int, default=8000, help="port of /startup, which reports the progress")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _terminated)
    disable_progress_bars()
    try:
        progress = Progress(args.port)
        result, code = fetch(args.uri, args.to, args.keep, args.writer, progress.show), 0
        print(json.dumps(result))
    except (ConfigError, OSError) as error:
        found = error if isinstance(error, ConfigError) else hub.failure(error, f"{args.to}: {error}")
        temporary = isinstance(found, hub.TemporaryError) or (type(found) is ConfigError and found is not error)
        message = f"{found.problem}; enlarge the claim" if isinstance(found, hub.SpaceError) else str(found)
        result, code = {"reason": REASONS.get(type(found), "FetchFailed"), "message": message}, 1 if temporary else 2
        print(f"error: {message}", file=sys.stderr, flush=True)
    if args.result is not None:
        args.result.write_text(json.dumps(result), encoding="utf-8")
    return code


def fetch(
    uri: str, root: Path, keep: list[str] | None, writer: str, progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Downloads a model to the volume at `root`, unless it has a complete snapshot.

    Args:
        uri: See `snapshots.Snapshot`.
        root: Directory of the volume.
        keep: As for `snapshots.clean`.
        writer: See `snapshots.Snapshot`.
        progress: See `Repository.fetch`. The phases are "download" and "verify".

    Returns:
        Commit, bytes and number of files of the snapshot.

    Raises:
        ConfigError: The model cannot be downloaded; TemporaryError if another attempt may succeed.
        OSError: The volume failed.
    """
    if bucket.is_address(uri):
        resolve: Callable[[str], hub.Repository] = bucket.Bucket.resolve
        name, revision = bucket.repository_name(uri), bucket.parse(uri)[1]
    else:
        resolve, (name, revision) = hub.Repository.resolve, hub.parse(uri, "model")
    commit, repository = revision or "", None
    if not snapshots.COMMIT.fullmatch(commit):
        repository = resolve(uri)
        commit = repository.commit
    snapshot = snapshots.Snapshot(root, uri, commit, writer)
    files = snapshot.begin()
    snapshots.clean(root, snapshot, keep)
    if files is None:
        repository = repository or resolve(uri)

        def show(phase: str, done: int, total: int) -> None:
            snapshot.touch()
            progress(phase, done, total)

        names = files_read(repository, fetch_text(repository, snapshot.partial))
        fetch_checked(repository, names, show, snapshot.partial)
        write_repository(snapshot.partial, name)
        hashes = {name: repository.files[name].sha256 for name in names} | {REPOSITORY: ""}
        files = snapshot.publish(hashes, __version__)
    return {"commit": commit, "bytes": sum(file["size"] for file in files), "files": len(files)}


class Progress:
    """Reports the progress on stderr and at ``/startup``, in the form of the server.

    Args:
        port: The port to listen on.

    Raises:
        ConfigError: The port is in use.
    """

    def __init__(self, port: int) -> None:
        self.state: dict[str, Any] = {"status": "loading", "phase": "download", "percent": 0.0}
        self._line = ProgressLine(sys.stderr)
        progress = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path == "/startup"
                body = json.dumps(progress.state if known else {"error": "only /startup exists"}).encode()
                self.send_response(503 if known else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        listener = listen("::", port)
        server = ThreadingHTTPServer(listener.getsockname()[:2], Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        self.port = listener.getsockname()[1]
        threading.Thread(target=server.serve_forever, name="startup", daemon=True).start()

    def show(self, phase: str, done: int, total: int) -> None:
        """Reports bytes done and in total."""
        percent = round(100 * done / total, 1) if total else 0.0
        self.state = {"status": "loading", "phase": phase, "bytes": done, "total_bytes": total, "percent": percent}
        self._line.show(phase, done, total)


def _terminated(number: int, frame: FrameType | None) -> None:
    print("error: terminated; the next attempt continues", file=sys.stderr, flush=True)
    os._exit(1)  # Python's own end would wait for downloads of huggingface_hub


if __name__ == "__main__":
    sys.exit(main())
