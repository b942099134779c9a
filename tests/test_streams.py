"""Hashes of all streams of problems: training sequences, held-out ones, and questions."""

import hashlib

import pytest

from arithmetic import TASKS as ARITHMETIC
from arithmetic import Problems
from tape.tasks.generated import GeneratedSequences
from tape.tasks.passkey.passkey_task import PasskeyQuestions
from tape.tasks.passkey.prompts import BENCHMARK, Draft, original_prompt
from tape.tasks.passkey.sequences import Passkeys
from tape.tasks.synthetic.generators import TASKS
from tape.tasks.synthetic.problems import Synthetic

SOURCES = {
    "addition": [
        Problems(task, 4, 3, **settings)
        for task in ARITHMETIC
        for settings in ({}, {"leading_zeros": True}, {"spaces": 0.3})
    ],
    "passkey": [Passkeys(64), Passkeys(128, 2, 2)],
    "synthetic": [Synthetic(name, task.shortest, task.trained) for name, task in TASKS.items()],
}


def questions(source):
    if isinstance(source, Problems):
        cells = ((n, m) for n in (1, 3, 5) for m in (1, 2, 6))
        return [text for cell in cells for each in source.evaluation(*cell, 5, 1) for text in each]
    if isinstance(source, Synthetic):
        blocks = (source.evaluation(n, 5, 1) for n in (source.min_length, source.max_length))
        return [rows for block in blocks for rows in block]
    length = 2 * source.max_length
    asked = PasskeyQuestions(length, length, 2, 3, 1, source.keys, source.values, plain=True)
    (group,) = asked.groups(source.tokenizer())
    prompts = [(each.prompt, each.answer.answer) for each in group]
    others = [original_prompt(1000, n) for n in range(3)]
    others += [Draft(BENCHMARK, 0.3, (0, n), n, n).fitted(2000, len) for n in (1, 2)]
    return [text for pair in (*prompts, *((x.text, x.answer) for x in others)) for text in pair]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("addition", ("c9a46dded57d478e", "a80f106fbbf31880", "9ce83115d333bc92")),
        ("passkey", ("9bc07a8f53535a44", "07052a8a86fad7de", "07473c9f58827cc9")),
        ("synthetic", ("d528614e08c45a05", "9fcb21c4dd0ea21e", "4bbba079a9c942b7")),
    ],
)
def test_streams_never_change(name, expected):
    digests = [hashlib.sha256() for _ in range(3)]
    for source in SOURCES[name]:
        for digest, held_out in zip(digests, (False, True), strict=False):
            for row in GeneratedSequences(source, 10, seed=3, held_out=held_out):
                for values in (row["input_ids"], row["labels"]):
                    digest.update(values.numpy().astype("<i8").tobytes())
        for each in questions(source):
            digests[2].update(each.encode() if isinstance(each, str) else each.tobytes())
    assert tuple(digest.hexdigest()[:16] for digest in digests) == expected
