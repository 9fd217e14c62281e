"""Errors of the API server, and which of them are refusals."""

import json
import re
from collections.abc import Mapping

# HTTP statuses of refusals: bad request, forbidden (admission, quota, RBAC), method or media type not supported, too
# large, invalid.
REFUSAL_STATUSES = frozenset((400, 403, 405, 406, 413, 415, 422))

# Admission may use any status for a denial (a webhook's response.status.code, a policy's reason), so only the message
# identifies it: admission/plugin/webhook/errors and admission/plugin/policy of k8s.io/apiserver.
_DENIALS = (
    r'admission webhook ".*?" (denied the request|does not support dry run)',
    r"(ValidatingAdmissionPolicy|MutatingAdmissionPolicy|policy) ['\"].*?['\"]( with binding '.*?')? denied request",
)

# The API server answers Go errors that are no metav1.Status with 500 (ErrorToAPIStatus of k8s.io/apiserver). These
# reject the object in the request, and a second try gives the same answer.
_REFUSALS_WITH_500 = (
    # server-side apply: apimachinery/pkg/util/managedfields and structured-merge-diff/merge
    r"failed to create typed (patch|live) object",  # a wrong type, an unknown field, duplicate keys of a list
    r"failed to convert (new|live|new typed|old|merged|pruned) object",  # a value its Go type cannot hold: "cpu: lots"
    r"failed to convert to unversioned",
    r"failed to create manager for existing fields",
    r"failed to (update|encode|decode) managed ?fields",
    r"failed to (merge config|prune fields|get field set|compare objects|create field ?set)",
    # decoders of apimachinery
    r"unable to (convert unstructured object|decode)",
    r"(json: )?cannot unmarshal",
    r"strict decoding error",
    # limits of etcd (--max-request-bytes) and of its client, which a dry run does not reach
    r"etcdserver: request is too large",
    r"trying to send message larger than max",
    r"(grpc: )?received message larger than max",
    r"request entity too large",
)

# Another process failed, although one of the sentences above matches: the next try may succeed.
_TRANSIENT_CAUSE = re.compile(r"conversion webhook for .* failed|failed calling webhook")

_DENIAL = re.compile(rf'(\S+ "[^"]*" is forbidden: )?({"|".join(_DENIALS)})', re.IGNORECASE | re.DOTALL)
_REFUSAL_WITH_500 = re.compile(rf"(rpc error: code = \w+ desc = )?({'|'.join(_REFUSALS_WITH_500)})", re.IGNORECASE)


def is_refusal(status: int, message: str) -> bool:
    """Returns whether an error rejects the request itself, so that a second try would fail as well.

    Args:
        status: HTTP status; 0 if there was no answer.
        message: message of the answer's Status.

    Returns:
        False for what may pass later: a webhook that cannot be called, a timeout, etcd without a leader.
    """
    if status in REFUSAL_STATUSES or (status >= 400 and _DENIAL.match(message)):
        return True
    return bool(status == 500 and _REFUSAL_WITH_500.match(message)) and not _TRANSIENT_CAUSE.search(message)


class ApiError(Exception):
    """A request failed: the API server answered with an error or not at all.

    Args:
        status: HTTP status; 0 without an answer.
        reason: The API's CamelCase reason ("AlreadyExists"); "Unreachable" without an answer.
        message: The API server's message.
        retry_after: Seconds of the Retry-After header; None without one.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({status} {reason})" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def not_found(self) -> bool:
        return self.status == 404 and not self.refusal

    @property
    def exists(self) -> bool:
        """Whether a create failed because the name exists."""
        return self.status == 409 and self.reason == "AlreadyExists" and not self.refusal

    @property
    def conflict(self) -> bool:
        """Whether a precondition failed: the object has another uid or resourceVersion."""
        return self.status == 409 and self.reason != "AlreadyExists" and not self.refusal

    @property
    def refusal(self) -> bool:
        """Whether the API server refused the request itself (admission, validation, quota, RBAC) and would again."""
        return is_refusal(self.status, self.message)

    @property
    def denied(self) -> bool:
        """Whether admission denied the request."""
        return bool(_DENIAL.match(self.message))

    @property
    def general(self) -> bool:
        """Whether other requests fail as well: no answer, throttled, not logged in or not leading."""
        return self.status in (0, 401, 429) and not self.refusal


def api_error(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """Returns the error of an HTTP answer. The body is a Status of the API server, or the text of a proxy."""
    retry_after = _seconds(headers.get("Retry-After"))
    try:
        status_object = json.loads(body)
        if not isinstance(status_object, dict) or status_object.get("kind") != "Status":
            raise ValueError
    except ValueError:
        text = body.decode(errors="replace")[:500].strip()
        return ApiError(status, "Unknown", text or "no reason given", retry_after)
    if retry_after is None:
        retry_after = _seconds((status_object.get("details") or {}).get("retryAfterSeconds"))
    return ApiError(
        status, status_object.get("reason") or "Unknown", status_object.get("message") or "no reason given", retry_after
    )


def _seconds(value: object) -> float | None:
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    return seconds if seconds > 0 else None
