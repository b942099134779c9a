"""Synthetic problems: pure functions of seed, number and length, in a vocabulary that all tasks
share.

A generator takes `Draws` for B problems and a length. It returns tokens (B, T) and labels (B, T):
labels[:, t] is the token to predict from tokens[:, :t], or `IGNORED`. Its examples are the words of
a problem and of its labels.
"""

import itertools
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from tokenizers import pre_tokenizers

from tape.core.hashing import Draws, keys_of
from tape.core.validation import check_integer, look_up
from tape.data.tokenizer import END, PADDING
from tape.model.loss import IGNORED
from tape.tasks.generated import Block, Source, added, is_held_out, word_tokenizer

# Part of it unused: that of all trained models.
NAMES = [PADDING, END, "=", "|", ".", *string.digits, *string.ascii_lowercase]
SYMBOLS = 128
NAMES += [f"s{n}" for n in range(SYMBOLS)]
PAD, EOS, EQUALS, SEPARATOR, BLANK = range(5)
DIGIT, LETTER, SYMBOL = (NAMES.index(first) for first in ("0", "a", "s0"))
MAX_LENGTH = 100_000
SPLIT_BITS = 14  # log2 of the number of problems from which a length has held-out ones
LENGTHS, TRAINING, HELD_OUT, EVALUATION = range(4)  # random streams of a seed


def in_words(tokens: Iterable[int]) -> str:
    return " ".join(NAMES[n] for n in tokens)


def followed(rows: np.ndarray, token: int) -> np.ndarray:
    """Appends a token to each row."""
    return np.pad(rows, ((0, 0), (0, 1)), constant_values=token)


def answered(prompt: np.ndarray, answer: np.ndarray, *asked: np.ndarray) -> Block:
    """Joins prompts (B, P), '=', what is asked (B, 1) and answers (B, A), the only labels."""
    before = np.hstack((followed(prompt, EQUALS), *asked))
    return np.hstack((before, answer)), np.hstack((np.full_like(before, IGNORED), answer))


def rearranged(draws: Draws, length: int, how: Callable[[np.ndarray], np.ndarray]) -> Block:
    """The `length` letters once more, from the last to the first, or in the order of the alphabet,
    and EOS.

    >>> example("copy", 3)
    ('q s k = q s k <|endoftext|>', 'q s k <|endoftext|>')
    >>> example("reverse", 3)
    ('q s k = k s q <|endoftext|>', 'k s q <|endoftext|>')
    >>> example("sort", 3)
    ('q s k = k q s <|endoftext|>', 'k q s <|endoftext|>')
    """
    word = LETTER + draws.integers(26, length)
    return answered(word, followed(how(word), EOS))


def add(draws: Draws, length: int) -> Block:
    """The sum of two numbers of `length` digits, which has one more; the lowest digits come first.

    >>> example("add", 3)
    ('6 7 3 | 6 7 1 = 2 5 5 0', '2 5 5 0')
    """
    first, second = draws.integers(10, length), draws.integers(10, length)
    prompt = np.hstack((followed(DIGIT + first, SEPARATOR), DIGIT + second))
    return answered(prompt, DIGIT + added(first, second))


def digit_sum(draws: Draws, length: int, base: int) -> Block:
    """The sum of `length` digits modulo their base: whether the number of ones is odd, or the last
    digit.

    >>> example("parity", 5)
    ('1 1 0 1 1 = 0', '0')
    >>> example("modular_sum", 5)
    ('6 7 3 6 7 = 9', '9')
    """
    digits = draws.integers(base, length)
    return answered(DIGIT + digits, DIGIT + digits.sum(axis=1, keepdims=True) % base)


def counting(draws: Draws, length: int) -> Block:
    """How many `a` follow the last separator, modulo 10, in `length` words: separators with
    probability 1/8, otherwise `a` or `b`.

    >>> example("counting", 12, seed=1)
    ('a b | a b b a a b a b b = 4', '4')
    """
    separates = draws.integers(8, length) == 0
    is_a = ~separates & (draws.integers(2, length) == 0)
    words = np.where(separates, SEPARATOR, np.where(is_a, LETTER, LETTER + 1))
    after = np.cumsum(separates[:, ::-1], axis=1)[:, ::-1] == 0
    return answered(words, DIGIT + (is_a & after).sum(axis=1, keepdims=True) % 10)


@cache
def products(points: int) -> np.ndarray:
    """The table of the group of permutations, in lexicographic order: entry (a, b) is a, then b."""
    found = [*itertools.permutations(range(points))]
    number = {each: n for n, each in enumerate(found)}
    return np.array([[number[tuple(b[x] for x in a)] for b in found] for a in found])


def group_words(draws: Draws, length: int, points: int) -> Block:
    """The product of all elements so far, after each of `length` elements of the symmetric group of
    `points`.

    s1 and s2 of S3 exchange two neighbours, s3 and s4 are the cycles, s5 exchanges the outer two.

    >>> example("s3", 4)
    ('s3 s4 s2 s3 <|padding|>', 's3 s0 s2 s5')
    """
    table = products(points)
    elements = draws.integers(len(table), length)
    states = elements.copy()
    for t in range(1, length):
        states[:, t] = table[states[:, t - 1], elements[:, t]]
    labels = np.pad(SYMBOL + states, ((0, 0), (1, 0)), constant_values=IGNORED)
    return followed(SYMBOL + elements, PAD), labels


def flip_flop(draws: Draws, length: int) -> Block:
    """`length` instructions, each with a bit: w writes it, i is ignored, and r reads the latest bit
    written. The first is w, the last r; of the others 80 % are i, and w and r equal shares.

    >>> example("flip_flop", 5)
    ('w 0 i 1 i 0 i 0 r 0', '0')
    """
    chosen, bits = draws.integers(200, length), draws.integers(2, length)
    reads, writes = chosen < 20, chosen >= 180
    reads[:, [0, -1]], writes[:, [0, -1]] = (False, True), (True, False)
    latest = np.maximum.accumulate(np.where(writes, np.arange(length), 0), axis=1)
    bits = DIGIT + np.where(reads, np.take_along_axis(bits, latest, axis=1), bits)
    read, write, ignore = (NAMES.index(letter) for letter in "rwi")
    words = np.where(reads, read, np.where(writes, write, ignore))
    labels = np.stack((np.full_like(bits, IGNORED), np.where(reads, bits, IGNORED)), axis=-1)
    return np.stack((words, bits), axis=-1).reshape(len(bits), -1), labels.reshape(len(bits), -1)


def recall(draws: Draws, length: int) -> Block:
    """Multi-query associative recall in `length` tokens (less one, if odd): a pair of key and value
    for every 16 tokens, then each key once more, in random order among blanks, to be followed by
    its value.

    >>> example("recall", 8)
    ('s51 s81 . . . . s51 s81', 's81')
    """
    pairs, half = max(1, length // 16), SYMBOLS // 2
    slots = length // 2 - pairs
    keys = SYMBOL + draws.permutation(half)[:, :pairs]
    values = SYMBOL + half + draws.integers(half, pairs)
    places = draws.permutation(slots)[:, :pairs]
    given, asked = np.stack((keys, values), axis=-1), np.full((len(keys), slots, 2), BLANK)
    np.put_along_axis(asked, places[..., None], given, axis=1)
    tokens = np.hstack((given, asked))
    labels = np.full_like(tokens, IGNORED)
    labels[:, pairs:, 1] = np.where(asked[..., 1] == BLANK, IGNORED, asked[..., 1])
    return tokens.reshape(len(keys), -1), labels.reshape(len(keys), -1)


def selective_copy(draws: Draws, length: int) -> Block:
    """The four letters among `length` words, which otherwise are blanks.

    >>> example("selective_copy", 7)
    ('. q . s k . r = q s k r', 'q s k r')
    """
    letters = LETTER + draws.integers(26, 4)
    words = np.full((len(letters), length), BLANK)
    np.put_along_axis(words, np.sort(draws.permutation(length)[:, :4]), letters, axis=1)
    return answered(words, letters)


def needle(draws: Draws, length: int) -> Block:
    """The five digits that stand in a row among `length` words, which otherwise are letters.

    >>> example("needle", 8)
    ('q s 3 5 4 1 0 g = 3 5 4 1 0', '3 5 4 1 0')
    """
    words, digits = LETTER + draws.integers(26, length), DIGIT + draws.integers(10, 5)
    place = draws.integers(length - 4, 1) + np.arange(5)
    np.put_along_axis(words, place, digits, axis=1)
    return answered(words, digits)


def induction(draws: Draws, length: int) -> Block:
    """The symbol after the last occurrence of the one after '=', among `length` symbols.

    >>> example("induction", 4)
    ('s83 s89 s49 s84 = s49 s84', 's84')
    """
    words = draws.integers(SYMBOLS, length)
    place = draws.integers(length - 1, 1)
    prefix = np.take_along_axis(words, place, axis=1)
    last = length - 2 - np.argmax(words[:, -2::-1] == prefix, axis=1, keepdims=True)
    answer = SYMBOL + np.take_along_axis(words, last + 1, axis=1)
    return answered(SYMBOL + words, answer, SYMBOL + prefix)


def indirect(draws: Draws, length: int) -> Block:
    """The k-th symbol after a named one, which occurs once among `length` symbols, for k in 1..9.

    >>> example("indirect", 10)
    ('s83 s39 s56 s102 s54 s117 s3 s28 s6 s97 = s83 7 s28', 's28')
    """
    name, k = draws.integers(SYMBOLS, 1), 1 + draws.integers(9, 1)
    words = (name + 1 + draws.integers(SYMBOLS - 1, length)) % SYMBOLS
    place = draws.permutation(length)
    place = place[np.arange(len(name)), np.argmax(place < length - k, axis=1)][:, None]
    np.put_along_axis(words, place, name, axis=1)
    answer = SYMBOL + np.take_along_axis(words, place + k, axis=1)
    return answered(SYMBOL + words, answer, SYMBOL + name, DIGIT + k)


def association(draws: Draws, length: int) -> Block:
    """The two digits after the place that lies in the region after '=', among four places with
    digits and letters, `length` words in all. In every problem, place s{n} for n in 0..63 lies in
    region s{64 + n % 16}, so the text and the question have no word in common.

    >>> example("association", 13)
    ('s60 5 6 s59 7 5 u s5 7 0 s55 3 4 = s69 7 0', '7 0')
    """
    regions, chosen = draws.permutation(16)[:, :4], draws.integers(4, 1)
    places, digits = regions + 16 * draws.integers(4, 4), draws.integers(10, 8).reshape(-1, 4, 2)
    facts = np.concatenate((SYMBOL + places[..., None], DIGIT + digits), axis=-1)
    words = LETTER + draws.integers(26, length)
    starts = np.sort(draws.permutation(length - 8)[:, :4]) + 2 * np.arange(4)
    at = starts[..., None] + np.arange(3)
    np.put_along_axis(words, at.reshape(-1, 12), facts.reshape(-1, 12), axis=1)
    answer = np.take_along_axis(facts, chosen[..., None], axis=1)[:, 0, 1:]
    return answered(words, answer, SYMBOL + 64 + np.take_along_axis(regions, chosen, axis=1))


class Task(NamedTuple):
    make: Callable[[Draws, int], Block]
    bits: float  # lower bound on log2 of the number of problems, for each unit of length
    shortest: int
    trained: int  # in the suite, the longest length of training
    tested: int  # and that of evaluation
    longest: int = MAX_LENGTH


TASKS: dict[str, Task] = {
    "copy": Task(partial(rearranged, how=np.array), 4.7, 1, 8, 64),
    "reverse": Task(partial(rearranged, how=np.fliplr), 4.7, 1, 8, 64),
    "sort": Task(partial(rearranged, how=np.sort), 3, 1, 8, 64),
    "add": Task(add, 6.6, 1, 10, 40),
    "parity": Task(partial(digit_sum, base=2), 1, 1, 16, 128),
    "modular_sum": Task(partial(digit_sum, base=10), 3.3, 1, 16, 128),
    "counting": Task(counting, 1, 1, 16, 128),
    "s3": Task(partial(group_words, points=3), 2.5, 1, 16, 128),
    "s5": Task(partial(group_words, points=5), 6.9, 1, 16, 64),
    "flip_flop": Task(flip_flop, 1, 2, 16, 256),
    "recall": Task(recall, 0.75, 4, 32, 512, longest=8 * SYMBOLS + 15),
    "selective_copy": Task(selective_copy, 4.7, 4, 24, 192),
    "needle": Task(needle, 4, 5, 32, 256),
    "induction": Task(induction, 7, 2, 32, 256),
    "indirect": Task(indirect, 7, 10, 24, 192),
    "association": Task(association, 4, 12, 64, 512),
}


def example(name: str, length: int, seed: int = 0) -> tuple[str, str]:
    """Returns a problem and its labels in words."""
    block = TASKS[name].make(Draws(keys_of(seed)), length)
    return tuple(in_words(n for n in rows[0] if n != IGNORED) for rows in block)


@dataclass(frozen=True)
class Synthetic(Source):
    """Problems of one task, whose lengths are uniform in min_length..max_length in training."""

    task: str = "parity"
    min_length: int = 2
    max_length: int = 20

    FILE = "synthetic.json"
    CHUNK = 4096
    tokenizer = staticmethod(partial(word_tokenizer, NAMES, pre_tokenizers.WhitespaceSplit()))

    def __post_init__(self):
        least, most = self.of.shortest, self.of.longest
        check_integer("data.min_length", self.min_length, least, most)
        check_integer("data.max_length", self.max_length, self.min_length, most)

    @property
    def of(self) -> Task:
        return look_up("data.task", self.task, TASKS)

    @property
    def length(self) -> int:
        return self.of.make(Draws(keys_of(0)), self.max_length)[0].shape[1]

    @property
    def trained(self) -> tuple[int, None]:
        return self.max_length, None

    def draw(self, seed: int, stream: int, numbers: np.ndarray, length: int) -> Block:
        """Returns the problems (B,) of a stream with one length: tokens and labels (B, T) each.

        One problem in 16, by a hash of its tokens, is never trained on, and only these are in the
        other streams; lengths with fewer than 2**14 problems are not split.
        """
        split = length * self.of.bits >= SPLIT_BITS
        tokens, labels = self.of.make(Draws(keys_of(seed, stream, numbers, length, 0)), length)
        missing = np.arange(len(numbers))
        for attempt in itertools.count(1):
            held_out = is_held_out(tokens[missing], np.arange(tokens.shape[1]))
            missing = missing[split & (held_out != (stream != TRAINING))]
            if not missing.size:
                return tokens, labels
            keys = keys_of(seed, stream, numbers[missing], length, attempt)
            tokens[missing], labels[missing] = self.of.make(Draws(keys), length)

    def chunk(self, number: int, count: int, seed: int, held_out: bool) -> Block:
        """Returns problems of any trained length with answers, which alone are labels."""
        stream, numbers = HELD_OUT if held_out else TRAINING, number * self.CHUNK + np.arange(count)
        spread = self.max_length - self.min_length + 1
        keys = keys_of(seed, LENGTHS, stream, numbers)
        lengths = self.min_length + Draws(keys).integers(spread, 1)[:, 0]
        tokens = np.full((count, self.length), PAD)
        labels = np.full_like(tokens, IGNORED)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            made = self.draw(seed, stream, numbers[rows], int(length))
            for whole, part in zip((tokens, labels), made, strict=True):
                whole[rows, : part.shape[1]] = part
        return tokens, labels
