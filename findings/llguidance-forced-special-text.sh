#!/bin/sh
# A literal that is the text of a special token can neither be written as text nor as that token.
#
# llguidance 1.9.1 reads a literal of a grammar as bytes, but it encodes forced text with the special tokens of the
# tokenizer. The mask then has the special token alone, and the grammar refuses it, because that token has no bytes.
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
made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<|end|>", "<|turn|>")])
tokenizer = LLTokenizer(made.to_str())
special, letter = made.token_to_id("<|turn|>"), made.token_to_id("<")
for lark in ('start: "<|turn|>yes"', 'start: /<[|]turn[|]>yes/', '%llguidance {"no_forcing": true}\nstart: "<|turn|>yes"'):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark))
    mask = masks.allocate_token_bitmask(1, tokenizer.vocab_size)
    masks.fill_next_token_bitmask(matcher, mask)
    allowed = [i for i in range(tokenizer.vocab_size) if int(mask[0][i // 32]) >> i % 32 & 1]
    names = [made.id_to_token(i) for i in allowed]
    print(lark.replace("\n", " "), "| allowed", names, "| forced", [made.id_to_token(i) for i in matcher.compute_ff_tokens()][:2])
    for name, token in ("the special token", special), ("its first letter", letter):
        print(f"  accepts {name}:", matcher.deep_copy().validate_tokens([token]) == 1)
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
start: "<|turn|>yes" | allowed ['<|turn|>'] | forced ['<|turn|>', 'y']
  accepts the special token: False
  accepts its first letter: True
start: /<[|]turn[|]>yes/ | allowed ['<|turn|>'] | forced ['<|turn|>', 'y']
  accepts the special token: False
  accepts its first letter: True
%llguidance {"no_forcing": true} start: "<|turn|>yes" | allowed ['<'] | forced []
  accepts the special token: False
  accepts its first letter: True
SEEN
