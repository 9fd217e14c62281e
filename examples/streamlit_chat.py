"""A chat with a server in Streamlit, in which an answer is seen being denoised.

    pip install '.[streamlit]'
    UNMASK_URL=http://127.0.0.1:8000 streamlit run examples/streamlit_chat.py

`UNMASK_API_KEY`: the server's key, where it asks for one.
"""

from __future__ import annotations

import html
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import streamlit as st

URL = os.environ.get("UNMASK_URL", "http://127.0.0.1:8000").rstrip("/")
KEY = os.environ.get("UNMASK_API_KEY", "none")
AS_SERVED = "as the server has it"
# Told apart by more than colour: drafts, which may still change, lean and are underlined, masks are blocks.
STYLES = {
    "stable": "",
    "draft": "font-style: italic; text-decoration: underline dotted; opacity: 0.75",
    "mask": "opacity: 0.45",
}


class Refused(Exception):
    """What the server says instead of an answer."""


@dataclass
class Answer:
    """An answer and how it came to be: `steps` of {start, tokens, masked, nfe}, as the server told them."""

    request: dict[str, Any]
    prompt_tokens: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    seconds: float = 0.0

    @property
    def forwards(self) -> int:
        return self.steps[-1]["nfe"] if self.steps else 0

    def cells(self, count: int) -> list[tuple[int, str]]:
        """Each token after so many steps, and whether it is stable, a draft or a mask."""
        made: list[tuple[int, str]] = []
        for step in self.steps[:count]:
            first = step["start"] - self.prompt_tokens
            made = [(token, "stable" if i < first else kind) for i, (token, kind) in enumerate(made)]
            masked = set(step["masked"])
            for i, token in enumerate(step["tokens"]):
                place = first + i  # before 0 is the prompt's end, which shares the answer's first block
                if 0 <= place < len(made):
                    made[place] = (token, "mask" if i in masked else "draft")
                elif place == len(made):
                    made.append((token, "mask" if i in masked else "draft"))
        if count >= len(self.steps) and self.tokens:  # the answer has ended, and what is beyond it is none of it
            made = [(token, "stable") for token, _ in made[: self.tokens]]
        return made


def client() -> httpx.Client:
    return httpx.Client(base_url=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=120)


def check(response: httpx.Response) -> httpx.Response:
    """Raises Refused with the server's sentence."""
    if response.is_error:
        response.read()
        try:
            sentence = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            sentence = f"{response.status_code} from {URL}"
        raise Refused(sentence)
    return response


@st.cache_data(ttl=60)
def offered() -> tuple[list[str], dict[str, list[str]]]:
    """The server's models, and the words that it knows for each picker."""
    with client() as http:
        models = [model["id"] for model in check(http.get("/v1/models")).json()["data"]]
        decoding = check(http.get("/openapi.json")).json()["components"]["schemas"]["Decoding"]["properties"]
    words = {}
    for name in ("mode", "algorithm"):
        kinds = decoding[name].get("anyOf", [decoding[name]])
        words[name] = next(kind["enum"] for kind in kinds if "enum" in kind)
    return models, words


@st.cache_data
def pieces(ids: tuple[int, ...]) -> dict[int, bytes]:
    """The bytes of each token; none of special ones."""
    with client() as http:
        found = check(http.post("/detokenize", json={"tokens": list(ids), "return_bytes": True})).json()["bytes"]
    return {id: bytes(each or ()) for id, each in zip(ids, found, strict=True)}


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with http.stream("POST", path, json=body) as response:
        for line in check(response).iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise Refused(event["error"]["message"])
                yield event


def drawn(answer: Answer, count: int) -> str:
    """The answer after so many steps, as HTML; what the model wrote is text and nothing else."""
    cells = answer.cells(count)
    known = pieces(tuple(sorted({token for token, kind in cells if kind != "mask"})))
    shown, run = [], b""
    for token, kind in cells:
        if kind == "mask":
            shown.append(f'<span style="{STYLES[kind]}">▒</span>')
            continue
        run += known[token]
        try:
            text, run = run.decode(), b""
        except UnicodeDecodeError:  # its character's other bytes are the next token's
            continue
        shown.append(f'<span style="{STYLES[kind]}">{html.escape(text)}</span>')
    return f'<div style="white-space: pre-wrap">{"".join(shown)}</div>'


def ask(messages: list[dict[str, str]], settings: dict[str, Any], place: Any) -> Answer:
    """Have the server answer, and show it at `place` as it comes. Raises Refused."""
    body = {
        "messages": messages,
        **settings,
        "stream": True,
        "stream_mode": "denoise",
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    answer, began = Answer(body), time.monotonic()
    with client() as http:
        for event in events(http, "/v1/chat/completions", body):
            answer.prompt_tokens = (event.get("usage") or {}).get("prompt_tokens", answer.prompt_tokens)
            answer.tokens = (event.get("usage") or {}).get("completion_tokens", answer.tokens)
            for choice in event["choices"]:
                answer.text += choice["delta"].get("content") or ""
            if "denoise" in event:
                answer.steps.append(event["denoise"])
                unfinished, answer.tokens = answer.tokens, 0
                place.html(drawn(answer, len(answer.steps)))
                answer.tokens = unfinished
    answer.seconds = time.monotonic() - began
    place.html(drawn(answer, len(answer.steps)))
    return answer


def settings(name: str) -> dict[str, Any]:
    """A form of what a request may say; `name` tells two of them apart."""
    models, words = offered()
    made: dict[str, Any] = {"model": st.selectbox("model", models, key=f"{name}-model")}
    decoding = {}
    for picker, choices in words.items():
        chosen = st.selectbox(picker, [AS_SERVED, *choices], key=f"{name}-{picker}")
        if chosen != AS_SERVED:
            decoding[picker] = chosen
    made["max_tokens"] = st.slider("max_tokens", 16, 1024, 256, key=f"{name}-max_tokens")
    made["temperature"] = st.slider("temperature", 0.0, 2.0, 0.0, key=f"{name}-temperature")
    return made | ({"decoding": decoding} if decoding else {})


def shown(answer: Answer, key: str) -> None:
    """The answer, a slider over its steps, its figures and its request."""
    place = st.empty()
    steps = len(answer.steps)
    count = st.slider("steps", 0, steps, steps, key=f"{key}-steps") if steps else 0
    if steps and st.button("replay", key=f"{key}-replay"):
        for n in range(steps + 1):
            place.html(drawn(answer, n))
            time.sleep(0.1)
    place.html(drawn(answer, count))
    each = answer.tokens / answer.forwards if answer.forwards else 0
    st.caption(
        f"{answer.tokens} tokens, {answer.forwards} forwards, {each:.2f} tokens per forward, {answer.seconds:.2f} s"
    )
    with st.expander("the request"):
        quoted = json.dumps(answer.request, ensure_ascii=False).replace("'", "'\\''")
        st.code(f"curl {URL}/v1/chat/completions -H 'Content-Type: application/json' -d '{quoted}'", language="bash")


def chat(chosen: list[dict[str, Any]]) -> None:
    """A conversation; with two settings each question is answered by both, and the first one's goes on."""
    turns = st.session_state.setdefault("turns", [])
    for n, (question, answers) in enumerate(turns):
        st.chat_message("user").text(question)
        for i, (column, answer) in enumerate(zip(st.columns(len(answers)), answers, strict=True)):
            with column, st.chat_message("assistant"):
                shown(answer, f"{n}-{i}")
    question = st.chat_input("What is 120 + 300?")
    if not question:
        return
    st.chat_message("user").text(question)
    messages = []
    for before, answers in turns:
        messages += [{"role": "user", "content": before}, {"role": "assistant", "content": answers[0].text}]
    messages.append({"role": "user", "content": question})
    places = [column.chat_message("assistant").empty() for column in st.columns(len(chosen))]
    turns.append((question, [ask(messages, each, place) for each, place in zip(chosen, places, strict=True)]))
    st.rerun()


def infill(chosen: dict[str, Any]) -> None:
    """A text with holes, which the model fills; the rest stays as it is."""
    text = st.text_area("a text with holes of so many tokens", "2, 4, <mask:2> 8, 10")
    if st.button("fill"):
        body = {name: value for name, value in chosen.items() if name != "max_tokens"} | {"text": text}
        with client() as http:
            st.text(check(http.post("/v1/infill", json=body)).json()["text"])


def main() -> None:
    st.set_page_config("Unmask", layout="wide")
    try:
        with st.sidebar:
            chosen = [settings("one")]
            if st.checkbox("beside other settings"):
                chosen.append(settings("two"))
            if st.button("new conversation"):
                st.session_state["turns"] = []
        talk, holes = st.tabs(["chat", "infill"])
        with holes:
            infill(chosen[0])
        with talk:
            chat(chosen)
    except Refused as refused:
        st.error(str(refused))
    except httpx.HTTPError as error:
        st.error(f"{URL} does not answer: {error}")


main()
