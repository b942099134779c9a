"""Bigrams in context: the chains and the tokens."""

import numpy as np

from tape.data import BigramCorpus, tokenize_corpus, train_tokenizer


def literal_chains(seed, count, length):
    """The same draws, one symbol at a time."""
    random = np.random.RandomState(seed)
    weights = random.standard_gamma(BigramCorpus.CONCENTRATION, (count, 16, 16))
    symbols = [[n] for n in random.randint(16, size=count)]
    for _ in range(length - 1):
        for chain, table, drawn in zip(symbols, weights, random.random_sample(count), strict=True):
            left, row = drawn * table[chain[-1]].sum(), table[chain[-1]]
            chain.append(next(n for n in range(16) if left < row[: n + 1].sum()))
    return symbols


def test_chains_equal_a_literal_loop():
    assert BigramCorpus.chains([3, 1], 5, 40).tolist() == literal_chains([3, 1], 5, 40)


def test_windows_of_the_validation_split_begin_with_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(BigramCorpus, "DOCUMENTS", {"train": 9, "validation": 5})
    monkeypatch.setattr(BigramCorpus, "AT_ONCE", 4)
    corpus = BigramCorpus()
    tokenizer = train_tokenizer(corpus, 258, tmp_path)
    ends = {}
    for split, count in BigramCorpus.DOCUMENTS.items():
        tokens = tokenize_corpus(corpus, split, tokenizer, tmp_path).tokens
        ends[split] = np.flatnonzero(tokens == tokenizer.eos_token_id)
        texts = [*corpus.documents(split)]
        assert len(set(texts)) == count and len(tokens) == sum(map(len, texts)) + count
        assert tokenizer.decode(tokens[: ends[split][0]]) == texts[0]
    assert ends["validation"].tolist() == [513 * n - 1 for n in range(1, 6)]
    assert len({*(ends["train"] % 64)}) == 9
    assert not {*corpus.documents("train")} & {*corpus.documents("validation")}
