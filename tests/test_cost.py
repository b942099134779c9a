"""What encodings cost: torch's counts, real tensors and the paper's table; and their pictures."""

import pandas as pd
import pytest
import torch
from commands import ROOT, tape
from conftest import make_config, make_model, random_tokens, refuses

from tape.analysis import cost
from tape.analysis.cost import PAPER, SHAPE, configuration, fake_model
from tape.analysis.gallery import CHANNELS, by_distance, scores
from tape.encodings import ENCODINGS
from tape.encodings.bias import alibi_exponents
from tape.encodings.path import CHUNK


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("position", ["learned", "alibi", "fire", "t5", "randpe", "tape"])
def test_activations_are_those_of_a_real_training_step(position, kernel):
    model = make_model(position, kernel=kernel).train()
    weights = {x.data_ptr() for x in (*model.parameters(), *model.buffers())}
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model(random_tokens(1, 13), use_cache=False)
    expected = sum(storage.nbytes() for place, storage in kept.items() if place not in weights)
    assert cost.saved_bytes(fake_model(make_config(position), kernel), 13) == expected > 0


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 2}])
@pytest.mark.parametrize("position", ["rope", "fire", "tape", "tape_feed_forward"])
def test_caches_hold_keys_values_and_the_state_that_is_averaged(position, changes):
    config = make_config(position, **changes)
    values = 2 * 3 + (2 if position == "tape" else 0)  # the last layer has no update
    expected = 4 * 7 * values * config.num_key_value_heads * config.head_dim
    assert cost.cached_bytes(fake_model(config, "sdpa"), 7) == expected


def of_the_authors(config, length, decoder, ours):
    """MACs and FLOPs of TAPE in the authors' code, as the paper's profiler counts them: it keeps
    every frequency twice, cosine and sine apart, and updates E in all layers, also the last. W_x m
    is computed for both. P, W1 and W2 are einsums, which are FLOPs alone. `decoder` and `ours` are
    both numbers as counted here, without TAPE's state and with it."""
    H, D, width = config.num_attention_heads, config.head_dim, config.position["width"]
    tokens = config.num_hidden_layers * length
    macs = decoder[0] + tokens * 2 * (H * length * D + config.hidden_size * width)
    einsums = tokens * 2 * (H**2 * D + 2 * H * width * D)
    nonlinear = ours[1] - 2 * ours[0] + length * width * (config.num_hidden_layers + 1)
    return macs, 2 * (macs + einsums) + nonlinear


def test_the_papers_table():
    published = pd.read_csv(PAPER, dtype=str, index_col="encoding").to_dict("index")
    configs = {name: configuration(SHAPE, {"name": name}) for name in published}
    models = {name: fake_model(config, "eager") for name, config in configs.items()}
    counted = {name: cost.operations(model, SHAPE["length"]) for name, model in models.items()}
    for name, row in published.items():
        weights, counts = models[name].num_parameters(), counted[name]
        if name == "tape":  # what its authors' code does
            extra = counts[0] - counted["rope"][0]
            assert extra <= (float(row["macs"]) - float(published["rope"]["macs"])) * 1e9 / 2
            weights += 12 * 12 + 768 * 48 + 2 * 48 * 12  # of the last layer
            counts = of_the_authors(configs[name], SHAPE["length"], counted["rope"], counts)
        assert [f"{count / 1e9:.2f}" for count in counts] == [row["macs"], row["flops"]], name
        assert f"{weights / 2**20:.2f}" == row["parameters"]


@pytest.mark.parametrize("length", [13, 80])
def test_the_products_of_path_are_counted(length):
    """Its triangular solves, one a chunk, too. By hand, for keys and queries of H heads."""
    counts = [
        cost.operations(fake_model(make_config(name), "eager"), length)[0]
        for name in ("path", "nope")
    ]
    config = make_config("path")
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    C, (rank, kernel) = config.hidden_size, (config.position[x] for x in ("rank", "kernel"))
    L = min(CHUNK, length)
    n = -(-length // L)
    convolution = length * C * rank + length * rank * kernel * K * D + length * C * K
    solve = L * L * (L - 1) // 2
    text = 4 * L * L * D + solve + L * L * L + L * D * D  # w w', w k', T w, along, keys, whole
    near = 3 * L * L * D + L**3  # q w', q k', q w times along and applied
    # Later chunks: their rows with the keys of each before, and with its maps.
    far = sum((n - 1 - b) * L * L * D for b in range(n - 1))
    onward = sum((n - 1 - b) * L * D * D for b in range(1, n - 1))
    replaced = length * length * D * H  # q k' of nope
    found = K * n * text + H * (n * near + far + onward) - replaced
    layers = config.num_hidden_layers
    assert counts[0] - counts[1] == layers * (convolution + found)


def test_what_cannot_be_counted_is_refused(tmp_path):
    for name, message in (
        ("--heads", "error: --hidden 768 must be a multiple of --heads 5"),
        ("--kv_heads", "error: num_attention_heads=12 must be a multiple of num_key_value"),
    ):
        with pytest.raises(SystemExit, match=message):
            tape("cost", name, "5", "--out", tmp_path / "cost")
    assert not (tmp_path / "cost").exists()


@pytest.mark.slow
def test_the_documented_tables_are_those_of_the_command(tmp_path, capsys):
    tape("cost", "--out", tmp_path)
    text = (tmp_path / "cost.md").read_text()
    page = (ROOT / "docs" / "results" / "cost" / "table.md").read_text()
    assert text in capsys.readouterr().out
    for block in text.split("\n\n"):
        assert not block.startswith("|") or block.strip() in page
    rows = pd.read_csv(tmp_path / "cost.csv", index_col="encoding")
    assert rows["macs"]["tape"] == 170016374784


LENGTH = 12


def line(name):
    return by_distance(scores(name, LENGTH))


def test_of_encodings_with_a_formula():
    """Queries and keys are ones: RoPE's score is the sum of 2 cos(d theta_f) over sqrt(D)."""
    distance = torch.arange(LENGTH, dtype=torch.float64)
    assert not line("nope").any()
    slopes = alibi_exponents(4).double().exp2()[:, None]
    torch.testing.assert_close(line("alibi"), -slopes * distance)
    frequencies = 10_000 ** (-2 * torch.arange(CHANNELS // 2, dtype=torch.float64) / CHANNELS)
    turned = 2 * (distance[:, None] * frequencies).cos().sum(-1) / CHANNELS**0.5
    expected = (turned - turned[0]).expand(4, -1)
    for name in ("rope", "tape"):  # which starts as RoPE
        torch.testing.assert_close(line(name), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "mixed"])
def test_every_encoding_has_a_picture(name):
    found, later = scores(name, LENGTH), torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    assert torch.isneginf(found[:, later]).all() and found[:, ~later].isfinite().all()
    assert line(name).isfinite().all()


def test_scores_whose_weights_are_lost_are_refused():
    refuses("--length 256: stick_breaking has scores whose weights", scores, "stick_breaking", 256)


def test_files(tmp_path, capsys):
    tape("gallery", "--encodings", "adape", "tape", "nope", "--length", "12", "--out", tmp_path)
    rows = pd.read_csv(tmp_path / "scores.csv")
    assert list(rows["encoding"].unique()) == ["tape", "nope"]
    assert len(rows) == 2 * 4 * LENGTH and rows["score"].notna().all()
    for name in ("curves.png", "curves.svg", "maps.png", "maps.svg", "origin.json"):
        assert (tmp_path / name).stat().st_size > 0
    assert f"2 encodings in {tmp_path}" in capsys.readouterr().out
