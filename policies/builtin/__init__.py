"""The policies that come with Cadenza, one a file, by the name a profile gives."""

from cadenza.policies.builtin.bounded_overtake import BoundedOvertake
from cadenza.policies.builtin.calibrated import Calibrated
from cadenza.policies.builtin.cheapest import Cheapest
from cadenza.policies.builtin.cost_model import CheapestWayBack
from cadenza.policies.builtin.edf import Edf
from cadenza.policies.builtin.fair_share import FairShare
from cadenza.policies.builtin.fcfs import Fcfs
from cadenza.policies.builtin.fewest_generated import FewestGenerated
from cadenza.policies.builtin.hrrn import Hrrn
from cadenza.policies.builtin.least_laxity import LeastLaxity
from cadenza.policies.builtin.leaves_first import LeavesFirst
from cadenza.policies.builtin.lowest_priority import LowestPriority
from cadenza.policies.builtin.max_wait import MaxWait
from cadenza.policies.builtin.mlfq import Mlfq
from cadenza.policies.builtin.new_token_ratio import NewTokenRatio
from cadenza.policies.builtin.newcomer import Newcomer
from cadenza.policies.builtin.newest import Newest
from cadenza.policies.builtin.no_evict import NoEvict
from cadenza.policies.builtin.no_prediction import NoPrediction
from cadenza.policies.builtin.no_reservation import NoReservation
from cadenza.policies.builtin.nobody import Nobody
from cadenza.policies.builtin.observed_lengths import ObservedLengths
from cadenza.policies.builtin.oldest_block import OldestBlock
from cadenza.policies.builtin.past_future import PastFuture
from cadenza.policies.builtin.prefix_aware import PrefixAware
from cadenza.policies.builtin.prefix_fair import PrefixFair
from cadenza.policies.builtin.priority import Priority
from cadenza.policies.builtin.queue_limit import QueueLimit
from cadenza.policies.builtin.recompute import Recompute
from cadenza.policies.builtin.shortest_prefill import ShortestPrefill
from cadenza.policies.builtin.srpt_limited import SrptLimited
from cadenza.policies.builtin.strict_priority import StrictPriority
from cadenza.policies.builtin.swap import Swap
from cadenza.policies.builtin.tenant_quota import TenantQuota
from cadenza.policies.builtin.tpot_target import TpotTarget
from cadenza.policies.builtin.ttft_target import TtftTarget

BUILTIN: dict[str, type] = {
    policy.name: policy
    for policy in (
        BoundedOvertake,
        Calibrated,
        Cheapest,
        CheapestWayBack,
        Edf,
        FairShare,
        Fcfs,
        FewestGenerated,
        Hrrn,
        LeastLaxity,
        LeavesFirst,
        LowestPriority,
        MaxWait,
        Mlfq,
        NewTokenRatio,
        Newcomer,
        Newest,
        NoEvict,
        NoPrediction,
        NoReservation,
        Nobody,
        ObservedLengths,
        OldestBlock,
        PastFuture,
        PrefixAware,
        PrefixFair,
        Priority,
        QueueLimit,
        Recompute,
        ShortestPrefill,
        SrptLimited,
        StrictPriority,
        Swap,
        TenantQuota,
        TpotTarget,
        TtftTarget,
    )
}

DEFAULTS: dict[str, str] = {
    "predict_lengths": NoPrediction.name,
    "plan_budget": Calibrated.name,
    "order_admissions": Fcfs.name,
    "reserve_blocks": NewTokenRatio.name,
    "select_victims": Newest.name,
    "allow_displacement": Nobody.name,
    "choose_preemption": CheapestWayBack.name,
    "rank_cached_blocks": OldestBlock.name,
    "guard_starvation": BoundedOvertake.name,
    "gate_arrivals": QueueLimit.name,
    "shed_load": Newcomer.name,
}

__all__ = [
    "BUILTIN",
    "DEFAULTS",
    "BoundedOvertake",
    "Calibrated",
    "Cheapest",
    "CheapestWayBack",
    "Edf",
    "FairShare",
    "Fcfs",
    "FewestGenerated",
    "Hrrn",
    "LeastLaxity",
    "LeavesFirst",
    "LowestPriority",
    "MaxWait",
    "Mlfq",
    "NewTokenRatio",
    "Newcomer",
    "Newest",
    "NoEvict",
    "NoPrediction",
    "NoReservation",
    "Nobody",
    "ObservedLengths",
    "OldestBlock",
    "PastFuture",
    "PrefixAware",
    "PrefixFair",
    "Priority",
    "QueueLimit",
    "Recompute",
    "ShortestPrefill",
    "SrptLimited",
    "StrictPriority",
    "Swap",
    "TenantQuota",
    "TpotTarget",
    "TtftTarget",
]
