import gc
import weakref

from cadenza.wire.heap import freeze_heap


class Node:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_garbage_goes_and_the_rest_is_looked_at_no_more() -> None:
    kept = Node()
    lost = weakref.ref(Node())

    freeze_heap()

    assert lost() is None
    assert not any(each is kept for each in gc.get_objects())


def test_the_whole_heap_is_walked_over_less_often_than_python_would() -> None:
    before = gc.get_threshold()

    freeze_heap()

    assert gc.get_threshold()[:2] == before[:2]  # what dies young is found as before
    assert gc.get_threshold()[2] >= 10 * before[2]
