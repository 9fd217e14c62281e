#!/bin/sh
# A pattern that excludes the quotation mark does not exclude it in constrained output.
#
# In JSON a quotation mark of a value is written \". llguidance 1.9.1 allows this escape if the character class also
# contains the control characters, as most negated classes do. The value then violates the pattern. An escape such as
# \u0078 of an excluded letter is refused, so only some escapes pass.
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
show({"type": "string", "pattern": '^[^"<]+$'}, r'"a\"b"', '"<"')
show({"type": "string", "pattern": r'^[^"\\]$'}, r'"\""', r'"\\"', '"a"')
show({"type": "string", "pattern": "^[^x]$"}, '"x"', r'"\u0078"')
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
{"type": "string", "pattern": "^[^\"<]+$"} "a\"b": llguidance True, valid False
{"type": "string", "pattern": "^[^\"<]+$"} "<": llguidance False, valid False
{"type": "string", "pattern": "^[^\"\\\\]$"} "\"": llguidance True, valid False
{"type": "string", "pattern": "^[^\"\\\\]$"} "\\": llguidance True, valid False
{"type": "string", "pattern": "^[^\"\\\\]$"} "a": llguidance True, valid True
{"type": "string", "pattern": "^[^x]$"} "x": llguidance False, valid False
{"type": "string", "pattern": "^[^x]$"} "\u0078": llguidance False, valid False
SEEN
