"""Problems of addition: right answers, held out, in tokens; test_streams.py has their hashes."""

import re

import numpy as np
import pytest
from transformers import AutoTokenizer

from arithmetic.problems import VOCABULARY, Problems, character_tokenizer
from tape.tasks.generated import GeneratedSequences, added

TOKENIZER = character_tokenizer()


def test_answers_are_those_of_pythons_integers():
    for n, m in [(1, 1), (1, 7), (7, 1), (3, 200), (20, 20), (200, 200)]:
        cell = Problems().evaluation(n, m, 50, seed=1)
        assert len(cell) == 50 and len(set(cell)) > 3
        for prompt, answer in cell:
            first, second = re.fullmatch(rf"(\d{{{n}}})\+(\d{{{m}}})=", prompt).groups()
            assert not any(len(each) > 1 and each.endswith("0") for each in (first, second))
            assert answer[::-1] == str(int(first[::-1]) + int(second[::-1]))


def test_carries_run_through_all_digits():
    pairs = [(10**200 - 1, 1), (1, 10**199), (10**200 - 1, 10**200 - 1), (0, 0)]
    operands = np.array([[[int(d) for d in f"{x:0200}"[::-1]] for x in pair] for pair in pairs])
    for pair, digits in zip(pairs, added(operands[:, 0], operands[:, 1]), strict=True):
        assert "".join(map(str, digits[::-1])) == f"{sum(pair):0201}"


def prompts_of(data):
    """The prompts of training sequences, whose labels are their answers and EOS."""
    prompts = set()
    for ids, labels in (data[i].values() for i in range(len(data))):
        text = TOKENIZER.decode(ids, skip_special_tokens=True)
        prompt, equals, answer = text.partition("=")
        learned = ids[labels != -100]
        assert TOKENIZER.decode(learned) == answer + TOKENIZER.eos_token
        assert ids.tolist().index(TOKENIZER.eos_token_id) == len(text)
        prompts.add(prompt + equals)
    return prompts


def test_a_sixteenth_of_a_cell_is_held_out():
    problems = Problems(max_first=2, max_second=2)
    held_out = {prompt for prompt, _ in problems.evaluation(2, 2, 10_000, seed=0)}
    assert len(held_out) == pytest.approx(90 * 90 / 16, rel=0.2)
    assert {prompt for prompt, _ in problems.evaluation(2, 2, 1000, seed=5)} < held_out
    trained = prompts_of(GeneratedSequences(problems, 4 * Problems.CHUNK, seed=0))
    assert not trained & held_out
    others = prompts_of(GeneratedSequences(problems, Problems.CHUNK, seed=0, held_out=True))
    assert {prompt for prompt in others if len(prompt) == len("21+43=")} < held_out


def test_a_token_is_a_character_and_the_tokenizer_loads_by_itself(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    characters = "".join(VOCABULARY[2:])
    for tokenizer in (TOKENIZER, AutoTokenizer.from_pretrained(tmp_path)):
        ids = tokenizer(characters)["input_ids"]
        assert ids == [*range(2, len(tokenizer))] and tokenizer.decode(ids) == characters
        assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1)
    with pytest.raises(Exception, match="UNK"):
        TOKENIZER("x")


@pytest.mark.parametrize("value", [0, "5", True, 10**5])
def test_lengths_that_mean_nothing_are_refused(value):
    with pytest.raises(ValueError, match=rf"max_second={value!r} must be an integer in 1\.\.10000"):
        Problems(max_second=value)
