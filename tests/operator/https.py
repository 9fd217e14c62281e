"""Runs an HTTPS server in a thread."""

import contextlib
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from e2e.cluster.pki import Authority

Respond = Callable[[BaseHTTPRequestHandler], tuple[int, bytes]]


@contextlib.contextmanager
def https_server(authority: Authority, respond: Respond) -> Iterator[int]:
    """Yields the port of a server on 127.0.0.1. `respond` returns the status and the JSON body for a request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = respond(self)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        pair = authority.issue("server", hosts=["127.0.0.1", "localhost"])
        context.load_cert_chain(*pair.write(Path(directory), "server"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
