"""Errors that users see: of configuration, of requests, and the loss of a replica."""

from __future__ import annotations


class ConfigError(ValueError):
    """Invalid configuration. The message is one sentence that names the flag, file or tensor, and the fix."""


class RegisteredTwiceError(ValueError):
    """A registry of strategies, algorithms, families or formats has an entry with this key already."""


class RequestError(ValueError):
    """A request that is refused before it reaches the engine.

    Attributes:
        message: One sentence that names the field and the fix.
        param: Path of the field as the client wrote it (``"decoding.accept_threshold"``), or None.
        status: HTTP status (400, 401, 403, 404, 413, 429, 503, 504).
        code: OpenAI's machine-readable code (``"model_not_found"``), or None.
        detail: Part of the message that a library or the client wrote without quotes. The log has only its length.
        own: Part of the message with quotes around words of the server. The log has it unchanged.
    """

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, code: str | None = None, detail: str = "",
        own: str = "",
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code
        self.detail = detail
        self.own = own

    def renamed(self, ours: str, theirs: str) -> RequestError:
        """Returns the error with the field's name replaced by that of another API."""
        param, message = self.param, self.message
        if param is not None and (param == ours or param.startswith((f"{ours}.", f"{ours}["))):
            message = theirs + message.removeprefix(ours) if message.startswith(ours) else message
            param = theirs + param.removeprefix(ours)
        return RequestError(message, param=param, status=self.status, code=self.code, detail=self.detail, own=self.own)


class ReplicaLost(Exception):
    """A process of a tensor parallel replica is gone, hangs or failed, so that the replica cannot continue.

    The message is one sentence that names the process and the cause.
    """


# Only Python's allocator, and that of torch for CUDA, raise an error of their own class. The latter has the first text.
_OUT_OF_MEMORY = ("out of memory", "allocate memory", "storage size calculation overflowed", "invalid buffer size")


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an allocator failed: that of Python, or of torch for GPUs or the CPU."""
    message = str(error).lower() if isinstance(error, RuntimeError) else ""  # another error may quote such a message
    return isinstance(error, MemoryError) or any(text in message for text in _OUT_OF_MEMORY)


class AdapterNotLoadedError(ValueError):
    """A request names an adapter that the engine does not have, or that is being unloaded."""
