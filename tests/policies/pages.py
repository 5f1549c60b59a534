"""Pages of docs/ in blocks of code, each with the mark in the comment before it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"

_BLOCK = re.compile(r"(?:<!-- (\w+)(?:: (\S+))? -->\n)?```(\w+)\n(.*?)```\n", re.DOTALL)


class Block(NamedTuple):
    """What stands between two fences."""

    mark: str  # such as `file`; empty if there is none
    name: str  # what the mark is about
    language: str
    content: str


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, in their order."""
    blocks = [Block(*found) for found in _BLOCK.findall(page)]
    assert len(blocks) == page.count("```") // 2, "a block has no language, or a mark is misspelt"
    return blocks
