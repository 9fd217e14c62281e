#!/bin/sh
# tokenizers applies the normalization table of a sentencepiece model to a character with its combining marks at once,
# and drops the marks.
#
# Both libraries use the same bytes (`precompiled_charsmap`, rule nmt_nfkc). sentencepiece 0.2.3 replaces the longest
# prefix that the table has, and goes on behind it. tokenizers 0.23.3 first looks up the whole grapheme: if the table has
# a prefix of it, the grapheme becomes the replacement of that prefix, and the rest of it disappears. A ligature or a
# circled digit with an accent loses the accent. "\r\n" is one grapheme too, so that a line end of Windows becomes one
# space in place of two.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.1
cd "$dir"
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers.normalizers import Precompiled
text = iter([f"the quick brown fox number {i} jumps over {i * 7} lazy dogs" for i in range(300)])
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=text, model_prefix="m", vocab_size=200, hard_vocab_limit=False, model_type="bpe", minloglevel=2,
    normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=False, add_dummy_prefix=False,
)
model = sentencepiece_model_pb2.ModelProto()
model.ParseFromString(open("m.model", "rb").read())
table = Precompiled(model.normalizer_spec.precompiled_charsmap)
processor = sentencepiece.SentencePieceProcessor(model_file="m.model")
for text in ("\ufb01", "\ufb01\u0301", "\u2460\u0301", "a\r\nb"):
    own = processor.normalize(text).replace("\u2581", " ")
    print(ascii(text), "sentencepiece", ascii(own), "tokenizers", ascii(table.normalize_str(text)))
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
'\ufb01' sentencepiece 'fi' tokenizers 'fi'
'\ufb01\u0301' sentencepiece 'fi\u0301' tokenizers 'fi'
'\u2460\u0301' sentencepiece '1\u0301' tokenizers '1'
'a\r\nb' sentencepiece 'a  b' tokenizers 'a b'
SEEN
