#!/bin/sh
# A constant of more than 53 bits in a JSON schema forces the model to write another number.
#
# llguidance 1.9.1 reads numbers of a schema as doubles. With `const` or `enum` of such an id (of a message, an order or a
# user), the only text that a constrained model can write is the id of somebody else. Bounds are rounded likewise.
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
show({"const": 9007199254740993}, "9007199254740993", "9007199254740992")
show({"enum": [1152921504606846977]}, "1152921504606846977", "1152921504606846976")
show({"type": "integer", "maximum": 9007199254740995}, "9007199254740996")
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
{"const": 9007199254740993} 9007199254740993: llguidance False, valid True
{"const": 9007199254740993} 9007199254740992: llguidance True, valid False
{"enum": [1152921504606846977]} 1152921504606846977: llguidance False, valid True
{"enum": [1152921504606846977]} 1152921504606846976: llguidance True, valid False
{"type": "integer", "maximum": 9007199254740995} 9007199254740996: llguidance True, valid False
SEEN
