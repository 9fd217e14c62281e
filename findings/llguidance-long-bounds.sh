#!/bin/sh
# A bound with many digits refuses shorter numbers that begin like it, and one next to a double takes the double itself.
#
# llguidance 1.9.1 writes the bounds of numbers as regular expressions. With "maximum" 3.9999 it refuses 3.9 and 3.99,
# which are smaller, and accepts 3.8. With "minimum" 1000.0000000000001, the double after 1000, it accepts 1000.
# Bounds such as 3.5 and 1000.00000000001 are exact.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q llguidance==1.9.1 tokenizers==0.22.1
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import json
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
made.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
tokenizer = LLTokenizer(made.to_str())
for bounds, texts in (
    ({"minimum": 3.1, "maximum": 3.5}, ["3.4", "3.45", "3.5"]),
    ({"minimum": 3.1, "maximum": 3.9999}, ["3.8", "3.9", "3.99", "3.9998"]),
    ({"minimum": 1000.00000000001}, ["1000", "1000.1"]),
    ({"minimum": 1000.0000000000001}, ["1000", "1000.1"]),
):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "number", **bounds}))
    for text in texts:
        matcher = LLMatcher(tokenizer, grammar)
        tokens = made.encode(text).ids
        print(bounds, text, matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
{'minimum': 3.1, 'maximum': 3.5} 3.4 True
{'minimum': 3.1, 'maximum': 3.5} 3.45 True
{'minimum': 3.1, 'maximum': 3.5} 3.5 True
{'minimum': 3.1, 'maximum': 3.9999} 3.8 True
{'minimum': 3.1, 'maximum': 3.9999} 3.9 False
{'minimum': 3.1, 'maximum': 3.9999} 3.99 False
{'minimum': 3.1, 'maximum': 3.9999} 3.9998 True
{'minimum': 1000.00000000001} 1000 False
{'minimum': 1000.00000000001} 1000.1 True
{'minimum': 1000.0000000000001} 1000 True
{'minimum': 1000.0000000000001} 1000.1 True
SEEN
