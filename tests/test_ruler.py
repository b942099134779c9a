"""Long prompts of exact lengths: what they ask can be answered from them."""

import re
from collections import Counter
from random import Random

import pytest
import test_lm_eval
from test_lm_eval import make_folder
from test_scrolls import byte_tokenizer

pytest.importorskip("lm_eval")
from tape.evaluation import lm_eval as entry
from tape.evaluation import ruler
from tape.model.checkpoint import load

own_cache = test_lm_eval.own_cache


def count(text):
    return len(byte_tokenizer()(text)["input_ids"])


def by_words(text):
    """A tokenizer with several tokens per word."""
    return sum(1 + len(word) // 4 for word in text.split())


def solve(name, prompt):
    """The answers, from the prompt alone."""
    if name.startswith("exact_needle"):
        text, question = prompt.split("\nQuestion:")
        asked = re.findall(r"the (\w+)", question.split(" for ")[1].split("?")[0])
        return [n for key in asked for n in re.findall(rf"number of the {key} is (\d+)\.", text)]
    if name == "exact_variables":
        text, question = prompt.split("\nQuestion:")
        known = {re.search(r"value (\d+)", question)[1]}
        pairs = re.findall(r"Set (\w+) = (\w+)\.", text)
        for _ in pairs:
            known |= {left for left, right in pairs if right in known}
        return [name for name in known if name.isalpha()]
    text = prompt.splitlines()[1]
    if name == "exact_common_words":
        return [word for word, _ in Counter(re.findall(r"\d+\. (\w+)", text)).most_common(10)]
    return [word for word, _ in Counter(re.findall(r"[a-z]+", text)).most_common(3)]


@pytest.mark.parametrize("name", ruler.TASKS)
@pytest.mark.parametrize("length", [700, 4096])
def test_the_prompt_has_the_length_and_the_answers(name, length):
    task = ruler.task(name, [length], by_words, prompts=5)
    room = task.config.generation_kwargs["max_gen_toks"]
    for document in task.test_docs():
        prompt = task.doc_to_text(document)
        assert length - 30 < by_words(prompt) + room <= length
        assert sorted(solve(name, prompt)) == sorted(document["answers"])
        assert by_words(ruler.joined(document["answers"])) + ruler.SPARE <= room + 1
        said = f"they are {', '.join(reversed(document['answers'])).upper()}!"
        assert task.process_results(document, [said]) == {str(length): 1.0}
        part = document["answers"][0]
        share = 1 / len(document["answers"])
        assert task.process_results(document, [part]) == {str(length): pytest.approx(share)}
        assert task.process_results(document, ["none"]) == {str(length): 0.0}


def test_prompts_differ_and_are_the_same_every_time():
    texts = [
        [ruler.task(name, [900], by_words, prompts=3).test_docs()["input"] for _ in range(2)]
        for name in ruler.TASKS
    ]
    for first, second in texts:
        assert list(first) == list(second) and len({*first}) == 3


def test_facts_lie_where_they_are_told():
    facts = ["A.", "B.", "C."]
    text = ruler.haystack(25, facts, [0.999, 0.0, 0.5])
    assert text.startswith("B. The river") and text.endswith("A.") and " C. " in text
    assert len(text.split()) == 28
    assert ruler.haystack(0, facts, [0.1, 0.2, 0.3]) == "A. B. C."


def test_the_frequent_words_are_ahead_at_the_least_size():
    for seed in range(20):
        question = ruler.frequent_words(Random(seed), 500)
        assert sorted(solve("exact_frequent_words", question.text(question.least))) == sorted(
            question.answers
        )


@pytest.mark.parametrize(
    ("name", "length", "message"),
    [
        (
            "exact_needle",
            60,
            r"--lengths 60: exact_needle needs at least 1\d\d tokens before its answer",
        ),
        ("exact_common_words", 400, r"exact_common_words needs at least [\d,]+ tokens"),
        ("exact_common_words", 10**6, r"cannot fill [\d,]+ tokens: there are [\d,]+ words only"),
    ],
)
def test_lengths_that_cannot_be_are_refused(name, length, message):
    with pytest.raises(ValueError, match=message):
        ruler.task(name, [length], count, prompts=1)


def test_a_model_is_asked_at_several_lengths(tmp_path, monkeypatch):
    monkeypatch.setattr(ruler.task, "__defaults__", (2,))
    folder = make_folder(tmp_path / "model", "rope")
    given = ["--model", str(folder), "--tasks", "exact_needle,exact_variables"]
    rows = entry.run(entry.parse([*given, "--lengths", "400", "600"]))
    found = {(row["task"], row["metric"]) for row in rows}
    assert found == {
        (task, length) for task in ("exact_needle", "exact_variables") for length in ("400", "600")
    }
    assert {row["questions"] for row in rows} == {"2"}  # of each length
    assert {row["max_length"] for row in rows} == {"600"}
    model, tokenizer = load(folder)
    from tape.evaluation.harness import Harness

    harness = Harness(model, tokenizer, 600)
    assert harness.count("abc de") == len(tokenizer("abc de")["input_ids"])
