#!/bin/sh
# An added token in angle brackets is special for grammars, also if tokenizer.json says that it is not.
#
# Qwen's derivatives flag <tool_call> and <think> with "special": false, and decoders write them as text. llguidance
# 1.9.1 excludes them from every regular expression, so that a model which is constrained to free text can no longer
# generate them. A literal with the same text allows the token, and so does its id. [MASK] with the same flag is text.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q llguidance==1.9.1 tokenizers==0.22.1 numpy==2.2.6
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import llguidance.numpy as masks
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
made.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
made.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "<a>b<c>", "[MASK]", "<open")])
tokenizer = LLTokenizer(made.to_str())
def allowed(lark, token):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark))
    assert not matcher.is_error(), matcher.get_error()
    mask = masks.allocate_token_bitmask(1, tokenizer.vocab_size)
    masks.fill_next_token_bitmask(matcher, mask)
    return bool(int(mask[0][token // 32]) >> token % 32 & 1)
for text in ("<|end|>", "<think>", "<a>b<c>", "[MASK]", "<open"):
    id = made.token_to_id(text)
    print(f"{text}: decoded {made.decode([id])!r}, is_special_token {tokenizer.is_special_token(id)}, allowed:", end="")
    grammars = {"any text": "/(?s:.*)/", "literal": f'"{text}"', "id": f"<[{id}]>"}
    print("".join(f" {name} {allowed(f'start: {rule}', id)}" for name, rule in grammars.items()))
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
<|end|>: decoded '', is_special_token True, allowed: any text False literal True id True
<think>: decoded '<think>', is_special_token True, allowed: any text False literal True id True
<a>b<c>: decoded '<a>b<c>', is_special_token True, allowed: any text False literal True id True
[MASK]: decoded '[MASK]', is_special_token False, allowed: any text True literal True id True
<open: decoded '<open', is_special_token False, allowed: any text True literal True id True
SEEN
