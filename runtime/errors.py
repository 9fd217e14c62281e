"""The two kinds of mistake a user can make, in how the server is started and in a request; and the end of a replica."""

from __future__ import annotations


class ConfigError(ValueError):
    """Start-up cannot go on. The message is one sentence that names the flag, file or tensor and the fix."""


class RequestError(ValueError):
    """A request that is refused before it reaches the engine.

    Attributes:
        message: one sentence that names the field and the fix.
        param: the field's path as the client wrote it (``"decoding.accept_threshold"``), or None.
        status: HTTP status (400, 401, 403, 404, 413, 429, 503, 504).
        code: OpenAI's machine-readable code (``"model_not_found"``), or None.
        detail: the part of the message that a library or the client wrote without quotes. The log has its length.
    """

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, code: str | None = None, detail: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code
        self.detail = detail

    def renamed(self, ours: str, theirs: str) -> RequestError:
        """The same, of a field that the client knows under another name."""
        param, message = self.param, self.message
        if param is not None and (param == ours or param.startswith((f"{ours}.", f"{ours}["))):
            message = theirs + message.removeprefix(ours) if message.startswith(ours) else message
            param = theirs + param.removeprefix(ours)
        return RequestError(message, param=param, status=self.status, code=self.code, detail=self.detail)


class ReplicaLost(Exception):
    """One of the processes that share a model has gone, hangs or failed, so that none of them can go on. The message is
    one sentence that says which and how."""
