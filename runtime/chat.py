"""``python -m runtime.chat``: chats with a running server in the terminal and shows how its blocks are denoised."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from runtime.client import DEFAULT_URL, ServerError, headers, is_address, is_end, may_use_proxy, read_event, refusal
from runtime.config.suggestions import SuggestingParser

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

MODES = ("speed", "balanced", "quality")
HELP = """\
/mode speed|balanced|quality   how eagerly tokens are accepted (/mode alone: the server's default)
/edit                          let filled tokens be revised, on or off
/reset                         forget the conversation
/quit                          leave (also Ctrl-D); Ctrl-C ends an answer"""
MASK = "░"


@dataclass(frozen=True)
class Piece:
    """One position of an open block.

    Attributes:
        text: its text; None if the position is masked.
        fresh: whether the last step filled it.
    """

    text: str | None
    fresh: bool = False


@dataclass(frozen=True)
class Frame:
    """An answer after a step: the final text, the open positions after it, and the number of steps so far."""

    text: str
    open: tuple[Piece, ...] = ()
    nfe: int = 0


class Conversation:
    """A conversation with a server over its chat route."""

    def __init__(self, http: httpx.Client, model: str | None = None, **fields: Any) -> None:
        """`fields` are further fields of every request (max_tokens, temperature)."""
        self._http = http
        self._model = model
        self._fields = fields
        self._texts: dict[int, str] = {}  # texts of token ids, from the server
        self.messages: list[dict[str, str]] = []
        self.decoding: dict[str, Any] = {}
        self.finish_reason: str | None = None

    def ask(self, text: str) -> Generator[Frame, None, None]:
        """Sends a message. Yields the answer after each step, and the complete answer at the end.

        The turn is added to the conversation only at its end. Closing the iterator early (Ctrl-C) closes the
        connection, which ends the request on the server.

        Raises:
            ServerError: the server refused the request or failed.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        body = {"messages": messages, "stream": True, "stream_mode": "denoise", **self._fields}
        if self._model is not None:
            body["model"] = self._model
        if self.decoding:
            body["decoding"] = self.decoding
        first = self._count(messages)
        answer, nfe = "", 0
        before: dict[int, int] = {}
        self.finish_reason = None
        with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise refusal(response.status_code, response.read())
            for line in response.iter_lines():
                if is_end(line):
                    break
                event = read_event(line)
                if event is None:
                    continue
                for choice in event["choices"]:
                    answer += choice["delta"].get("content") or ""
                    self.finish_reason = choice["finish_reason"] or self.finish_reason
                step = event.get("denoise")
                if step is not None:
                    nfe = step["nfe"]
                    now = _filled(step)
                    yield Frame(answer, self._open(step, first, len(answer), before, now), nfe)
                    before |= now
        self.messages = [*messages, {"role": "assistant", "content": answer}]
        yield Frame(answer, (), nfe)

    def reset(self) -> None:
        self.messages = []

    def _open(
        self, step: dict[str, Any], first: int, final: int, before: dict[int, int], now: dict[int, int]
    ) -> tuple[Piece, ...]:
        """Returns the open positions, from `first` on, without the first `final` characters, which are final text."""
        known = {**before, **now}
        last = step["start"] + len(step["tokens"])
        pieces, skip = [], final
        for position in range(first, last):
            token = known.get(position) if position in now or position < step["start"] else None
            text = None if token is None else self._spell(token)
            if text is not None and skip >= len(text):
                skip -= len(text)
                continue
            skip = 0
            fresh = position in now and before.get(position) != token
            pieces.append(Piece(text, fresh))
        return tuple(pieces)

    def _spell(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self._post("/detokenize", {"tokens": [token]})["prompt"]
        return self._texts[token]

    def _count(self, messages: Sequence[dict[str, str]]) -> int:
        """Returns the number of prompt tokens, which is the first position of the answer."""
        return int(self._post("/tokenize", {"messages": messages})["count"])

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self._http.post(path, json=body)
        if response.status_code != 200:
            raise refusal(response.status_code, response.content)
        found: dict[str, Any] = response.json()
        return found


def _filled(step: dict[str, Any]) -> dict[int, int]:
    """Returns position -> token id for the filled positions of a step."""
    masked = set(step["masked"])
    return {step["start"] + i: token for i, token in enumerate(step["tokens"]) if i not in masked}


def draw(frame: Frame) -> Text:
    """Returns a frame as rich text: final text plain, open text in color (bold if just filled), masks as shades."""
    from rich.text import Text

    text = Text(frame.text)
    for piece in frame.open:
        if piece.text is None:
            text.append(MASK, "dim")
        elif piece.text.startswith("<|") and piece.text.endswith("|>"):
            text.append("·", "dim")  # an end token
        else:
            text.append(piece.text, "bold green" if piece.fresh else "green")
    if frame.nfe:
        text.append(f"\n{_steps(frame.nfe)}", "dim")
    return text


def _steps(number: int) -> str:
    return f"{number} step{'' if number == 1 else 's'}"


class Terminal:
    """The loop around a conversation: reads lines, runs commands, draws answers."""

    def __init__(self, conversation: Conversation, console: Console) -> None:
        self.conversation = conversation
        self.console = console

    def run(self) -> None:
        self.console.print("[dim]/help lists the commands[/dim]")
        while True:
            try:
                line = self.console.input("[bold cyan]you>[/] ").strip()
            except (EOFError, KeyboardInterrupt):
                self.console.print()
                return
            if line in ("/quit", "/exit"):
                return
            if line.startswith("/"):
                self.console.print(self.command(line), style="dim", markup=False)
            elif line:
                self.answer(line)

    def command(self, line: str) -> str:
        """Runs a command. Returns the text to print."""
        match line.split():
            case ["/reset"]:
                self.conversation.reset()
                return "conversation reset"
            case ["/mode"]:
                self.conversation.decoding.pop("mode", None)
                return "mode: the server's default"
            case ["/mode", mode] if mode in MODES:
                self.conversation.decoding["mode"] = mode
                return f"mode: {mode}"
            case ["/edit"]:
                if self.conversation.decoding.pop("algorithm", None) is None:
                    self.conversation.decoding["algorithm"] = "edit"
                return f"editing: {'on' if 'algorithm' in self.conversation.decoding else 'off'}"
            case _:
                return HELP

    def answer(self, text: str) -> None:
        from rich.live import Live

        frames = self.conversation.ask(text)
        frame = Frame("")
        try:
            with Live(console=self.console, refresh_per_second=24, transient=True) as live:
                for frame in frames:
                    live.update(draw(frame))
        except KeyboardInterrupt:
            frames.close()
            self.console.print(frame.text, markup=False, highlight=False)
            self.console.print("[dim]stopped; this turn is discarded[/dim]")
        except (ServerError, httpx.HTTPError) as error:
            self.console.print(f"error: {error or type(error).__name__}", style="red", markup=False)
        except (ValueError, LookupError, TypeError):
            text = "error: the answer does not have the form of this API; is another server running there?"
            self.console.print(text, style="red", markup=False)
        else:
            self.console.print(frame.text, markup=False, highlight=False)
            cut = " (stopped at the length limit)" if self.conversation.finish_reason == "length" else ""
            self.console.print(f"[dim]{_steps(frame.nfe)}{cut}[/dim]")


def main(argv: Sequence[str] | None = None) -> int:
    parser = SuggestingParser(prog="python -m runtime.chat", description="Talk to a running server.")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"default: {DEFAULT_URL}")
    parser.add_argument("--api-key", metavar="KEY")
    parser.add_argument("--model", help="default: the first that the server serves")
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--max-tokens", type=int, metavar="N")
    parser.add_argument("--temperature", type=float, metavar="T")
    args = parser.parse_args(argv)
    try:
        is_usable = is_address(args.url) and bool(httpx.URL(args.url).host)
    except httpx.InvalidURL:  # for example, a host name that IDNA does not allow
        is_usable = False
    if not is_usable:
        print(f"--url: {args.url!r} is not a server's address, such as {DEFAULT_URL}", file=sys.stderr)
        return 1
    if args.api_key and not (args.api_key.isascii() and args.api_key.isprintable()):
        print("--api-key: a key may have printable ASCII characters only", file=sys.stderr)
        return 1
    from rich.console import Console

    fields = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    timeout = httpx.Timeout(10.0, read=None)
    with httpx.Client(
        base_url=args.url, headers=headers(args.api_key), timeout=timeout, trust_env=may_use_proxy(args.url)
    ) as http:
        try:
            response = http.get("/v1/models")
            if response.status_code != 200:
                raise refusal(response.status_code, response.content)
            model = args.model or response.json()["data"][0]["id"]
        except (ServerError, httpx.HTTPError) as error:
            print(f"{args.url}: {error or type(error).__name__}; is a server running there?", file=sys.stderr)
            return 1
        except (ValueError, LookupError, TypeError):
            print(f"{args.url}: /v1/models lists no models; is another server running there?", file=sys.stderr)
            return 1
        conversation = Conversation(http, args.model, **{k: v for k, v in fields.items() if v is not None})
        if args.mode:
            conversation.decoding["mode"] = args.mode
        console = Console()
        console.print(f"{model} at {args.url}", markup=False)
        Terminal(conversation, console).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
