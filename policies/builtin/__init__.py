"""The policies that come with Cadenza, one a file, by the name a profile gives."""

from cadenza.policies.builtin.bounded_overtake import BoundedOvertake
from cadenza.policies.builtin.fcfs import Fcfs
from cadenza.policies.builtin.new_token_ratio import NewTokenRatio
from cadenza.policies.builtin.newest import Newest
from cadenza.policies.builtin.no_reservation import NoReservation
from cadenza.policies.builtin.recompute import Recompute

BUILTIN: dict[str, type] = {
    policy.name: policy
    for policy in (BoundedOvertake, Fcfs, NewTokenRatio, Newest, NoReservation, Recompute)
}

DEFAULTS: dict[str, str] = {
    "order_admissions": Fcfs.name,
    "reserve_blocks": NewTokenRatio.name,
    "select_victims": Newest.name,
    "choose_preemption": Recompute.name,
    "guard_starvation": BoundedOvertake.name,
}

__all__ = [
    "BUILTIN",
    "DEFAULTS",
    "BoundedOvertake",
    "Fcfs",
    "NewTokenRatio",
    "Newest",
    "NoReservation",
    "Recompute",
]
