"""openai-python, unmodified: `check_*` functions, each of which is given a client.

Run as a program in the client's own venv (`checks.py`), and by pytest (`tests/e2e/test_clients`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
from openai import BadRequestError, NotFoundError, OpenAI

from tests.clients.checks import main
from tests.clients.strict_models import validated_client

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
IN_PARTS: Any = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
PROMPT = "The three largest cities of Italy are"
LENGTH = 12  # tokens


def connect(url: str) -> OpenAI:
    """A client whose every response is validated."""
    return OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=validated_client()
    )


def name(client: OpenAI) -> str:
    """The first model that is served."""
    return client.models.list().data[0].id


def chat(client: OpenAI, **fields: Any) -> Any:
    """A greedy chat of LENGTH tokens at most."""
    return client.chat.completions.create(
        **{
            "model": name(client),
            "messages": QUESTION,
            "temperature": 0,
            "max_completion_tokens": LENGTH,
            **fields,
        }
    )


def complete(client: OpenAI, **fields: Any) -> Any:
    """A greedy completion of just LENGTH tokens."""
    return client.completions.create(
        **{
            "model": name(client),
            "prompt": PROMPT,
            "temperature": 0,
            "max_tokens": LENGTH,
            "extra_body": {"ignore_eos": True},
            **fields,
        }
    )


def check_models(client: OpenAI) -> None:
    """Models are listed and looked up."""
    [model] = client.models.list().data
    assert client.models.retrieve(model.id) == model


def check_chat(client: OpenAI) -> None:
    """A chat is answered whole, and its stream's deltas join to the same."""
    whole = chat(client)
    [choice] = whole.choices
    assert choice.message.role == "assistant"
    parts = [part for chunk in chat(client, stream=True) for part in chunk.choices]
    assert parts[0].delta.role == "assistant"
    assert "".join(part.delta.content or "" for part in parts) == choice.message.content
    assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]


def check_content_in_parts(client: OpenAI) -> None:
    """A message's text may come as a list of parts."""
    assert chat(client, messages=IN_PARTS).choices == chat(client).choices


def check_completion(client: OpenAI) -> None:
    """A completion is answered whole, and its stream's parts join to the same."""
    whole = complete(client)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == LENGTH
    parts = [part for chunk in complete(client, stream=True) for part in chunk.choices]
    assert "".join(part.text for part in parts) == whole.choices[0].text


def check_several_prompts(client: OpenAI) -> None:
    """Texts and token ids as a list of prompts, each with its choices in order."""
    whole = complete(client, prompt=["One, two,", "Red, green,"], n=2)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.usage.completion_tokens == 4 * LENGTH
    assert len(complete(client, prompt=[[504, 2240], [504]]).choices) == 2


def check_usage_in_streams(client: OpenAI) -> None:
    """`include_usage` gives one more chunk, without choices, and nothing in those before it."""
    for create in (chat, complete):
        usage = create(client).usage
        told = [*create(client, stream=True, stream_options={"include_usage": True})]
        assert told[-1].choices == []
        assert told[-1].usage.completion_tokens == usage.completion_tokens
        assert told[-1].usage.prompt_tokens == usage.prompt_tokens
        assert all(chunk.usage is None for chunk in told[:-1])


def check_chat_logprobs(client: OpenAI) -> None:
    """Each token's, with the best ones; in streams the same."""
    wanted = {"logprobs": True, "top_logprobs": 3}
    whole = chat(client, **wanted).choices[0].logprobs.content
    assert all(len(token.top_logprobs) == 3 for token in whole)
    assert all(token.logprob <= 0 for token in whole)
    streamed = [
        token
        for chunk in chat(client, stream=True, **wanted)
        for part in chunk.choices
        if part.logprobs
        for token in part.logprobs.content
    ]
    assert [token.token for token in streamed] == [token.token for token in whole]


def check_completion_logprobs(client: OpenAI) -> None:
    """Parallel lists, one element a token; in streams the same."""
    whole = complete(client, logprobs=2).choices[0].logprobs
    lengths = {len(column) for column in (whole.tokens, whole.token_logprobs, whole.text_offset)}
    assert lengths == {LENGTH}
    parts = [part for chunk in complete(client, stream=True, logprobs=2) for part in chunk.choices]
    assert [token for part in parts if part.logprobs for token in part.logprobs.tokens] == (
        whole.tokens
    )


def check_choices(client: OpenAI) -> None:
    """`n=2`: two choices under one seed, whole and streamed alike."""
    wanted = {"n": 2, "seed": 7, "temperature": 1.0}
    whole = chat(client, **wanted)
    texts = {0: "", 1: ""}
    for chunk in chat(client, stream=True, **wanted):
        for part in chunk.choices:
            texts[part.index] += part.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in whole.choices}


def check_stop(client: OpenAI) -> None:
    """A stop string ends the text before it."""
    text = complete(client).choices[0].text
    stop = text.split()[1]
    stopped = complete(client, stop=stop).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == text[: text.index(stop)]


def check_errors(client: OpenAI) -> None:
    """What is wrong is an exception of the right class, which names the field."""
    refused(BadRequestError, "temperature", lambda: chat(client, temperature=3_000))
    refused(BadRequestError, "stop", lambda: chat(client, stream=True, stop=["a"] * 5))
    refused(BadRequestError, "prompt", lambda: complete(client, prompt=[1] * 1_000_000))
    refused(BadRequestError, "tool_choice", lambda: chat(client, tool_choice="required"))
    refused(NotFoundError, "model", lambda: chat(client, model="another"))
    refused(NotFoundError, "model", lambda: client.models.retrieve("another"))
    refused(NotFoundError, None, lambda: client.embeddings.create(model="x", input="x"))


def refused(kind: type[openai.APIStatusError], field: str | None, call: Callable[[], Any]) -> None:
    """Assert that a call raises this."""
    named: list[str | None] = []
    try:
        call()
    except kind as error:
        named.append(error.param)
    assert named == [field], f"the refusal of {field} named {named}"


def check_leaving(client: OpenAI) -> None:
    """A client that closes a stream leaves nothing running."""
    # without validation, which reads a response to its end
    with OpenAI(base_url=client.base_url, api_key="none") as impatient:
        for chunk in chat(impatient, stream=True, max_completion_tokens=1000):
            assert chunk.choices
            break


def check_many_at_once(client: OpenAI) -> None:
    """Eight threads at once are told what one alone is."""
    alone = complete(client).choices[0].text
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: complete(client).choices[0].text, range(8)))
    assert texts == [alone] * 8


if __name__ == "__main__":
    main(globals(), connect)
