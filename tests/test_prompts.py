"""Prompts of pass keys: exact lengths and depths, the original's, and those that are trained on."""

import re
import string
from collections import Counter

import numpy as np
import pytest
from conftest import refuses
from test_scrolls import byte_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre
from transformers import PreTrainedTokenizerFast

from tape.tasks.passkey import sequences
from tape.tasks.passkey.sequences import BENCHMARK, PLAIN, Draft, original_prompt, plain_tokenizer

WORDS = BENCHMARK.description, sequences.FILLER, BENCHMARK.question(None, False), "Remember it."


def llama_like():
    """As Llama's: spaces belong to words, a token per digit, BOS before the text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre.Split(Regex(r"\d|\n|▁?[^▁\d\n]+|▁"), "isolated")
    steps = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    alphabet = ["▁", "\n", *string.digits, *string.ascii_lowercase, *"TIFRHW.?"]
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    how = {"show_progress": False, "special_tokens": [*special.values()]}
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, **how)
    tokenizer.train_from_iterator(WORDS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


TOKENIZERS = {
    "plain": (PLAIN, plain_tokenizer()),
    "byte_level": (BENCHMARK, byte_tokenizer([*WORDS, *map(str, range(100, 400))])),
    "llama_like": (BENCHMARK, llama_like()),
}
each_text = pytest.mark.parametrize(("text", "tokenizer"), TOKENIZERS.values(), ids=TOKENIZERS)


@each_text
@pytest.mark.parametrize("depth", [0.0, 0.13, 0.5, 1.0])
def test_a_prompt_holds_its_key_once_at_its_depth_in_so_many_tokens(text, tokenizer, depth):
    for n, length in enumerate((211, 222, 700)):
        prompt = Draft(text, depth, (0, n)).fitted(length, sequences.token_counter(tokenizer))
        assert len(tokenizer(prompt.text)["input_ids"]) == length
        (key,) = prompt.values
        line, question = text.line(None, key, False), text.question(None, False)
        assert prompt.text.count(line) == 1
        before, after = prompt.text.split(line)
        assert not re.search(r"\d", before + after)
        assert before.startswith(text.description) and after.endswith(question)
        garbage = before.removeprefix(text.description), after.removesuffix(question)
        tokens = [len(tokenizer.tokenize(part.strip("\n").rstrip())) for part in garbage]
        assert tokens[0] / sum(tokens) == pytest.approx(depth, abs=0.04)


@each_text
def test_several_keys_have_names_and_one_is_asked_for(text, tokenizer):
    draft = Draft(text, 0.5, (0, 1), keys=3, values=2)
    prompt = draft.fitted(600, sequences.token_counter(tokenizer))
    assert len(tokenizer(prompt.text)["input_ids"]) == 600
    name = re.search(r"pass keys of (\w+)", prompt.text, re.IGNORECASE)[1]
    found = re.findall(r"one pass key of (\w+) is (\d+)", prompt.text, re.IGNORECASE)
    assert sorted(Counter(owner for owner, _ in found).values()) == [2, 2, 2]
    assert len({value for _, value in found}) == 6
    assert prompt.values == tuple(value for owner, value in found if owner == name)
    assert prompt.answer == f" {prompt.values[0]} , {prompt.values[1]}"


@each_text
def test_a_prompt_too_short_for_its_key_is_refused(text, tokenizer):
    count = sequences.token_counter(tokenizer)
    draft = Draft(text, 0.5, (0, 0))
    bare = count(draft.prompt([0, 0]).text)
    assert count(draft.fitted(bare, count).text) == bare
    refuses(f"{bare - 1} tokens has no room .* which take {bare}", draft.fitted, bare - 1, count)


def test_the_original_rule():
    """Of 1,000 tokens: 3,750 characters, rounded down to 3 x 1,024."""
    filler = "The grass is green. The sky is blue. The sun is yellow. Here we go. "
    filler = (filler + "There and back again. ") * 40
    for seed in range(5):
        np.random.seed(seed)
        before, key = np.random.randint(0, 3072), np.random.randint(1, 50000)
        prompt = original_prompt(1000, seed)
        assert prompt.values == (str(key),) and prompt.text.split("\n") == [
            BENCHMARK.description,
            filler[:before],
            f"The pass key is {key}. Remember it. {key} is the pass key.",
            filler[: 3072 - before],
            "What is the pass key? The pass key is",
        ]
    refuses("no garbage to prompts of 273 tokens", original_prompt, 273, 0)
    assert len(original_prompt(274, 0).text) > 1024


def test_the_plain_tokenizer_gives_texts_back_and_refuses_others():
    tokenizer = plain_tokenizer()
    for keys, values in ((1, 1), (3, 1), (1, 2), (24, 2)):
        draft = Draft(PLAIN, 0.5, (keys, values), keys, values)
        prompt = draft.fitted(1000, sequences.token_counter(tokenizer))
        ids = tokenizer(prompt.text + prompt.answer)["input_ids"]
        assert tokenizer.decode(ids) == prompt.text + prompt.answer
        assert len(ids) == 1000 + sum(map(len, prompt.values)) + values - 1
    with pytest.raises(Exception, match="UNK"):
        tokenizer("find the treasure")
    refuses(r"max_length=24: .* have up to 25 tokens", sequences.Passkeys, max_length=24)
