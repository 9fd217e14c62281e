#!/bin/sh
# obstore's lists raise GenericError for HTTP errors for which its reads of an object have classes of their own.
#
# obstore 0.12.1, S3 and Google Cloud Storage: 401 is UnauthenticatedError, 403 PermissionDeniedError and 404
# FileNotFoundError from `get` and `head`. From `list` and `list_with_delimiter` all three are GenericError. A program that
# begins with a list, as one that copies a prefix does, can tell wrong credentials from a failed server only by the text.
# The error of a read that is absent is Python's own, without errno. `obstore.exceptions.NotFoundError` does not catch it.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q obstore==0.12.1
"$dir/v/bin/python" > "$dir/out" <<'PY'
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from obstore.exceptions import NotFoundError
from obstore.store import GCSStore, S3Store
class Refusing(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_HEAD = do_GET
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
common = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
stores = {
    "s3": S3Store("b", endpoint=url, access_key_id="k", secret_access_key="s", region="us-east-1", **common),
    "gs": GCSStore("b", base_url=url, skip_signature=True, **common),
}
calls = {
    "get": lambda store: store.get("a").bytes(),
    "head": lambda store: store.head("a"),
    "list": lambda store: list(store.list()),
    "list_with_delimiter": lambda store: store.list_with_delimiter(),
}
absent = None
for status in (401, 403, 404):
    for name, store in stores.items():
        seen = []
        for call in calls:
            server.status = status
            try:
                calls[call](store)
                seen.append(f"{call} nothing")
            except Exception as error:
                seen.append(f"{call} {type(error).__name__}")
                absent = error if call == "get" else absent
        print(status, name, *seen, sep=" | ")
print(type(absent), absent.errno, isinstance(absent, NotFoundError))
PY
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
401 | s3 | get UnauthenticatedError | head UnauthenticatedError | list GenericError | list_with_delimiter GenericError
401 | gs | get UnauthenticatedError | head UnauthenticatedError | list GenericError | list_with_delimiter GenericError
403 | s3 | get PermissionDeniedError | head PermissionDeniedError | list GenericError | list_with_delimiter GenericError
403 | gs | get PermissionDeniedError | head PermissionDeniedError | list GenericError | list_with_delimiter GenericError
404 | s3 | get FileNotFoundError | head FileNotFoundError | list GenericError | list_with_delimiter GenericError
404 | gs | get FileNotFoundError | head FileNotFoundError | list GenericError | list_with_delimiter GenericError
<class 'FileNotFoundError'> None False
SEEN
