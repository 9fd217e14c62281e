#!/bin/sh
# schemathesis checks server-sent events against `schema` as parsed objects, one by one or as a list, never as a text.
#
# OpenAPI's `schema` of a media type describes the whole content, and an event stream is a text. schemathesis 4.32.5 parses
# the stream first. In a document of OpenAPI 3.1 it checks each event, an object with `data` and `event`, against `schema`.
# In one of 3.2 that also has `itemSchema`, it checks the list of all events against `schema`. So {"type": "string"}, which is
# right for readers of 3.1 and is accepted for text/plain and application/jsonl, makes every stream a violation in both.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q schemathesis==4.32.5 starlette==1.3.1
"$dir/v/bin/python" > "$dir/out" <<'PY'
import schemathesis
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
EVENTS = 'data: {"a": 1}\n\ndata: {"a": 2}\n\n'
LINES = '{"a": 1}\n{"a": 2}\n'
CASES = [
    ("3.1.0", "text/event-stream", EVENTS, {"schema": {"type": "string"}}),
    ("3.1.0", "text/event-stream", EVENTS, {"schema": {"type": "object", "required": ["data"]}}),
    ("3.2.0", "text/event-stream", EVENTS, {"schema": {"type": "string"}, "itemSchema": {"type": "object"}}),
    ("3.2.0", "text/event-stream", EVENTS, {"itemSchema": {"type": "integer"}}),
    ("3.1.0", "application/jsonl", LINES, {"schema": {"type": "string"}}),
    ("3.1.0", "text/plain", EVENTS, {"schema": {"type": "string"}}),
]
for version, kind, text, content in CASES:
    app = Starlette(routes=[Route("/a", lambda request: Response(text, media_type=kind))])
    answer = {"200": {"description": "", "content": {kind: content}}}
    document = {"openapi": version, "info": {"title": "t", "version": "1"}, "paths": {"/a": {"get": {"responses": answer}}}}
    schema = schemathesis.openapi.from_dict(document)
    schema.app = app
    case = schema["/a"]["GET"].Case()
    try:
        case.validate_response(case.call())
        seen = "accepted"
    except BaseException as error:
        inner = getattr(error, "exceptions", [error])[0]
        seen = next(line for line in str(inner).splitlines() if line and "violates" not in line)
    print(version, kind, *content, "->", seen)
PY
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
3.1.0 text/event-stream schema -> Event #0: {"data":"{\"a\": 1}","event":"message"} is not of type "string"
3.1.0 text/event-stream schema -> accepted
3.2.0 text/event-stream schema itemSchema -> [{"data":"{\"a\": 1}","event":"message"},{"data":"{\"a\": 2}","event":"messa ... is not of type "string"
3.2.0 text/event-stream itemSchema -> Event #0: {"data":"{\"a\": 1}","event":"message"} is not of type "integer"
3.1.0 application/jsonl schema -> accepted
3.1.0 text/plain schema -> accepted
SEEN
