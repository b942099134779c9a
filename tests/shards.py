"""Tiny shards in the form of C4, for tests."""

import gzip
import json

WORDS = ["sheep", "goats", "cows", "hens", "dogs", "cats", "mice", "bees", "owls", "frogs"]


def text_of(shard: str, number: int) -> str:
    many = 3 + number * 7 % 23
    return f"{shard} {number}: " + " ".join(WORDS[n * n % (7 + number % 3)] for n in range(many))


def record(text: str) -> bytes:
    row = {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org/a"}
    return json.dumps(row).encode() + b"\n"


def name_of(split: str, number: int, total: int | None = None) -> str:
    total = total or {"train": 1024, "validation": 8}[split]
    return f"c4-{split}.{number:05}-of-{total:05}.json.gz"


def shard_bytes(name: str, documents: int = 30) -> bytes:
    lines = b"".join(record(text_of(name[3:14], number)) for number in range(documents))
    return gzip.compress(lines, mtime=0)


def write_shards(folder, train=(7, 0, 300, 1023), validation=(0, 5), documents=30):
    """A folder with some of the official shards; their texts say where they come from."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, numbers in (("train", train), ("validation", validation)):
        for number in numbers:
            name = name_of(split, number)
            (folder / name).write_bytes(shard_bytes(name, documents))
    return folder
