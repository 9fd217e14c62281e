"""Tests of the terminal chat, with a fake server that sends fixed responses."""

import json

import httpx
import pytest
from rich.console import Console

from runtime.chat import Conversation, Frame, Piece, Terminal, draw, main
from runtime.client import ServerError

TEXTS = {1: "<s>", 10: "Hel", 11: "lo", 12: "!", 13: "<|end|>"}
MASK = 99


def step(start, tokens, text, nfe, reason=None):
    masked = [i for i, token in enumerate(tokens) if token == MASK]
    events = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
               "denoise": {"start": start, "tokens": tokens, "masked": masked, "nfe": nfe}}]  # fmt: skip
    if reason:
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return events


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
# The prompt has 2 tokens and a block 4, so positions 0 and 1 of the first block belong to the prompt.
ANSWER = [
    ROLE, *step(0, [1, 1, MASK, 11], "", 1), *step(0, [1, 1, 10, 11], "Hello", 2),
    *step(4, [MASK, 13, MASK, MASK], "", 3), *step(4, [12, 13, MASK, MASK], "!", 4, "stop"),
]  # fmt: skip


class Server:
    """Imitates the server's routes and records the chat requests."""

    def __init__(self, events=ANSWER, status=200):
        self.events, self.status, self.asked = events, status, []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or b"{}")
        if request.url.path == "/tokenize":
            return httpx.Response(200, json={"tokens": [1, 1], "count": 2})
        if request.url.path == "/detokenize":
            return httpx.Response(200, json={"prompt": "".join(TEXTS[t] for t in body["tokens"])})
        self.asked.append(body)
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "decoding.mode: no", "param": "decoding"}})
        lines = [": keep-alive", *(f"data: {json.dumps(e)}" for e in self.events), "data: [DONE]"]
        return httpx.Response(200, text="\n\n".join(lines) + "\n\n")


@pytest.fixture
def server():
    return Server()


def conversation_with(server, **fields) -> Conversation:
    return Conversation(httpx.Client(transport=httpx.MockTransport(server), base_url="http://x"), **fields)


def test_frames_show_blocks_being_denoised(server):
    frames = list(conversation_with(server).ask("hi"))
    assert frames[0] == Frame("", (Piece(None), Piece("lo", fresh=True)), 1)
    assert frames[1] == Frame("Hello", (), 2)
    assert frames[2] == Frame("Hello", (Piece(None), Piece("<|end|>", fresh=True), Piece(None), Piece(None)), 3)
    assert frames[-1] == Frame("Hello!", (), 4)
    assert draw(frames[2]).plain.startswith("Hello░·░░")
    assert draw(frames[0]).plain.endswith("\n1 step")
    assert draw(frames[2]).plain.endswith("\n3 steps")


def test_an_edited_token_is_marked_fresh_again_and_open_text_is_shown():
    # With edits, no token is final before its block ends, so the text stays empty while positions change.
    events = [ROLE, *step(0, [1, 1, 10, 12], "", 1), *step(0, [1, 1, 10, 11], "", 2), *step(4, [MASK], "Hello", 3)]
    frames = list(conversation_with(Server(events)).ask("hi"))
    assert frames[1].open == (Piece("Hel"), Piece("lo", fresh=True))
    assert frames[2] == Frame("Hello", (Piece(None),), 3)


def test_turns_are_stored_once_they_end(server):
    conversation = conversation_with(server, model="m", max_tokens=9)
    list(conversation.ask("hi"))
    assert conversation.finish_reason == "stop"
    interrupted = conversation.ask("and?")
    next(interrupted)
    interrupted.close()
    list(conversation.ask("so?"))
    sent = server.asked[-1]
    assert [m["content"] for m in sent["messages"]] == ["hi", "Hello!", "so?"]
    assert (sent["model"], sent["max_tokens"], sent["stream"], sent["stream_mode"]) == ("m", 9, True, "denoise")
    conversation.reset()
    list(conversation.ask("new"))
    assert len(server.asked[-1]["messages"]) == 1


def test_errors_are_shown():
    refusing = conversation_with(Server(status=400))
    with pytest.raises(ServerError, match=r"decoding\.mode: no"):
        list(refusing.ask("hi"))
    failing = conversation_with(Server([ROLE, {"error": {"message": "the backend died"}}]))
    with pytest.raises(ServerError, match="the backend died"):
        list(failing.ask("hi"))
    assert failing.messages == []


def terminal(conversation) -> Terminal:
    return Terminal(conversation, Console(record=True, width=80, force_terminal=False))


def test_commands(server):
    conversation = conversation_with(server)
    screen = terminal(conversation)
    assert screen.command("/mode quality") == "mode: quality"
    assert screen.command("/edit") == "editing: on"
    list(conversation.ask("hi"))
    assert server.asked[-1]["decoding"] == {"mode": "quality", "algorithm": "edit"}
    screen.command("/mode")
    assert screen.command("/edit") == "editing: off"
    screen.command("/reset")
    assert conversation.messages == []
    list(conversation.ask("hi"))
    assert "decoding" not in server.asked[-1]
    assert "/reset" in screen.command("/nonsense") == screen.command("/mode fast")


def test_the_loop_shows_answers_until_quit(server, monkeypatch):
    screen = terminal(conversation_with(server))
    lines = iter(["hi [bold]", "", "/mode speed", "/quit"])
    monkeypatch.setattr(screen.console, "input", lambda prompt: next(lines))
    screen.run()
    shown = screen.console.export_text()
    assert "Hello!" in shown
    assert "4 steps" in shown
    assert "mode: speed" in shown
    assert len(server.asked) == 1


def test_ctrl_c_ends_the_answer_not_the_chat(server, monkeypatch):
    conversation = conversation_with(server)

    def interrupted(text):
        yield Frame("Hel", (), 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(conversation, "ask", interrupted)
    screen = terminal(conversation)
    screen.answer("hi")
    shown = screen.console.export_text()
    assert "Hel" in shown
    assert "this turn is discarded" in shown


def test_no_server(capsys):
    assert main(["--url", "http://127.0.0.1:9"]) == 1
    assert "is a server running there?" in capsys.readouterr().err
    assert main(["--url", "http://127.0.0.1:9", "--api-key", "clé"]) == 1
    assert "--api-key: a key may have printable ASCII characters only" in capsys.readouterr().err
    assert main(["--url", "http://☃.example"]) == 1
    assert "is not a server's address" in capsys.readouterr().err
    assert main(["--url", "nonsense"]) == 1
    assert "--url: 'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b"[]", b'{"data": []}', b'{"data": null}'])
def test_another_server(answer, capsys, monkeypatch):
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=answer))
    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: client(transport=transport, base_url=options["base_url"]))
    assert main(["--url", "http://127.0.0.1:9"]) == 1
    assert "/v1/models lists no models; is another server running there?" in capsys.readouterr().err
    screen = terminal(Conversation(httpx.Client(base_url="http://127.0.0.1:9")))
    screen.answer("hi")
    assert "error: the answer does not have the form of this API; is another server running there?" in " ".join(
        screen.console.export_text().split()
    )
