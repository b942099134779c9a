"""Generated problems: hashes of all streams, right answers, splits, settings."""

import doctest
import hashlib
import re

import numpy as np
import pytest
from conftest import refuses

from arithmetic.problems import Problems, character_tokenizer
from tape.tasks.generated import GeneratedSequences, is_held_out
from tape.tasks.passkey.passkey_task import PasskeyQuestions
from tape.tasks.passkey.sequences import BENCHMARK, PLAIN, Draft, Passkeys, original_prompt
from tape.tasks.synthetic import problems
from tape.tasks.synthetic.problems import EVALUATION, HELD_OUT, TASKS, TRAINING, Synthetic

SOURCES = {
    "addition": [Problems(4, 3), Problems(1, 1), Problems(20, 40)],
    "passkey": [Passkeys(64), Passkeys(128, 2, 2)],
    "synthetic": [Synthetic(name, task.shortest, task.trained) for name, task in TASKS.items()],
}
SOURCES["association"] = [SOURCES["synthetic"].pop()]
TOKENIZER = character_tokenizer()
each_source = pytest.mark.parametrize(
    "source", [Problems(), Passkeys(90, keys=2), Synthetic("copy", 1, 9)], ids=type
)


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
        ("synthetic", ("3127fa1a440b8f06", "47a56544bb9386f4", "89d0c94c550f7f3b")),
        ("association", ("23740f87904feebd", "dd43bc3d32b33884", "5b73f7e03534e361")),
    ],
)
def test_streams_never_change(name, expected):
    """Training sequences, held-out ones, and questions."""
    digests = [hashlib.sha256() for _ in range(3)]
    for source in SOURCES[name]:
        for digest, held_out in zip(digests, (False, True), strict=False):
            for row in GeneratedSequences(source, 10, seed=3, held_out=held_out):
                for values in (row["input_ids"], row["labels"]):
                    digest.update(values.numpy().astype("<i8").tobytes())
        for each in questions(source):
            digests[2].update(each.encode() if isinstance(each, str) else each.tobytes())
    assert tuple(digest.hexdigest()[:16] for digest in digests) == expected


def splitmix(x):
    """Steele, Lea and Flood 2014, in Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_the_first_four_bits_of_a_hash_hold_a_problem_out():
    assert splitmix(0) == 0xE220A8397B1DCDAF  # its published first output
    values, places = np.arange(12_000).reshape(-1, 3) % 997 - 1, np.array([0, 7, 2**33])
    expected = []
    for row in values.tolist():
        weights = (splitmix(place) for place in places.tolist())
        total = sum((1 + x) * weight for x, weight in zip(row, weights, strict=True))
        expected.append(f"{splitmix(total % 2**64):064b}".startswith("0000"))
    assert is_held_out(values, places).tolist() == expected
    assert np.mean(expected) == pytest.approx(1 / 16, abs=0.01)


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.8, 1.0])
@pytest.mark.parametrize("text", [BENCHMARK, PLAIN], ids=["benchmark", "plain"])
def test_a_pass_key_lies_at_its_depth(text, depth):
    """The share of the garbage before its line, in characters."""
    draft = Draft(text, depth, (3, 1))
    prompt = draft.prompt(draft.stretches(2000)).text
    (line,) = draft.lines
    before, _, after = prompt.partition(line)
    before = before.removeprefix(text.description)
    after = after.removesuffix(draft.question)
    assert draft.values[0] in line and len(before) + len(after) > 1000
    assert len(before) / len(before + after) == pytest.approx(depth, abs=0.01)


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
    (tmp_path / Problems.FILE).write_text('{"max_first": 3, "task": "sorting"}')
    refuses("takes no argument 'task'", Problems.load, tmp_path)
    refuses(f"has no {source.FILE}", type(source).load, tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Problems, {"max_second": 0}, r"max_second=0 must be an integer in 1\.\.10000"),
        (Problems, {"max_second": "5"}, "max_second='5' must be an integer"),
        (Synthetic, {"task": "party"}, r"unknown data\.task 'party'; did you mean 'parity'"),
        (Synthetic, {"max_length": 10**6}, r"max_length=1000000 must be an integer in 2\.\.1000"),
        (Synthetic, {"task": "needle", "min_length": 4}, r"min_length=4 must .* in 5\.\."),
        (Synthetic, {"min_length": 21}, r"data\.max_length=20 must be an integer in 21\.\."),
    ],
)
def test_impossible_problems_are_refused(kind, settings, message):
    refuses(message, kind, **settings)


def test_sums_are_those_of_pythons_integers():
    for n, m in [(1, 1), (1, 7), (7, 1), (3, 200), (20, 20), (200, 200)]:
        cell = Problems().evaluation(n, m, 50, seed=1)
        assert len(cell) == 50 and len(set(cell)) > 3
        for prompt, answer in cell:
            first, second = re.fullmatch(rf"(\d{{{n}}})\+(\d{{{m}}})=", prompt).groups()
            assert not any(len(each) > 1 and each.endswith("0") for each in (first, second))
            assert answer[::-1] == str(int(first[::-1]) + int(second[::-1]))


def prompts_of(data):
    """The prompts of training sequences, whose labels are their answers and EOS."""
    prompts = set()
    for ids, labels in (data[i].values() for i in range(len(data))):
        text = TOKENIZER.decode(ids, skip_special_tokens=True)
        prompt, equals, answer = text.partition("=")
        assert TOKENIZER.decode(ids[labels != -100]) == answer + TOKENIZER.eos_token
        assert ids.tolist().index(TOKENIZER.eos_token_id) == len(text)
        prompts.add(prompt + equals)
    return prompts


def test_a_sixteenth_of_a_cell_is_held_out():
    source = Problems(max_first=2, max_second=2)
    held_out = {prompt for prompt, _ in source.evaluation(2, 2, 10_000, seed=0)}
    assert len(held_out) == pytest.approx(90 * 90 / 16, rel=0.2)
    assert {prompt for prompt, _ in source.evaluation(2, 2, 1000, seed=5)} < held_out
    assert not prompts_of(GeneratedSequences(source, 4 * source.CHUNK, seed=0)) & held_out
    others = prompts_of(GeneratedSequences(source, source.CHUNK, seed=0, held_out=True))
    assert {prompt for prompt in others if len(prompt) == len("21+43=")} < held_out


@pytest.mark.parametrize("source", SOURCES["synthetic"] + SOURCES["association"], ids=TASKS)
def test_what_is_evaluated_is_never_trained_on(source):
    for seed in (0, 1):
        for stream in (TRAINING, HELD_OUT, EVALUATION):
            tokens, _ = source.draw(seed, stream, np.arange(300), source.max_length)
            places = np.arange(tokens.shape[1])
            assert (is_held_out(tokens, places) == (stream != TRAINING)).all()


def test_an_association_is_not_asked_for_in_words_of_its_text():
    tokens, _ = SOURCES["association"][0].draw(0, EVALUATION, np.arange(300), 40)
    for *text, _, region, first, second in (tokens - problems.SYMBOL).tolist():
        places = [n for n, word in enumerate(text) if word >= 0]
        assert region not in text and max(text) < 64 and len(places) == 4
        (place,) = (n for n in places if text[n] % 16 == region - 64)
        assert text[place + 1 : place + 3] == [first, second]


def test_the_synthetic_examples_are_right():
    """One of each generator, worked by hand."""
    results = doctest.testmod(problems)
    assert results.attempted >= 9 and not results.failed
