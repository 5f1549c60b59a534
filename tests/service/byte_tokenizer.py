"""A tiny byte-level tokenizer: every byte is a token, a few merges, three control tokens."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from cadenza.service.chat_template import ChatTemplate
from cadenza.service.tokenizer import Tokenizer

TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif -%}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""


def make_tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("Ġ", "w")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    controls = ("<|end|>", "<|im_start|>", "<|im_end|>")
    backend.add_tokens([AddedToken(text, special=True, normalized=False) for text in controls])
    return Tokenizer(backend, ChatTemplate(template) if template else None)
