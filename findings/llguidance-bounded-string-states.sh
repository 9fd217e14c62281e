#!/bin/sh
# A long text in a JSON string with a maximum length uses up the states of the lexer; without one it needs a handful.
#
# llguidance 1.9.1 has a state of its lexer for each character of a string with `maxLength`, and several more for escapes
# and characters of several bytes. With `max_lexer_states` of 20,000, of 250,000 by default, a text of 4,000 characters
# in a string of at most 4,096 ends in an error in the middle of the output, although the schema compiles.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q llguidance==1.9.1 tokenizers==0.22.1
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import json
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
made.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
tokenizer = LLTokenizer(made.to_str())
limits = LLParserLimits(max_lexer_states=20_000)
text = made.encode('"' + "word, é; 12 \\n " * 280).ids
for bound in ({}, {"maxLength": 2048}, {"maxLength": 4096}):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", **bound}))
    matcher = LLMatcher(tokenizer, grammar, limits=limits, log_level=0)
    compiled, tokens = not matcher.is_error(), 0
    wanted = text[:1800] if bound.get("maxLength") == 2048 else text[:3900]
    for token in wanted:
        matcher.compute_bitmask()
        if not matcher.consume_token(token):
            break
        tokens += 1
    print(bound, "compiles", compiled, "| accepts all of the text", tokens == len(wanted), "|", matcher.get_error().split("\n")[0])
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
{} compiles True | accepts all of the text True | 
{'maxLength': 2048} compiles True | accepts all of the text True | 
{'maxLength': 4096} compiles True | accepts all of the text False | lexer error: too many states: 20000 >= 20000
SEEN
