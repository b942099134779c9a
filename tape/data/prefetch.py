"""Computes the next items of an iterator while the present one is used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Full, Queue
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 0.1  # seconds between looks at whether the consumer has left


def prefetch(items: Iterator[T], count: int = 1) -> Iterator[T]:
    """Yields the same items, of which a thread computes up to `count` + 1 ahead. Its errors are
    raised at their place. The thread ends with the iterator, or once that is closed."""
    ready: Queue[tuple[bool, T | BaseException | None]] = Queue(count)
    left = threading.Event()

    def put(more: bool, item: T | BaseException | None) -> bool:
        while not left.is_set():
            try:
                ready.put((more, item), timeout=PATIENCE)
            except Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(True, item):
                    return
            put(False, None)
        except BaseException as error:
            put(False, error)

    thread = threading.Thread(target=work, daemon=True, name="ahead")
    thread.start()
    try:
        while True:
            more, item = ready.get()
            if more:
                yield item
            elif item is None:
                return
            else:
                raise item
    finally:
        left.set()
        thread.join()
