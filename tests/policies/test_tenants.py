"""Tenants' numbers: small, kept while they matter, and bounded."""

from cadenza.policies.tenants import MAX_IDLE, NO_TENANT, Tenants


def test_nobody_in_particular_is_number_zero():
    tenants = Tenants()

    assert tenants.enter("") == NO_TENANT
    tenants.leave(NO_TENANT)
    tenants.hold(NO_TENANT)
    assert tenants.enter("a") == 1


def test_a_name_keeps_its_number_over_an_idle_time():
    tenants = Tenants()
    first, other = tenants.enter("a"), tenants.enter("b")
    tenants.leave(first)

    assert other != first
    assert tenants.enter("a") == first


def test_the_longest_idle_number_is_given_away_once_many_are_idle():
    tenants = Tenants()
    busy = tenants.enter("busy")
    for name in range(MAX_IDLE):
        tenants.leave(tenants.enter(f"idle {name}"))
    first = tenants.enter("idle 0")
    tenants.leave(first)  # now the latest to become idle

    assert tenants.enter("new") == busy + 2  # the number of "idle 1"
    assert tenants.enter("busy") == busy
    assert tenants.enter("idle 0") == first


def test_numbers_are_no_more_than_tenants_told_apart():
    tenants = Tenants()
    for name in range(5 * MAX_IDLE):
        number = tenants.enter(f"{name}")
        assert number <= MAX_IDLE + 1
        tenants.leave(number)


def test_a_tenant_with_two_rows_is_not_idle_after_one_has_left():
    tenants = Tenants()
    number = tenants.enter("a")
    tenants.hold(number)
    tenants.leave(number)
    for name in range(2 * MAX_IDLE):
        tenants.leave(tenants.enter(f"{name}"))

    assert tenants.enter("a") == number
