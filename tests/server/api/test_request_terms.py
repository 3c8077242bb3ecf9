"""What headers say of a request."""

import pytest
from starlette.datastructures import Headers

from tidegate_server.api.request_terms import NO_TENANT, TermsPolicy, request_terms
from tidegate_server.errors import InvalidRequest

POLICY = TermsPolicy()
NOW = 1000.0


def tenant_of(headers: dict[str, str], policy: TermsPolicy = POLICY) -> str:
    return request_terms(Headers(headers), policy, NOW).tenant


def deadline_of(headers: dict[str, str], policy: TermsPolicy = POLICY) -> float | None:
    return request_terms(Headers(headers), policy, NOW).deadline_s


def test_a_key_is_a_tenant_and_another_key_another_one() -> None:
    tenants = [tenant_of({"Authorization": f"{scheme} {key}"}) for scheme in ("Bearer", "bearer") for key in "ab"]
    assert tenants[0] == tenants[2] != tenants[1] == tenants[3]


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": ""}, {"Authorization": "Bearer "}, {"Authorization": "Basic x"}]
)
def test_all_who_bring_no_key_are_one_tenant(headers: dict[str, str]) -> None:
    assert tenant_of(headers) == NO_TENANT


def test_a_tenant_is_not_the_key_and_cannot_be_found_from_it_elsewhere() -> None:
    headers = {"Authorization": "Bearer sk-secret"}
    assert "secret" not in tenant_of(headers)
    assert tenant_of(headers, TermsPolicy()) != tenant_of(headers, TermsPolicy())
    assert "hash_key" not in repr(POLICY)


def test_a_header_of_the_servers_choice_counts_instead_of_the_key() -> None:
    policy = TermsPolicy(tenant_header="X-Team")
    red = tenant_of({"x-team": "red", "Authorization": "Bearer a"}, policy)
    assert red == tenant_of({"X-Team": "red", "Authorization": "Bearer b"}, policy)
    assert red != tenant_of({"X-Team": "blue", "Authorization": "Bearer a"}, policy)
    assert tenant_of({"Authorization": "Bearer a"}, policy) == NO_TENANT


@pytest.mark.parametrize(
    ("queue_timeout_s", "header", "expected"),
    [
        pytest.param(None, None, None, id="nobody is impatient"),
        pytest.param(30.0, None, 1030.0, id="the server's timeout"),
        pytest.param(None, "2.5", 1002.5, id="the request's own"),
        pytest.param(30.0, "2", 1002.0, id="a client may be less patient than the server"),
        pytest.param(30.0, "60", 1030.0, id="but not more"),
        pytest.param(None, "3600", 4600.0, id="an hour is the most"),
    ],
)
def test_a_request_waits_until_the_first_deadline(
    queue_timeout_s: float | None, header: str | None, expected: float | None
) -> None:
    headers = {} if header is None else {"X-Request-Timeout": header}
    assert deadline_of(headers, TermsPolicy(queue_timeout_s=queue_timeout_s)) == expected


@pytest.mark.parametrize("raw", ["", "soon", "0", "-1", "3600.1", "nan", "inf", "1e999", "5s"])
def test_a_timeout_that_is_none_is_a_400_that_names_the_header(raw: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        deadline_of({"X-Request-Timeout": raw})
    assert (refused.value.param, refused.value.code) == ("x-request-timeout", "invalid_value")
