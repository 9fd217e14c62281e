"""Tests which errors of the API server count as refusals of a request, by their messages."""

import json

import pytest

from unmask_operator.kube.errors import ApiError, api_error, is_refusal

DEPLOYMENT = "(default/d; apps/v1, Kind=Deployment)"

# Recorded from kube-apiserver 1.34.4, or written as in its source.
REFUSALS = [
    (500, f"failed to create typed patch object {DEPLOYMENT}: .spec.template.metadata.annotations.x: expected string"),
    (500, f"failed to create typed patch object {DEPLOYMENT}: errors:\n  .a: expected map\n  .b: expected list"),
    (500, f"failed to create typed live object {DEPLOYMENT}: .spec.template.spec: expected map"),
    (500, f"failed to convert new object {DEPLOYMENT} to proper version: quantities must match '^([+-]?[0-9.]+)'"),
    (500, f"failed to convert new typed object {DEPLOYMENT} to object: unknown"),
    (500, f"failed to convert to unversioned {DEPLOYMENT}: unknown"),
    (500, f"failed to create manager for existing fields: failed to convert new object {DEPLOYMENT} to smd typed: x"),
    (500, f"failed to update ManagedFields {DEPLOYMENT}: unknown"),
    (500, "failed to decode managed fields: error decoding manager"),
    (500, "failed to merge config: .spec: duplicate entries"),
    (500, "unable to decode: unexpected end of JSON input"),
    (500, "json: cannot unmarshal number into Go struct field EnvVar.value of type string"),
    (500, 'strict decoding error: unknown field "spec.foo"'),
    (500, "etcdserver: request is too large"),
    (500, "rpc error: code = InvalidArgument desc = etcdserver: request is too large"),
    (500, "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2317347 vs. 2097152)"),
    (500, "rpc error: code = ResourceExhausted desc = grpc: received message larger than max (2317347 vs. 2097152)"),
    (413, "Request entity too large: limit is 3145728"),
    (400, 'Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal bool'),
    (422, 'Deployment.apps "d" is invalid: spec.template.spec.containers[0].imagePullPolicy: Unsupported value'),
    (403, 'deployments.apps "d" is forbidden: exceeded quota: q'),
    (405, "the server does not allow this method on the requested resource"),
    (406, "only the following media types are accepted: application/json"),
    (415, "the body of the request was in an unknown format"),
    (500, 'admission webhook "images.example.com" denied the request: only on weekdays'),
    (401, "ValidatingAdmissionPolicy 'images' with binding 'all' denied request: only on weekdays"),
    (404, "deployments.apps \"d\" is forbidden: ValidatingAdmissionPolicy 'i' with binding 'all' denied request: no"),
    (409, "policy 'images' with binding 'all' denied request: only on weekdays"),
    (429, "MutatingAdmissionPolicy 'images' denied request: only on weekdays"),
    (500, 'admission webhook "images.example.com" denied the request without explanation'),
    (400, 'admission webhook "images.example.com" does not support dry run'),
]
FAILURES = [
    (500, 'Internal error occurred: failed calling webhook "a.example.com": failed to call: connection refused'),
    (500, 'Internal error occurred: failed calling webhook "a.example.com": admission webhook "b" denied the request'),
    (500, "Internal error occurred: failed to create typed patch object"),
    (500, "Internal error occurred: resource quota evaluation timed out"),
    (500, "etcdserver: request timed out"),
    (500, "rpc error: code = Unavailable desc = etcdserver: no leader"),
    (500, "context deadline exceeded"),
    (500, "the test's proxy answers 500"),
    (
        500,
        "failed to convert live object (ns/m; monitoring.coreos.com/v1, Kind=PodMonitor) to proper version: "
        "conversion webhook for monitoring.coreos.com/v1, Kind=PodMonitor failed: Post: connection refused",
    ),
    (503, "etcdserver: request is too large"),
    (503, "the server is currently unable to handle the request"),
    (504, "Timeout: request did not complete within requested timeout"),
    (409, "the object has been modified; please apply your changes to the latest version and try again"),
    (404, 'deployments.apps "d" not found'),
    (429, "too many requests, please try again later"),
    (401, "Unauthorized"),
    (0, "no answer from the API server"),
]


@pytest.mark.parametrize(("status", "message"), REFUSALS)
def test_an_error_about_the_content_of_the_request_is_a_refusal(status: int, message: str) -> None:
    error = api_error(status, json.dumps({"kind": "Status", "message": message}).encode(), {})
    assert is_refusal(status, message)
    assert error.refusal
    assert not any((error.general, error.conflict, error.exists, error.not_found))


@pytest.mark.parametrize(("status", "message"), FAILURES)
def test_an_error_that_may_disappear_is_no_refusal(status: int, message: str) -> None:
    assert not is_refusal(status, message)
    error = ApiError(status, "Unknown", message)
    assert error.general == (status in (0, 401, 429))
    assert error.conflict == (status == 409)
    assert error.not_found == (status == 404)


def test_a_denial_is_a_refusal_whatever_reason_the_webhook_gives() -> None:
    error = ApiError(409, "AlreadyExists", 'admission webhook "a" denied the request: it already exists elsewhere')
    assert error.refusal
    assert not error.exists
