#!/bin/sh
# llguidance writes an escape that it cannot read when it translates a grammar of llama.cpp.
#
# GBNF, llama.cpp's notation, has \uXXXX in texts and ranges. The translator in llguidance 1.9.1 writes `\ue9` for
# `\u00e9`. Its own reader demands four digits, and refuses the grammar. \x41 and four digits without zeros work.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q llguidance==1.9.1
"$dir/v/bin/python" > "$dir/out" <<'EOF'
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark
for rule in (r'root ::= "\u00e9"', r"root ::= [\u00e0-\u00ff]", r'root ::= "\x41"', r'root ::= "\u4e2d"'):
    lark = any_to_lark(rule)
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(lark), log_level=0)
    print(f"{rule:27} becomes {lark.splitlines()[-1]:22} error: {matcher.is_error()}")
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
root ::= "\u00e9"           becomes start: "\ue9"          error: True
root ::= [\u00e0-\u00ff]    becomes start: /[\ue0-\uff]/   error: True
root ::= "\x41"             becomes start: "\x41"          error: False
root ::= "\u4e2d"           becomes start: "\u4e2d"        error: False
SEEN
