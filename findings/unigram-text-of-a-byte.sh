#!/bin/sh
# The text "<0x41>" is the letter A for a Unigram model of tokenizers, and six characters for sentencepiece.
#
# With byte fallback, a vocabulary has a piece `<0x41>` for the byte 0x41. Users write such text, for example about
# binary formats. sentencepiece 0.2.3 marks these pieces as bytes, and does not match them in text. The file format of
# tokenizers 0.23.3 has no such mark: its Unigram model finds the piece in the text, and decoding gives "A". Its BPE
# model does not, because no merge leads there.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q tokenizers==0.23.3 sentencepiece==0.2.3
cd "$dir"
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
text = iter([f"the quick brown fox number {i} jumps over {i * 7} lazy dogs" for i in range(300)])
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=text, model_prefix="m", vocab_size=400, hard_vocab_limit=False, model_type="unigram",
    byte_fallback=True, minloglevel=2,
)
processor = sentencepiece.SentencePieceProcessor(model_file="m.model")
pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
tokenizer.decoder = decoders.Sequence(
    [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
for text in ("a <0x41> b", "the fox"):
    own, other = processor.encode(text), tokenizer.encode(text).ids
    print(text, "| sentencepiece:", processor.decode(own), "| tokenizers:", tokenizer.decode(other), "|", own == other)
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
a <0x41> b | sentencepiece: a <0x41> b | tokenizers: a A b | False
the fox | sentencepiece: the fox | tokenizers: the fox | True
SEEN
