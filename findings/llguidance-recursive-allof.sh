#!/bin/sh
# A schema that lets any value nest cannot be combined with itself.
#
# JSON schemas often allow any value somewhere, and a bounded one has to refer to itself. llguidance 1.9.1 compiles such a
# schema, and combines it with a schema of one type. Combined with another of its kind, and even with itself, it gives up:
# intersections of intersections have no end.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q llguidance==1.9.1
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import json
from llguidance import LLMatcher
def any_value(name):
    return {"maxItems": 9, "items": {"$ref": f"#/$defs/{name}"}, "additionalProperties": {"$ref": f"#/$defs/{name}"}}
one, two = {"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}
for parts in ([one], [one, {"type": "integer"}], [one, one], [one, two]):
    schema = {"allOf": parts, "$defs": {"one": any_value("one"), "two": any_value("two")}}
    error = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    print(json.dumps(parts), "|", error.split("\n")[0] or "compiles")
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
[{"$ref": "#/$defs/one"}] | compiles
[{"$ref": "#/$defs/one"}, {"type": "integer"}] | compiles
[{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/one"}] | Schema intersection stack level exceeded
[{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}] | Schema intersection stack level exceeded
SEEN
