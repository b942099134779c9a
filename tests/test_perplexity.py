"""Perplexity against a brute-force loop over tokens."""

import math

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, make_model, random_tokens

from tape.evaluation.perplexity import sliding_perplexity, window_ends


@pytest.mark.parametrize("position", ["tape", "randpe", "alibi"])
def test_equals_a_loop(position):
    model = make_model(position)
    tokens = random_tokens(1, 200)[0].numpy().astype(np.uint16)
    ends = window_ends(len(tokens), longest=32, stride=5, tokens=60)
    for length in (16, 32):
        result = sliding_perplexity(model, tokens, ends, length, stride=5, batch_tokens=70)
        nll = 0.0
        for end in ends:
            window = torch.from_numpy(tokens[end - length : end].astype(np.int64))[None]
            with torch.no_grad(), model.evaluation_length(length):
                logprob = model(window).logits[0].log_softmax(-1)
            for t in range(length - 5, length):
                nll -= logprob[t - 1, window[0, t]].item()
        assert result.tokens == 60
        assert result.nll == pytest.approx(nll, rel=1e-5)
        assert result.perplexity == pytest.approx(math.exp(nll / 60), rel=1e-5)


def test_a_uniform_model_has_the_vocabulary_as_perplexity():
    model = make_model("rope")
    torch.nn.init.zeros_(model.lm_head.weight)
    tokens = random_tokens(1, 100)[0].numpy()
    result = sliding_perplexity(model, tokens, window_ends(100, 16, 8, 50), 16, 8)
    assert result.perplexity == pytest.approx(VOCABULARY, rel=1e-5)
    assert result.bits_per_byte(result.tokens) == pytest.approx(math.log2(VOCABULARY), rel=1e-5)


@pytest.mark.parametrize(
    ("available", "longest", "stride", "tokens"),
    [(1000, 64, 16, 160), (1000, 64, 16, 10**9), (64, 64, 16, 100), (70, 64, 16, 100)],
)
def test_windows_fit_and_score_no_token_twice(available, longest, stride, tokens):
    ends = window_ends(available, longest, stride, tokens)
    assert ends[0] >= longest and ends[-1] <= available
    assert len(ends) >= 1 and (np.diff(ends) >= stride).all()
    assert len(ends) * stride <= max(tokens, stride)


def test_refusals():
    model = make_model("rope")
    with pytest.raises(ValueError, match="63 tokens of text are fewer than one window of 64"):
        window_ends(63, 64, 8, 100)
    with pytest.raises(ValueError, match=r"stride=16 must lie in 1\.\.15"):
        sliding_perplexity(model, np.zeros(64, int), np.array([64]), 16, 16)


def test_the_model_is_left_as_it_was():
    model = make_model("rope").train()
    sliding_perplexity(model, random_tokens(1, 64)[0].numpy(), np.array([64]), 16, 8)
    assert model.training
