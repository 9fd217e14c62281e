#!/bin/sh
# An added token is found only at the beginning of a text or after a space if it is normalized and a Prepend exists.
#
# tokenizers 0.23.3 normalizes the text of an added token with `normalized: true`, which is the default of add_tokens,
# before it searches for it. The normalizer of Llama's tokenizers is Prepend("_") and Replace(" ", "_"). It also makes
# "_<tool>" of "<tool>", and in "a<tool>b" there is no "_<tool>". The token is silently spelled out there.
# With `normalized: false` it is found everywhere, but the text behind it gets a prefix of its own.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q tokenizers==0.23.3
"$dir/v/bin/python" > "$dir/out" <<'EOF'
from tokenizers import AddedToken, Tokenizer, models, normalizers
pieces = ["?", "\u2581", *"ab<tol>", "\u2581a", "\u2581b"]
for normalized in (True, False):
    tokenizer = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [("\u2581", "a"), ("\u2581", "b")]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=normalized)])
    for text in ("<tool>a", "a<tool>b", "a <tool>b"):
        tokens = " ".join(tokenizer.encode(text).tokens).replace("\u2581", "_")
        print(f"normalized={normalized!s:5} {text:9} -> {tokens}")
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
normalized=True  <tool>a   -> _<tool> a
normalized=True  a<tool>b  -> _a < t o o l > b
normalized=True  a <tool>b -> _a _<tool> b
normalized=False <tool>a   -> <tool> _a
normalized=False a<tool>b  -> _a <tool> _b
normalized=False a <tool>b -> _a _ <tool> _b
SEEN
