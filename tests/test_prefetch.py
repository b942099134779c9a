"""A thread that computes the items of an iterator ahead of their use."""

import threading
import time
from itertools import count, islice

import pytest

from tape.data.prefetch import prefetch


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "ahead"]


def test_the_same_items_in_order_and_no_thread_left():
    assert list(prefetch(iter(range(50)))) == [*range(50)]
    assert list(prefetch(iter([]))) == []
    assert list(islice(prefetch(count()), 5)) == [*range(5)]
    assert threads() == []


def test_the_next_items_are_computed_meanwhile_but_no_more():
    made, enough = [], threading.Event()

    def items():
        for number in count():
            made.append(number)
            if number == 2:
                enough.set()
            yield number

    found = prefetch(items())
    assert next(found) == 0
    assert enough.wait(10)  # the second waits in the queue, the third for a place in it
    time.sleep(0.3)
    assert made == [0, 1, 2]
    found.close()
    assert threads() == []


def test_an_error_is_raised_at_its_place():
    def items():
        yield 1
        yield 2
        raise ValueError("a bad shard")

    found = prefetch(items())
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(ValueError, match="a bad shard"):
        next(found)
    assert threads() == []
