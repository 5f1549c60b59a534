"""What `pydoc cadenza.testing` shows, as its names are imported when they are first used."""

from __future__ import annotations

import inspect
import pydoc
import re

import cadenza.testing


def test_the_docstring_lists_every_name_once():
    told = inspect.getdoc(cadenza.testing)

    assert told is not None
    listed = re.findall(r"^    (\w+) {2,}\S", told, re.MULTILINE)
    assert sorted(listed) == cadenza.testing.__all__


def test_each_of_them_has_a_page():
    for name in cadenza.testing.__all__:
        assert name in pydoc.render_doc(f"cadenza.testing.{name}", renderer=pydoc.plaintext)
