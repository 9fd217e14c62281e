#!/bin/sh
# exclusiveMinimum is inclusive if the other bound has the same integral part.
#
# llguidance 1.9.1 turns bounds of a number into a regular expression. It accepts 3 for "above 3 and at most 3.5", but not
# for "above 3 and at most 4".
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
show({"type": "number", "exclusiveMinimum": 3, "maximum": 3.5}, "3", "3.1")
show({"type": "number", "exclusiveMinimum": 3, "maximum": 4}, "3", "3.1")
show({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "0", "0.1")
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
{"type": "number", "exclusiveMinimum": 3, "maximum": 3.5} 3: llguidance True, valid False
{"type": "number", "exclusiveMinimum": 3, "maximum": 3.5} 3.1: llguidance True, valid True
{"type": "number", "exclusiveMinimum": 3, "maximum": 4} 3: llguidance False, valid False
{"type": "number", "exclusiveMinimum": 3, "maximum": 4} 3.1: llguidance True, valid True
{"type": "number", "exclusiveMinimum": 0, "maximum": 0.5} 0: llguidance True, valid False
{"type": "number", "exclusiveMinimum": 0, "maximum": 0.5} 0.1: llguidance True, valid True
SEEN
