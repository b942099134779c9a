"""Problems of arithmetic: right answers, as documented, held out, and the same whenever read."""

import re

import numpy as np
import pytest
from transformers import AutoTokenizer

from arithmetic import TASKS, Problems, character_tokenizer
from arithmetic.problems import CHARACTERS
from tape.tasks.generated import GeneratedSequences

CHUNK, TOKENIZER = Problems.CHUNK, character_tokenizer()

# The answers by Python's integers, and how long they are with leading zeros.
DEFINITIONS = {
    "addition": (lambda a, b: [a + b], lambda n, m: max(n, m) + 1),
    "subtraction": (lambda a, b: [a - b], max),
    "multiplication": (lambda a, b: [a * b], lambda n, m: n + m),
    "sorting": (lambda *numbers: sorted(numbers), max),
    "bitwise_or": (lambda a, b: [a | b], max),
}
all_tasks = pytest.mark.parametrize("task", DEFINITIONS)
both_zeros = pytest.mark.parametrize("leading_zeros", [False, True])


def expected_answer(problems, prompt):
    task, order = TASKS[problems.task], -1 if problems.reverse else 1
    answer, width = DEFINITIONS[problems.task]
    asked = prompt.removesuffix("=").split(task.symbol)
    if not problems.leading_zeros:
        assert not any(len(number) > 1 and number[::order][0] == "0" for number in asked)
    zeros = width(*map(len, asked), *[0] * (len(asked) == 1)) if problems.leading_zeros else 1
    texts = []
    for number in answer(*(int(number[::order], task.base) for number in asked)):
        digits = f"{abs(number):{'b' if task.base == 2 else 'd'}}".rjust(zeros, "0")
        texts.append("-" * (number < 0) + digits[::order])
    return ",".join(texts)


def text_of(example):
    """What a training example says, without padding and EOS."""
    ids = example["input_ids"].tolist()
    end = ids.index(TOKENIZER.eos_token_id)
    assert set(ids[end + 1 :]) <= {TOKENIZER.pad_token_id}
    return TOKENIZER.decode(ids[:end])


def prompts_of(data):
    return {text_of(data[i]).partition("=")[0] + "=" for i in range(len(data))}


@all_tasks
@both_zeros
@pytest.mark.parametrize("reverse", [True, False])
def test_answers_are_those_of_pythons_integers(task, leading_zeros, reverse):
    problems = Problems(task, leading_zeros=leading_zeros, reverse=reverse)
    for n, m in [(1, 1), (1, 7), (7, 1), (3, 200), (20, 20), (200, 200)]:
        n = min(n, 20) if task == "sorting" else n
        cell = problems.evaluation(n, m, 50, seed=1)
        assert len(cell) == 50 and len(set(cell)) > 3
        for prompt, answer in cell:
            assert answer == expected_answer(problems, prompt), prompt
            assert len(answer) <= problems.answer_width(n, m)
            if task != "sorting":
                symbol = re.escape(TASKS[task].symbol)
                assert re.fullmatch(rf"\d{{{n}}}{symbol}\d{{{m}}}=", prompt)
        assert max(len(prompt) for prompt, _ in cell) <= problems.prompt_width(n, m)


@pytest.mark.parametrize("task", ["addition", "subtraction", "multiplication"])
def test_carries_run_through_all_digits(task):
    pairs = [(10**200 - 1, 1), (10**199, 1), (1, 10**199), (10**200 - 1, 10**200 - 1), (0, 0)]
    operands = np.array([[[int(d) for d in f"{x:0200}"[::-1]] for x in pair] for pair in pairs])
    for pair, (digits,) in zip(pairs, TASKS[task].answer(operands), strict=True):
        assert [sum(int(d) * 10**i for i, d in enumerate(digits))] == DEFINITIONS[task][0](*pair)
        assert (np.abs(digits) < 10).all()


@pytest.mark.parametrize(
    "settings, cell, size",
    [
        ({}, (2, 2), 90 * 90),
        ({"leading_zeros": True}, (3, 1), 10**4),
        ({"task": "sorting", "leading_zeros": True}, (2, 2), 10**4),
        ({"task": "bitwise_or"}, (8, 8), 2**14),
    ],
)
def test_a_sixteenth_of_a_cell_are_held_out(settings, cell, size):
    problems = Problems(max_first=cell[0], max_second=cell[1], **settings)
    held_out = {prompt for prompt, _ in problems.evaluation(*cell, 10_000, seed=0)}
    assert len(held_out) == pytest.approx(size / 16, rel=0.2)
    assert {prompt for prompt, _ in problems.evaluation(*cell, 1000, seed=5)} < held_out
    trained = prompts_of(GeneratedSequences(problems, 4 * CHUNK, seed=0))
    assert not trained & held_out
    others = prompts_of(GeneratedSequences(problems, CHUNK, seed=0, held_out=True))
    assert others and {p for p in others if len(p) == problems.prompt_width(*cell)} < held_out


def test_no_sorting_of_a_split_cell_is_trained_on():
    """Neither by a cell of shorter numbers, which is trained on as a whole."""
    problems = Problems("sorting", max_first=3, max_second=3)
    trained = prompts_of(GeneratedSequences(problems, 40 * CHUNK, seed=0))
    for cell in ((1, 4), (2, 2), (3, 2), (2, 5)):
        asked = {prompt for prompt, _ in problems.evaluation(*cell, 500, seed=0)}
        assert asked and not asked & trained, cell


def test_tokenizer_is_one_token_per_character_and_loads_by_itself(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for tokenizer in (TOKENIZER, loaded):
        ids = tokenizer(CHARACTERS)["input_ids"]
        assert tokenizer.convert_ids_to_tokens(ids) == list(CHARACTERS)
        ids.append(tokenizer.eos_token_id)
        assert tokenizer.decode(ids, skip_special_tokens=True) == CHARACTERS
    assert loaded.get_vocab() == TOKENIZER.get_vocab() and len(loaded) == len(CHARACTERS) + 2
    assert (loaded.eos_token_id, loaded.pad_token_id) == (0, 1)
    with pytest.raises(Exception, match="UNK"):
        TOKENIZER("x")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"task": "division"}, "unknown data.task 'division'"),
        ({"max_first": 0}, "max_first=0 must be an integer in 1..10000"),
        ({"max_second": "5"}, "max_second='5' must be an integer"),
        ({"max_second": True}, "max_second=True must be an integer"),
        ({"spaces": 1.5}, "spaces=1.5 must be a probability"),
        ({"spaces": float("nan")}, "spaces=nan must be a probability"),
        ({"reverse": "false"}, "reverse='false' must be true or false"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Problems(**settings)
    with pytest.raises(ValueError, match="count=0 must be an integer >= 1"):
        Problems().evaluation(1, 1, 0, seed=0)
