"""What a session keeps of finished requests: which tokens, and how much at most."""

from __future__ import annotations

import pytest

from cadenza.service.errors import InvalidRequest, UnknownRequest
from cadenza.service.events import Delta, Finished, FinishReason
from cadenza.service.rpc.transcripts import MAX_KEPT, Transcript, TranscriptBudget, Transcripts

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def output(*token_ids: int, choice: int = 0) -> Delta:
    return Delta(choice=choice, text="", token_ids=token_ids)


def end_of(
    choice: int = 0, reason: FinishReason = LENGTH, stop_reason: str | int | None = None
) -> Finished:
    return Finished(choice=choice, reason=reason, stop_reason=stop_reason, completion_tokens=1)


def transcript_of(*tokens: int, tells_stop: bool = False, **end: object) -> Transcript:
    """Of a prompt [1, 2] and one output."""
    transcript = Transcript([1, 2], None, tells_stop=tells_stop)
    for token in tokens:
        transcript.add(output(token))
    transcript.add(end_of(**end))
    return transcript


def test_the_prompt_and_the_output_are_gone_on_from():
    former = transcript_of(7, 8, 9).former(0)

    assert list(former.token_ids) == [1, 2, 7, 8, 9]
    assert not former.turn_ended


def test_outputs_of_several_choices_are_kept_apart():
    transcript = Transcript([1], None, tells_stop=False)
    for choice, token in ((0, 5), (1, 6), (0, 7), (1, 8)):
        transcript.add(output(token, choice=choice))
    for choice, reason in ((1, LENGTH), (0, STOP)):
        transcript.add(end_of(choice, reason))
    formers = [transcript.former(choice) for choice in (0, 1)]

    assert [list(former.token_ids) for former in formers] == [[1, 5, 7], [1, 6, 8]]
    assert [former.turn_ended for former in formers] == [True, False]


@pytest.mark.parametrize(
    ("end", "tells_stop", "is_ended"),
    [
        ({"reason": LENGTH}, False, False),
        ({"reason": STOP}, False, True),
        ({"reason": STOP}, True, True),
        ({"reason": STOP, "stop_reason": 9}, False, True),
        ({"reason": STOP, "stop_reason": 9}, True, False),
        ({"reason": STOP, "stop_reason": 0}, False, True),
        ({"reason": STOP, "stop_reason": "x"}, False, False),
        ({"reason": STOP, "stop_reason": ""}, False, False),
    ],
)
def test_a_token_that_ended_the_turn_and_is_no_text_is_known(end, tells_stop, is_ended):
    assert transcript_of(7, 9, tells_stop=tells_stop, **end).former(0).turn_ended is is_ended


def test_a_choice_without_output_has_no_token_that_ended_it():
    assert not transcript_of(reason=STOP).former(0).turn_ended


def test_the_oldest_is_forgotten_where_there_are_too_many():
    kept = Transcripts(max_kept=2)
    for name in "abc":
        kept.finished(name, transcript_of(7))

    with pytest.raises(UnknownRequest, match=r"No finished request 'a' is kept.*latest 2"):
        kept.find("a", 0)
    assert [list(kept.find(name, 0).former(0).token_ids) for name in "bc"] == [[1, 2, 7]] * 2


def test_the_oldest_are_forgotten_where_they_have_too_many_tokens():
    kept = Transcripts(max_tokens=9)
    for name in "abc":  # 3 tokens each
        kept.finished(name, transcript_of(7))
    kept.finished("d", transcript_of(7, 8, 9))

    for name in "ab":
        with pytest.raises(UnknownRequest):
            kept.find(name, 0)
    assert kept.find("c", 0).num_tokens + kept.find("d", 0).num_tokens == 8


def test_one_that_is_too_long_is_not_kept_and_leaves_the_others():
    kept = Transcripts(max_tokens=4)
    kept.finished("a", transcript_of(7, 8))
    kept.finished("b", transcript_of(7, 8, 9))

    with pytest.raises(UnknownRequest, match="'b' has 5 tokens, too many to be kept"):
        kept.find("b", 0)
    assert kept.find("a", 0).num_tokens == 4


def test_one_that_is_too_long_takes_the_place_of_the_older_one_of_its_name():
    kept = Transcripts(max_tokens=4)
    kept.finished("a", transcript_of(7))
    kept.finished("a", transcript_of(7, 8, 9))
    with pytest.raises(UnknownRequest, match="too many to be kept"):
        kept.find("a", 0)

    kept.finished("a", transcript_of(7, 8))
    assert kept.find("a", 0).num_tokens == 4


def test_a_name_used_anew_has_the_tokens_of_the_latest():
    kept = Transcripts(max_tokens=6)
    for _ in range(5):
        kept.finished("a", transcript_of(7))
    kept.finished("b", transcript_of(8))

    assert list(kept.find("a", 0).former(0).token_ids) == [1, 2, 7]


def test_failures_leave_what_is_kept_and_are_bounded_too():
    kept = Transcripts(max_kept=2)
    kept.finished("a", transcript_of(7))
    kept.failed("a")
    assert kept.find("a", 0)

    kept.failed("b")
    with pytest.raises(UnknownRequest, match="'b' failed or was cancelled"):
        kept.find("b", 0)
    for number in range(100):
        kept.failed(str(number))
    with pytest.raises(UnknownRequest, match="No finished request 'b'"):
        kept.find("b", 0)


def test_failures_take_no_place_of_what_is_kept():
    kept = Transcripts()
    kept.finished("a", transcript_of(7))
    for number in range(MAX_KEPT):
        kept.failed(str(number))

    assert kept.find("a", 0)


def test_a_name_that_failed_and_then_finished_is_found_until_it_is_forgotten():
    kept = Transcripts(max_kept=1)
    kept.failed("a")
    kept.finished("a", transcript_of(7))
    assert kept.find("a", 0)

    kept.finished("b", transcript_of(7))
    with pytest.raises(UnknownRequest, match="No finished request 'a' is kept"):
        kept.find("a", 0)


def test_all_streams_together_keep_what_finished_last():
    budget = TranscriptBudget(max_tokens=9)
    one, other = Transcripts(budget=budget), Transcripts(budget=budget)
    one.finished("a", transcript_of(7))  # 3 tokens each
    other.finished("a", transcript_of(7))
    one.finished("b", transcript_of(7))
    other.finished("b", transcript_of(7))
    with pytest.raises(UnknownRequest, match=r"No finished request 'a'.*server's streams"):
        one.find("a", 0)
    assert other.find("a", 0)
    assert one.find("b", 0)

    one.finished("b", transcript_of(7))
    one.finished("c", transcript_of(7))
    with pytest.raises(UnknownRequest):
        other.find("a", 0)
    assert other.find("b", 0)


def test_a_stream_that_ends_gives_its_part_back():
    budget = TranscriptBudget(max_tokens=6)
    one, other = Transcripts(budget=budget), Transcripts(budget=budget)
    other.finished("a", transcript_of(7))
    one.finished("a", transcript_of(7))
    one.close()
    other.finished("b", transcript_of(7))

    assert other.find("a", 0)
    assert other.find("b", 0)


def test_a_choice_that_was_not_is_refused():
    kept = Transcripts()
    kept.finished("a", transcript_of(7))

    with pytest.raises(InvalidRequest, match="the last of 'a' is 0") as error:
        kept.find("a", 1)
    assert error.value.field == "choice"
