"""RoPE for longer texts without training: distances are mapped to trained ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.compiler import is_compiling
from transformers import PretrainedConfig

from tape.encodings.pieces import METHODS, SETTINGS, Piece, settings_of, spans
from tape.positions.base import LayerPosition, Positions, Tokens, without_autocast
from tape.positions.rotary import RoPE, apply_rotary
from tape.positions.scores import SCORE_BACKENDS, ScoreBias


class Turns(ScoreBias):
    """The pieces of a text with rotations in place of positions, which all layers share."""

    def __init__(self, of_dtype: Callable[[torch.dtype], list[Piece]]):
        self.of_dtype = of_dtype


class Turned(ScoreBias):
    """The scores of one layer: products of the queries (B, H, T, D) and keys (B, K, S, D) that each
    piece has in place of positions."""

    replaces_products = True

    def __init__(self, pieces: tuple[Piece, ...], parts: bool = False):
        self.pieces = pieces
        self.parts = parts  # whether products that a later piece replaces are left out

    def rows(self, queries: slice, keys: slice) -> ScoreBias:
        first = self.pieces[0].key
        known = first.is_cpu and not (is_compiling() or isinstance(first, FakeTensor))
        return Turned(tuple(piece.rows(queries, keys) for piece in self.pieces), known)

    def dense(self, dtype: torch.dtype) -> Tensor:
        (B, H, T, _), (K, S) = self.pieces[0].query.shape, self.pieces[0].key.shape[1:3]
        scores = self.pieces[0].query.new_empty(B, H, T, S)
        everything = [(piece, slice(0, S), piece.marks is None) for piece in self.pieces]
        with without_autocast(scores):
            for piece, keys, alone in spans(self.pieces) if self.parts else everything:
                part = piece.rows(slice(T), keys)
                grouped = part.query.unflatten(1, (K, H // K)).flatten(2, 3)
                found = (grouped @ part.key.mT).view(B, H, T, -1)
                if not alone:
                    found = scores[..., keys].where(~part.pairs(), found)
                scores[..., keys] = found
        return scores.to(dtype)


class ExtendedLayer(LayerPosition):
    """Leaves queries and keys, cached ones too, without rotations: the scores, products over
    sqrt(D), rotate them, each piece with its rotations."""

    def bias(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: None, tokens: Tokens) -> ScoreBias:
        with without_autocast(q_BHTD):
            wide = torch.promote_types(q_BHTD.dtype, torch.float32)
            q, k = q_BHTD.to(wide) * q_BHTD.shape[-1] ** -0.5, k_BKSD.to(wide)
            turned = [
                piece._replace(query=apply_rotary(q, piece.query), key=apply_rotary(k, piece.key))
                for piece in tokens.bias.of_dtype(wide)
            ]
        return Turned((*turned,))


class ExtendedRoPE(RoPE):
    """RoPE with the distance d = i - j of a query and an earlier key mapped to

        self_extend   d if d < W, else floor(i / G) - floor(j / G) + W - floor(W / G)
                      (Jin et al. 2024, arXiv 2401.01325)
        rerope        min(d, W) (Su 2023, kexue.fm/archives/9708)
        leaky_rerope  d if d < W, else W + (d - W) / G (ibid.)
        dca           of tokens in chunks of C: d within a chunk; min(i mod C + C, C + W - 1) -
                      j mod C in the next chunk; C + W - 1 - j mod C in later ones (An et al. 2024,
                      arXiv 2402.17463)
        string        d if d < S, else d - S + W (An et al. 2024, arXiv 2410.18745)

    It loads the weights and frequencies of any model with RoPE, also of a Llama. Distances stay
    below the training length L in texts of up to (L - W + floor(W / G)) G tokens with self_extend,
    (L - W) G + W with leaky_rerope, and L + S - W with string; at any length with rerope and dca.
    """

    backends = SCORE_BACKENDS
    causal, real = True, False

    method: str = "self_extend"
    # The length to reach is factor L; it determines G or S, and is not saved. 4, of string 1.
    factor: float | None = None
    # W; by default L/4, as the authors of Self-Extend and ReRoPE choose for Llama 2; of dca L - C;
    # of string L/16, at most 128.
    window: int | None = None
    group: int | None = None  # G; by default the smallest that reaches `factor`
    chunk: int | None = None  # C; by default 3/4 L, as in the paper
    offset: int | None = None  # S; by default L/3, as in the paper, or more if `factor` needs it

    @classmethod
    def on_checkpoint(cls, arguments: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
        arguments = super().on_checkpoint(arguments, saved)
        if (trained := saved.get("max_position_embeddings")) is None:
            return arguments
        return arguments | {"factor": None} | settings_of(trained, cls.defaults() | arguments)

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        settled = settings_of(config.max_position_embeddings, arguments)
        kept = {k: x for k, x in arguments.items() if k not in (*SETTINGS, "factor")}
        return super().configure(config, kept | settled)

    def state(self, positions: Positions, dtype: torch.dtype) -> None:
        return None

    def biases(self, positions: Positions) -> list[ScoreBias | None]:
        found: dict[torch.dtype, list[Piece]] = {}

        def turns(dtype: torch.dtype) -> list[Piece]:
            if dtype not in found:
                found[dtype] = self.turns(positions, dtype)
            return found[dtype]

        return [Turns(turns)] * self.config.num_hidden_layers

    def turns(self, positions: Positions, dtype: torch.dtype) -> list[Piece]:
        """Returns the pieces with states of RoPE, (B|1, 1, T|S, 2, F), in place of positions."""
        i, j = positions.query.to(dtype), positions.key.to(dtype)  # exact up to 2^24
        settings = {name: x for name in SETTINGS if (x := getattr(self, name)) is not None}
        found = []
        for piece in METHODS[self.method](i, j, **settings):
            query = super().state(Positions(piece.query, piece.key), dtype)
            key = super().state(Positions(piece.key, piece.key), dtype)
            found.append(piece._replace(query=query, key=key))
        return found

    def layer(self, layer_idx: int) -> LayerPosition:
        return ExtendedLayer()
