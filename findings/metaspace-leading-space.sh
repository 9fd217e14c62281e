#!/bin/sh
# Metaspace gives "fox" and " fox" the same ids, and gives a stripped text no prefix at all.
#
# sentencepiece 0.2.3 puts a space before every text: "fox" is "_fox", and " fox" is "__fox". Metaspace of tokenizers
# 0.23.3, by which converted Llama tokenizers do this, adds no prefix to a text that begins with a space, so that leading
# spaces of a prompt shift by one. And `prepend_scheme="first"` means offset 0 of the original text: behind a normalizer
# that strips spaces, "  fox" becomes "fox" without a prefix, which is another token than that of "fox".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q tokenizers==0.23.3 sentencepiece==0.2.3
cd "$dir"
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
text = iter([f"the quick brown fox number {i} jumps over {i * 7} lazy dogs" for i in range(300)])
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=text, model_prefix="m", vocab_size=300, hard_vocab_limit=False, model_type="unigram",
    normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
)
processor = sentencepiece.SentencePieceProcessor(model_file="m.model")
pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
def tokens(text, normalizer=None):
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    if normalizer:
        tokenizer.normalizer = normalizer
    return "".join(tokenizer.encode(text).tokens).replace("\u2581", "_")
for text in ("fox", " fox", "  fox"):
    own = "".join(processor.encode(text, out_type=str)).replace("\u2581", "_")
    print(f"{text!r:7} sentencepiece {own:7} Metaspace {tokens(text):6} behind Strip {tokens(text, normalizers.Strip())}")
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
'fox'   sentencepiece _fox    Metaspace _fox   behind Strip _fox
' fox'  sentencepiece __fox   Metaspace _fox   behind Strip fox
'  fox' sentencepiece ___fox  Metaspace __fox  behind Strip fox
SEEN
