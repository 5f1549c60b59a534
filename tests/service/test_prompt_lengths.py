"""What is known of a prompt's length before it is encoded."""

from __future__ import annotations

from cadenza.service.prompt import Prompt
from cadenza.service.prompt_lengths import PromptLengths
from cadenza.service.request import Former

FORMER = Former(token_ids=range(1000))


def test_tokens_that_come_from_another_request_are_counted_as_they_are():
    lengths = PromptLengths()

    assert lengths.of(Prompt(token_ids=[1, 2], former=FORMER)) == 1002
    assert lengths.of(Prompt(token_ids=(), former=FORMER)) == 1000
    assert lengths.of(Prompt(text="x" * 40, former=FORMER)) == 1010


def test_tokens_that_come_from_another_request_teach_nothing_about_characters():
    lengths, others = PromptLengths(), PromptLengths()
    for _ in range(100):
        lengths.learn(Prompt(text="x" * 10, former=FORMER), 1020)
        others.learn(Prompt(text="x" * 10), 20)
    lengths.learn(Prompt(text="x" * 10, former=FORMER), 5)  # truncated

    assert lengths.of(Prompt(text="x" * 100)) <= others.of(Prompt(text="x" * 100)) == 200
