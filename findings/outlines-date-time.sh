#!/bin/sh
# `format: date-time` allows a time without a zone, and forbids every zone but Z.
#
# RFC 3339, to which JSON Schema refers, demands a zone: Z or an offset such as +01:00. The expression of outlines-core
# 0.2.14 makes Z optional, and has no offset and no fraction but milliseconds. So a constrained model cannot write a
# local time of any country, and a strict reader refuses what it may write. llguidance 1.9.1 has the format right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q outlines-core==0.2.14 llguidance==1.9.1
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import json, re
from llguidance import LLMatcher, LLTokenizer
from outlines_core.json_schema import build_regex_from_schema
schema = {"type": "string", "format": "date-time"}
expression, tokenizer = build_regex_from_schema(json.dumps(schema)), LLTokenizer("byte")
for time in ("12:00:00Z", "12:00:00+01:00", "12:00:00", "12:00:00.5Z"):
    text = f'"2026-11-29T{time}"'
    matcher, tokens = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema)), tokenizer.tokenize_bytes(text.encode())
    other = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
    print(f"{time:15} outlines-core {re.fullmatch(expression, text) is not None!s:6} llguidance {other}")
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
12:00:00Z       outlines-core True   llguidance True
12:00:00+01:00  outlines-core False  llguidance True
12:00:00        outlines-core True   llguidance False
12:00:00.5Z     outlines-core False  llguidance True
SEEN
