"""Tests of the incremental detokenizer: its text does not depend on how tokens are split into pushes."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.parsers.chat_output import ReasoningParser
from runtime.parsers.formats import reasoning_format
from runtime.tokenizer import IncrementalDetokenizer
from tests.examples import examples

SLOW = examples(300)
BYTES = st.lists(st.integers(0, 400), max_size=40)  # includes ids outside the vocabulary
TEXT = st.text(alphabet="ab é東😀\n", max_size=30)
STOPS = st.lists(st.text(alphabet="ab é東�", min_size=1, max_size=4), max_size=3)


def in_pushes(draw, ids):
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def naive(text: str, stops) -> str:
    """Returns the text before the first complete stop string (the longest of several), read by characters."""
    for end in range(1, len(text) + 1):
        hit = [s for s in stops if text[:end].endswith(s)]
        if hit:
            return text[: end - len(max(hit, key=len))]
    return text


@SLOW
@given(data=st.data(), ids=BYTES)
def test_decoded_text_equals_that_of_the_library(pair, data, ids):
    ours, library = pair
    expected = library.decode(ids, skip_special_tokens=False)
    if pair[0].token_id("<0x00>") is None or "�" not in expected:  # both decode invalid bytes differently
        assert ours.decode(ids) == expected
    answer = IncrementalDetokenizer(ours)
    text = "".join(answer.push(part) for part in in_pushes(data.draw, ids)) + answer.finish()
    shown = library.decode(ids, skip_special_tokens=True)
    if pair[0].token_id("<0x00>") is None or "�" not in shown:
        assert text == shown
    assert text == answer.text == ours.byte_decoder.visible().decode(ids)
    assert answer.token_ids == ids
    assert not answer.stopped


@SLOW
@given(data=st.data(), source=st.one_of(TEXT, BYTES), stops=STOPS)
def test_stop_strings_end_the_text_for_any_pushes(pair, data, source, stops):
    tokenizer = pair[0]
    ids = tokenizer.encode(source) if isinstance(source, str) else source
    expected = tokenizer.byte_decoder.visible().decode(ids)
    answer = IncrementalDetokenizer(tokenizer, stops)
    deltas = []
    for part in in_pushes(data.draw, ids):
        deltas.append(answer.push(part))
        assert "".join(deltas) == answer.text
        assert naive(expected, stops).startswith(answer.text)
        if answer.stopped:
            assert answer.push([1, 2]) == ""
            break
    deltas.append(answer.finish())
    assert "".join(deltas) == answer.text == naive(expected, stops)
    assert answer.stopped == any(stop in expected for stop in stops)
    assert answer.finish() == ""
    # The token ids are the longest prefix whose text does not extend into the stop string.
    token_ids = answer.token_ids
    assert token_ids == ids[: len(token_ids)]
    if not answer.stopped:
        assert token_ids == ids
    elif "�" not in expected:
        assert answer.text.startswith(tokenizer.byte_decoder.visible().decode(token_ids).rstrip("�"))


@SLOW
@given(data=st.data(), source=TEXT)
def test_text_that_continues_the_prompt_loses_no_space(pair, data, source):
    tokenizer = pair[0]
    ids = tokenizer.encode(source)
    at = data.draw(st.integers(0, len(ids)))
    head, shown = tokenizer.byte_decoder.visible().decode(ids[:at]), tokenizer.byte_decoder.visible().decode(ids)
    answer = IncrementalDetokenizer(tokenizer, continues=True)
    text = "".join(answer.push(part) for part in in_pushes(data.draw, ids[at:])) + answer.finish()
    if at and head and "�" not in head + text:
        assert head + text == shown


REASONED = st.text(alphabet="ab <>/think\n", max_size=20)


@SLOW
@given(data=st.data(), thought=REASONED, text=REASONED, stops=STOPS, opened=st.booleans(), closed=st.booleans())
def test_stop_strings_are_searched_only_after_reasoning(pair, data, thought, text, stops, opened, closed):
    tokenizer = pair[0]
    marked = ("" if opened else "<think>") + thought + ("</think>" + text if closed else "")
    ids = tokenizer.encode(marked)
    shown = tokenizer.byte_decoder.visible().decode(ids)
    found, rest = halves(shown, opened)
    answer = IncrementalDetokenizer(tokenizer, stops, preamble=ReasoningParser(reasoning_format("think"), opened))
    pieces = "".join(answer.push(part) for part in in_pushes(data.draw, ids)) + answer.finish()
    assert pieces == answer.text == found + naive(rest, stops)
    assert answer.stopped == (naive(rest, stops) != rest)


def halves(text, opened):
    """Splits a text into the reasoning with its tags and the surrounding whitespace, and the rest."""
    begun = text.lstrip()
    if not opened and not begun.startswith("<think>"):
        return "", text
    start = 0 if opened else len(text) - len(begun) + len("<think>")
    end = text.find("</think>", start)
    if end < 0:
        return text, ""
    rest = text[end + len("</think>") :].lstrip()
    return text[: len(text) - len(rest)], rest


def test_a_possible_beginning_of_a_stop_string_is_withheld(directory):
    from runtime.tokenizer import Tokenizer

    tokenizer = Tokenizer(directory)
    answer = IncrementalDetokenizer(tokenizer, ["abba"])
    assert answer.push(tokenizer.encode("x ab")) == "x "
    assert answer.push(tokenizer.encode("ab")) == "ab"
    assert answer.push(tokenizer.encode("b")) == ""
    assert answer.finish() == "abb"
    assert answer.text == "x ababb"


def test_incomplete_utf8_is_withheld(directory):
    from runtime.tokenizer import Tokenizer

    tokenizer = Tokenizer(directory)
    ids = [tokenizer.token_id(c) for c in "ðŁĺĢ"]  # the four bytes of 😀 in the byte alphabet
    answer = IncrementalDetokenizer(tokenizer)
    assert [answer.push([i]) for i in ids] == ["", "", "", "😀"]
    answer = IncrementalDetokenizer(tokenizer)
    assert [answer.push([i]) for i in ids[:3]] == ["", "", ""]
    assert answer.finish() == "�"
    assert answer.token_ids == ids[:3]


def test_special_tokens_show_their_text_but_not_in_answers(directory):
    from runtime.tokenizer import Tokenizer

    tokenizer = Tokenizer(directory)
    mask = tokenizer.token_id("<|mask|>")
    ids = [mask, *tokenizer.encode("a"), mask]
    assert tokenizer.decode(ids) == "<|mask|>a<|mask|>"
    for marks, text in (((), "a"), (("<|mask|>thought", ""), "<|mask|>a<|mask|>")):
        answer = IncrementalDetokenizer(tokenizer, marks=marks)
        assert "".join(answer.push([id]) for id in ids) + answer.finish() == text
        assert answer.token_ids == ids
