"""Hashes of all streams of problems: training sequences, held-out ones, and questions."""

import hashlib

import numpy as np
import pytest

from arithmetic.problems import Problems
from tape.tasks.generated import GeneratedSequences
from tape.tasks.passkey.passkey_task import PasskeyQuestions
from tape.tasks.passkey.sequences import BENCHMARK, Draft, Passkeys, original_prompt
from tape.tasks.synthetic.problems import EVALUATION, TASKS, Synthetic

SOURCES = {
    "addition": [Problems(4, 3), Problems(1, 1), Problems(20, 40)],
    "passkey": [Passkeys(64), Passkeys(128, 2, 2)],
    "synthetic": [Synthetic(name, task.shortest, task.trained) for name, task in TASKS.items()],
}


def questions(source):
    if isinstance(source, Problems):
        cells = ((n, m) for n in (1, 3, 5) for m in (1, 2, 6))
        return [text for cell in cells for each in source.evaluation(*cell, 5, 1) for text in each]
    if isinstance(source, Synthetic):
        lengths = (source.min_length, source.max_length, source.of.tested)
        blocks = (source.draw(1, EVALUATION, np.arange(5), n) for n in lengths)
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
        ("addition", ("bb9f0c8ac2169bd8", "7952773cbcd78de3", "6bbca64826ca5fae")),
        ("passkey", ("9bc07a8f53535a44", "07052a8a86fad7de", "07473c9f58827cc9")),
        ("synthetic", ("299d6065630c877a", "4816cff88a38a1e9", "9353f069183ed2cc")),
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


each_source = pytest.mark.parametrize(
    "source", [Problems(), Passkeys(90, keys=2), Synthetic("copy", 1, 9)], ids=type
)


@each_source
def test_a_sequence_is_the_same_whenever_it_is_read(source):
    total = min(2 * source.CHUNK, 2048) + 10
    data, again = (GeneratedSequences(source, n, seed=7) for n in (total, 10 * total))
    for i in (total - 1, 0, total // 2, 3):
        assert data[i]["input_ids"].tolist() == again[i]["input_ids"].tolist()
        assert data[i]["labels"].shape == (source.length,)
    others = GeneratedSequences(source, 20, 8), GeneratedSequences(source, 20, 7, held_out=True)
    rows, *other = ([x[i]["input_ids"].tolist() for i in range(12)] for x in (data, *others))
    assert rows not in other
    with pytest.raises(IndexError):
        data[total]


@each_source
def test_settings_are_saved_beside_a_model(source, tmp_path):
    source.save(tmp_path)
    assert type(source).load(tmp_path) == source
    file = tmp_path / source.FILE
    if isinstance(source, Problems):
        former = '{"max_first": 3, "task": "addition", "spaces": 0.0}'
        file.write_text(former)
        assert Problems.load(tmp_path) == Problems(max_first=3)
        file.write_text(former.replace("addition", "sorting"))
        with pytest.raises(ValueError, match="takes no argument 'task'"):
            Problems.load(tmp_path)
    file.write_text('{"max_lenth": 3}')
    with pytest.raises(ValueError, match="takes no argument 'max_lenth'"):
        type(source).load(tmp_path)
    with pytest.raises(ValueError, match=f"has no {source.FILE}"):
        type(source).load(tmp_path / "elsewhere")
