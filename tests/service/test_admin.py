"""Who may administer the service."""

import pytest

from cadenza.service.admin import AdminAccess
from cadenza.service.errors import Forbidden, Unauthenticated

KEY = "s3cret"


def test_without_a_key_only_a_local_service_is_open():
    AdminAccess(None, is_local=True).check(None, None)
    AdminAccess(None, is_local=True).check("Bearer anything", None)
    with pytest.raises(Forbidden, match=r"no administrator's key.*--admin-api-key"):
        AdminAccess(None, is_local=False).check("Bearer anything", None)


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
    with pytest.raises(Unauthenticated, match=message):
        AdminAccess(KEY, is_local=is_local).check(authorization, None)


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY} "])
def test_the_key_opens(authorization: str):
    AdminAccess(KEY, is_local=False).check(authorization, None)


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("origin", ["http://localhost:8000", "null", ""])
def test_web_pages_are_refused_even_with_the_key(key, origin: str):
    with pytest.raises(Forbidden, match="Web pages"):
        AdminAccess(key, is_local=True).check(f"Bearer {KEY}", origin)
