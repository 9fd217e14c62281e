#!/bin/sh
# A model satisfies minProperties by writing the same name twice.
#
# llguidance 1.9.1 counts members of an object, and does not compare names that the model invents. The parsed object has
# fewer properties than the schema demands. Names that the schema lists cannot be repeated.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q llguidance==1.9.1 jsonschema==4.26.0
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import json
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
tokenizer = LLTokenizer("byte")
def generates(schema, text):
    """Returns whether a model that is constrained by the schema can generate the text."""
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
    tokens = tokenizer.tokenize_bytes(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
def show(schema, *texts):
    for text in texts:
        valid = Draft202012Validator(schema).is_valid(json.loads(text))
        print(f"{json.dumps(schema)} {text}: llguidance {generates(schema, text)}, valid {valid}")
show({"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}}, '{"a":1,"a":2}', '{"a":1}')
show({"properties": {"a": {"type": "integer"}}, "type": "object"}, '{"a":1,"a":2}')
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
{"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}} {"a":1,"a":2}: llguidance True, valid False
{"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}} {"a":1}: llguidance False, valid False
{"properties": {"a": {"type": "integer"}}, "type": "object"} {"a":1,"a":2}: llguidance False, valid True
SEEN
