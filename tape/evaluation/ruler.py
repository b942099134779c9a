"""Long prompts in the manner of RULER, made offline and at exact lengths, as tasks of lm-eval.

Needles in repeated sentences, variables that are assigned to one another, and words that are common
or frequent in a list, after Hsieh et al. 2024 (arXiv 2404.06654). Wording, words and numbers of
questions are this project's, so the results are not those of RULER. A prompt and the room for its
answer have the requested number of tokens, or the few fewer that one more word would exceed.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from random import Random
from typing import Any

from datasets import Dataset
from lm_eval.api.task import ConfigurableTask

PROMPTS = 100  # of each length
SPARE = 8  # tokens of room beyond the longest answer, for words around it
NOISE = [
    "The river is wide and slow.",
    "A train leaves the station.",
    "Nobody reads the old letters.",
    "The garden is quiet today.",
    "We walk home along the wall.",
]
Count = Callable[[str], int]


@dataclass(frozen=True)
class Question:
    """A prompt of any size.

    Attributes:
        text: the prompt with so many words of filling.
        answers: all of them are due, in any order.
        least: the fewest words of filling with which the answers are determined.
    """

    text: Callable[[int], str]
    answers: list[str]
    least: int = 0


@cache
def nouns() -> list[str]:
    from wonderwords import RandomWord

    found = RandomWord().filter(include_categories=["noun"], word_min_length=4, word_max_length=8)
    return sorted({word for word in found if word.isalpha() and word.islower()})


def joined(words: Sequence[str]) -> str:
    return ", ".join(words)


def haystack(words: int, facts: Sequence[str], places: Sequence[float]) -> str:
    """Returns so many words of noise, with facts between its sentences: a place is the part of the
    sentences before it."""
    sentences = []
    while words > 0:
        sentence = NOISE[len(sentences) % len(NOISE)].rstrip(".").split()[:words]
        sentences.append(" ".join(sentence) + ".")
        words -= len(sentence)
    count = len(sentences) + 1
    for place, fact in sorted(zip(places, facts, strict=True), reverse=True):
        sentences.insert(int(place * count), fact)
    return " ".join(sentences)


def needle(random: Random, length: int, keys: int = 1, values: int = 1, asked: int = 1) -> Question:
    """Numbers of nouns.

    Args:
        keys, values: nouns, and numbers of each.
        asked: nouns that the question is about.
    """
    names = random.sample(nouns(), keys)
    numbers = {name: [str(random.randrange(10**6, 10**7)) for _ in range(values)] for name in names}
    facts = [f"A number of the {name} is {x}." for name in names for x in numbers[name]]
    random.shuffle(facts)
    places = [random.random() for _ in facts]
    about = joined([f"the {name}" for name in names[:asked]])

    def text(words: int) -> str:
        return (
            "Numbers are hidden in the following text. Remember them.\n"
            f"{haystack(words, facts, places)}\n"
            f"Question: which numbers does the text give for {about}?\nAnswer: the numbers are"
        )

    return Question(text, [x for name in names[:asked] for x in numbers[name]])


def variables(random: Random, length: int, steps: int = 4) -> Question:
    """Variables that get a number one from the other, in `steps` steps."""
    names = ["".join(random.choices(string.ascii_uppercase, k=5)) for _ in range(steps + 1)]
    value = random.randrange(10**4, 10**5)
    facts = [f"Set {names[0]} = {value}."]
    facts += [f"Set {later} = {name}." for name, later in pairwise(names)]
    places = sorted(random.random() for _ in facts)

    def text(words: int) -> str:
        return (
            "Variables get values in the following text. Remember them.\n"
            f"{haystack(words, facts, places)}\n"
            f"Question: which {len(names)} variables have the value {value}?\n"
            "Answer: the variables are"
        )

    return Question(text, names)


def common_words(random: Random, length: int) -> Question:
    """Ten words that a list has more often than the others: 30 times and 3 times; from prompts of
    less than 4,096 tokens on, 10 times and once."""
    often, seldom = (30, 3) if length >= 4096 else (10, 1)
    words = random.sample(nouns(), len(nouns()))
    order = random.random()

    def text(others: int) -> str:
        if others > len(words) - 10:
            raise ValueError(f"there are {len(words):,} words only")
        listed = [*words[:10] * often, *words[10 : 10 + others] * seldom]
        Random(order).shuffle(listed)
        numbered = " ".join(f"{n}. {word}" for n, word in enumerate(listed, 1))
        return (
            "Some words of the following list appear more often than the others. Remember them.\n"
            f"{numbered}\nQuestion: which ten words are the most common ones in the list?\n"
            "Answer: the ten words are"
        )

    return Question(text, words[:10])


def frequent_words(random: Random, length: int) -> Question:
    """The three most frequent words of a made-up text: the word of rank r has a share proportional
    to r ** -2; that of rank one is a row of dots."""
    words = ["".join(random.choices(string.ascii_lowercase, k=6)) for _ in range(200)]
    words[0] = "..."
    total = sum(rank**-2 for rank in range(1, len(words) + 1))
    order = random.random()

    def text(size: int) -> str:
        counts = [int(size * rank**-2 / total) for rank in range(1, len(words) + 1)]
        coded = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
        Random(order).shuffle(coded)
        return (
            "Count the words of the following coded text, without the dots.\n"
            f"{' '.join(coded)}\n"
            "Question: which three words are the most frequent ones in the coded text?\n"
            "Answer: the three words are"
        )

    return Question(text, words[1:4], least=80)  # rank 4 is ahead of rank 5


TASKS: dict[str, Callable[[Random, int], Question]] = {
    "exact_needle": needle,
    "exact_needle_keys": partial(needle, keys=4),
    "exact_needle_values": partial(needle, values=4),
    "exact_needle_queries": partial(needle, keys=4, asked=4),
    "exact_variables": variables,
    "exact_common_words": common_words,
    "exact_frequent_words": frequent_words,
}


def fitted(name: str, question: Question, length: int, count: Count) -> str:
    """Returns the longest prompt of at most `length` tokens.

    Raises:
        ValueError: if even the shortest is longer, or there are not enough words.
    """
    low, high = question.least, question.least + 1
    if (shortest := count(question.text(low))) > length:
        raise ValueError(
            f"{name} needs at least {shortest:,} tokens before its answer, not {length:,}; give a "
            "greater length"
        )
    try:
        while count(question.text(high)) <= length:
            low, high = high, 2 * high
    except ValueError as error:
        raise ValueError(f"{name} cannot fill {length:,} tokens: {error}") from error
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(question.text(middle)) <= length else (low, middle)
    return question.text(low)


def score(document: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Returns the share of the answers in a text, as a metric with the name of the length."""
    said = results[0].lower()
    found = [answer.lower() in said for answer in document["answers"]]
    return {str(document["length"]): sum(found) / len(found)}


def task(name: str, lengths: Sequence[int], count: Count, prompts: int = PROMPTS) -> Any:
    """Returns a task of lm-eval.

    Args:
        name: one of TASKS.
        lengths: of a prompt with its answer, in tokens.
        count: counts the tokens of a text as the model gets it.
        prompts: of each length.

    Raises:
        ValueError: for a length that is too short, or too long for the words.
    """
    drawn = [
        (length, TASKS[name](Random(f"{name} {length} {n}"), length))
        for n in range(prompts)
        for length in lengths
    ]
    room = SPARE + max(count(" " + joined(question.answers)) for _, question in drawn)
    rows = [
        {
            "input": fitted(f"--lengths {length}: {name}", question, length - room, count),
            "answers": question.answers,
            "length": length,
        }
        for length, question in drawn
    ]
    config = {
        "task": name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{input}}",
        "doc_to_target": "{{answers}}",
        "process_results": score,
        "generation_kwargs": {"do_sample": False, "max_gen_toks": room, "until": []},
        "metric_list": [
            {"metric": str(length), "aggregation": "mean", "higher_is_better": True}
            for length in lengths
        ],
        "metadata": {"version": 1.0},
    }
    return ConfigurableTask(config=config)
