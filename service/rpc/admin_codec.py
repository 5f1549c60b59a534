"""Between the protobuf messages of the admin service and our own words."""

from __future__ import annotations

from datetime import timedelta

from google.protobuf import duration_pb2, struct_pb2

from cadenza.service.detokenizer import encodable
from cadenza.service.timelines import ChoiceStatus, Record, RequestStatus
from cadenza.v1 import admin_pb2 as pb
from cadenza.wire.messages import Counters, Ready


def to_engine(limits: Ready, counters: Counters) -> pb.EngineSnapshot:
    return pb.EngineSnapshot(
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        block_size=limits.block_size,
        total_blocks=limits.num_blocks,
        total_host_blocks=limits.num_host_blocks,
        running=counters.running,
        waiting=counters.waiting,
        parked=counters.parked,
        swapped=counters.swapped,
        free_blocks=counters.free_blocks,
        cached_blocks=counters.cached_blocks,
        free_host_blocks=counters.free_host_blocks,
        steps=counters.steps,
        preemptions=counters.preemptions,
        generated_tokens=counters.generated_tokens,
        computed_tokens=counters.computed_tokens,
        prefix_queries=counters.prefix_queries,
        prefix_hits=counters.prefix_hits,
    )


def to_request_snapshot(name: str, status: RequestStatus) -> pb.RequestSnapshot:
    subject = status.subject
    return pb.RequestSnapshot(
        id=name,
        model=encodable(subject.model),
        tenant=encodable(subject.tenant),
        created=subject.created,
        prompt_tokens=subject.prompt_tokens,
        cached_tokens=status.cached_tokens,
        choices=map(_choice, status.choices),
    )


def to_record(record: Record, began_s: float) -> pb.TimelineRecord:
    """`began_s`: monotonic, from when on the record's time counts."""
    time = duration_pb2.Duration()
    time.FromTimedelta(timedelta(seconds=record.time_s - began_s))
    facts = struct_pb2.Struct()
    facts.update({name: _fact(value) for name, value in record.facts.items()})
    return pb.TimelineRecord(
        choice=record.choice, kind=record.kind, step_id=record.step_id, time=time, facts=facts
    )


def _choice(choice: ChoiceStatus) -> pb.ChoiceSnapshot:
    return pb.ChoiceSnapshot(
        state=choice.state,
        reason=choice.reason or "",
        generated_tokens=choice.generated_tokens,
        preemptions=choice.preemptions,
    )


def _fact(value: bool | float | str) -> bool | float | str:
    return encodable(value) if isinstance(value, str) else value
