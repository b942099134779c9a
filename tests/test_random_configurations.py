"""Configurations and calls drawn at random. A failing draw is printed as the line of code that
repeats it: `check(Case(...))`.
"""

import random
import re

import pytest
from cases import GENERATIONS, Case, check
from conftest import CACHES, WITHOUT_SOFTMAX
from every_encoding import COUNTED, GROUPED, POSITIONS

MIXTURES = ("mixed", "mixed_tape", "mixed_read", "mixed_2026")
MIXABLE = [
    name
    for name in GROUPED
    if name in COUNTED
    and "sampler" not in POSITIONS[name]
    and name not in (*MIXTURES, *WITHOUT_SOFTMAX, "randpe")
]


def drawn(seed: int) -> Case:
    rng = random.Random(seed)
    position = rng.choice([*POSITIONS, *["mixture"] * 6])
    counts, grouped = (position in (*names, "mixture") for names in (COUNTED, GROUPED))
    if position == "mixture":
        entries = [POSITIONS[name] for name in rng.sample(MIXABLE, 2)]
        entries[0] = entries[0] | {"window": rng.randint(1, 5)}
        position = {"name": "mixed", "pattern": entries}
    how = rng.choice(["whole", "documents", "cached", "cached", "generated"])
    changes = {
        "sliding_window": rng.choice([None, None, 1, 3, 6]),
        "num_recurrences": rng.choice([1, 1, 2]),
        "qk_norm": rng.random() < 0.3,
        "attention_sink": rng.random() < 0.3,
        "scalable_softmax": rng.choice([False, False, True, {"length": 3}]),
        "exclusive_attention": rng.random() < 0.3,
        "gated_attention": rng.random() < 0.3,
        "query_temperature": rng.choice([None, None, {"scale": 0.5, "length": 3}]),
        "num_key_value_heads": rng.choice([4, 2, 1]) if grouped else 4,
    }
    if position in WITHOUT_SOFTMAX:
        changes |= {"attention_sink": False, "scalable_softmax": False}
    if not counts:
        changes["query_temperature"] = None
    length = rng.randint(2, 14)
    rows = tuple(row(rng, length, 3 if how == "documents" else 1) for _ in range(rng.randint(1, 3)))
    given = {rng.choice([None, "embeddings", "gaps"])} if counts else set()
    if how == "generated":
        rows, given = tuple(text.replace(".", "").rjust(length, ".") for text in rows), set()
    elif all("." not in text for text in rows) and counts:
        given.add(rng.choice([None, "4-D", "additive"]))
    if how == "documents" and not given & {"4-D", "additive"}:
        given.discard("gaps")  # position_ids with document_ids are refused
    return Case(
        position,
        rows,
        kernel=rng.choice(["eager", "sdpa"]),
        calls=pieces(rng, length) if how == "cached" else (),
        cache=rng.choice(CACHES) if how == "cached" else None,
        given=tuple(sorted(given - {None})),
        generate=rng.choice([*GENERATIONS]) if how == "generated" else None,
        changes={name: value for name, value in changes.items() if value},
    )


def row(rng: random.Random, length: int, documents: int) -> str:
    """At least one token, and padding anywhere or nowhere."""
    padding = rng.choice([0, 0, 0.3])
    cuts = sorted(rng.randint(0, length) for _ in range(documents - 1))
    slots = ["abc"[sum(cut <= slot for cut in cuts)] for slot in range(length)]
    kept = rng.randrange(length)
    return "".join(
        "." if slot != kept and rng.random() < padding else slots[slot] for slot in range(length)
    )


def pieces(rng: random.Random, length: int) -> tuple[int, ...]:
    found = []
    while sum(found) < length:
        found.append(min(rng.choice([1, 1, 2, 3, 5, 8]), length - sum(found)))
    return tuple(found)


REFUSED = re.compile("reads token ids|the number of a layer|whose state layers update")
MANY = [pytest.param(n, marks=pytest.mark.slow) for n in range(100, 2100, 100)]


@pytest.mark.parametrize("first", [0, *MANY])
def test_drawn(first):
    for seed in range(first, first + 100):
        case = drawn(seed)
        try:
            check(case)
        except Exception as error:
            if not (isinstance(error, ValueError) and REFUSED.search(str(error))):
                raise AssertionError(f"check({case})") from error
