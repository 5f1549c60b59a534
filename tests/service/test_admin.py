"""Who may administer the service."""

import pytest

from cadenza.service.admin import AdminAccess
from cadenza.service.errors import Forbidden, Unauthenticated

KEY = "s3cret"
AUTHORIZED = ("authorization", f"Bearer {KEY}")


def test_without_a_key_only_a_local_service_is_open():
    AdminAccess(None, is_local=True).check([])
    AdminAccess(None, is_local=True).check([("authorization", "Bearer anything")])
    with pytest.raises(Forbidden, match=r"no administrator's key.*--admin-api-key"):
        AdminAccess(None, is_local=False).check([("authorization", "Bearer anything")])


@pytest.mark.parametrize(
    "name",
    ["forwarded", "via", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-x", "x-real-ip"],
)
def test_what_a_proxy_passed_on_needs_a_key(name: str):
    passed_on = [("accept", "*/*"), (name, "")]
    with pytest.raises(Forbidden, match=rf"`{name}`.*--admin-api-key"):
        AdminAccess(None, is_local=True).check(passed_on)
    AdminAccess(KEY, is_local=True).check([*passed_on, AUTHORIZED])


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.9.9.9", "[::1]", "[::1]:8000"]
)
def test_a_name_of_loopback_is_local(host: str):
    AdminAccess(None, is_local=True).check([("host", host)])


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example:8000"],
        ["localhost.evil.example"],
        ["evil.example@localhost"],
        ["127.0.0.1.evil.example"],
        ["[::1"],
        [":8000"],
        [""],
        ["localhost", "evil.example"],
    ],
)
def test_a_page_that_calls_itself_loopback_is_refused(hosts: list[str]):
    headers = [("host", host) for host in hosts]
    with pytest.raises(Forbidden, match="no other `Host`"):
        AdminAccess(None, is_local=True).check(headers)
    AdminAccess(KEY, is_local=True).check([*headers, AUTHORIZED])


@pytest.mark.parametrize("other", [f"Bearer {KEY}", "Bearer x", ""])
def test_one_key_is_enough(other: str):
    for keys in ([AUTHORIZED, ("authorization", other)], [("authorization", other), AUTHORIZED]):
        with pytest.raises(Unauthenticated, match="several"):
            AdminAccess(KEY, is_local=True).check(keys)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    ("authorization", "message"),
    [
        (None, "is missing"),
        ("", "is missing"),
        ("Bearer", "is missing"),
        (KEY, "is missing"),
        (f"Basic {KEY}", "is missing"),
        ("Bearer s3cre", "is not the"),
        (f"Bearer {KEY}x", "is not the"),
        ("Bearer S3CRET", "is not the"),
        ("Bearer \udcff", "is not the"),
        ("Bearer ü", "is not the"),
    ],
)
def test_a_wrong_key_is_refused_wherever_it_comes_from(is_local: bool, authorization, message):
    headers = [] if authorization is None else [("authorization", authorization)]
    with pytest.raises(Unauthenticated, match=message):
        AdminAccess(KEY, is_local=is_local).check(headers)


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY} "])
def test_the_key_opens(authorization: str):
    AdminAccess(KEY, is_local=False).check([("authorization", authorization)])


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("origin", ["http://localhost:8000", "null", ""])
def test_web_pages_are_refused_even_with_the_key(key, origin: str):
    with pytest.raises(Forbidden, match="Web pages"):
        AdminAccess(key, is_local=True).check([AUTHORIZED, ("origin", origin)])
