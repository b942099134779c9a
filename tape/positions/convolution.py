"""A short causal convolution over the text, on channels of low rank."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from tape.positions.base import PositionModule, Tokens, WideLinear


class TappedLinear(WideLinear):
    """Linear map, without bias, of one token or of the last ones under a tap for each channel."""

    def forward(self, x: Tensor, taps: Tensor | None = None) -> Tensor:
        """Computes W x, or with taps (channels, N) sum_n taps[c, n] (W x_n)_c for x (.., N, R), in
        one product, where W x_n is never in memory."""
        if taps is None:
            return super().forward(x)
        weight = self.weight.to(x.dtype)[:, None] * taps[..., None]
        return F.linear(x.flatten(-2), weight.flatten(1))


class Convolution(PositionModule):
    """sum_n taps[c, n] (W2 W1 x_(t-n))_c over the last `kernel` real tokens, of those that token t
    sees by a 4-D mask. The last extras of the keys hold W1 x."""

    decays = ("down", "up")

    def __init__(self, inputs: int, rank: int, channels: int, kernel: int):
        super().__init__()
        self.rank = rank
        self.down = WideLinear(inputs, rank, bias=False)
        self.up = TappedLinear(rank, channels, bias=False)
        self.taps = nn.Parameter(torch.empty(channels, kernel))

    def reset_parameters(self) -> None:
        bound = self.taps.shape[1] ** -0.5
        init.uniform_(self.taps, -bound, bound)

    def forward(self, x_BTC: Tensor, k_BKTD: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Returns the channels (B, T, channels), in at least float32, and W1 x for the key's
        extras, in the dtype of the keys: with and without a cache it is rounded alike."""
        low_BTR = self.down(x_BTC).to(k_BKTD.dtype)
        past = None if tokens.past is None else tokens.past[:, :1, :, -self.rank :]
        lags = last_tokens(low_BTR[:, None], past, tokens, self.taps.shape[1])
        last = torch.stack([x[:, 0] for x in lags], dim=2)  # (B, T, N, R)
        wide = torch.promote_types(x_BTC.dtype, torch.float32)
        with torch.autocast(x_BTC.device.type, enabled=False):
            last, taps = last.to(wide), self.taps.to(wide)
            if isinstance(self.up, TappedLinear):
                channels = self.up(last, taps)
            else:  # an adapter around it
                channels = (self.up(last) * taps.mT).sum(-2)
        return channels, low_BTR[:, None].expand(-1, k_BKTD.shape[1], -1, -1)


def last_tokens(
    x_BKTR: Tensor, past_BKLR: Tensor | None, tokens: Tokens, count: int, own: bool = False
) -> list[Tensor]:
    """Returns x of each new token and of the real tokens before it that it sees, `count` tensors
    (B, K, T, R), the newest first. Before the first of its document they are zero or, with `own`,
    that of the token itself. Takes x of the cached tokens."""
    T = x_BKTR.shape[2]
    if past_BKLR is None and tokens.real is None and tokens.documents is None:
        if own:
            return [torch.cat((x_BKTR[:, :, :n], x_BKTR), dim=2)[:, :, :T] for n in range(count)]
        padded = F.pad(x_BKTR, (0, 0, count - 1, 0))
        return [padded[:, :, n : n + T] for n in reversed(range(count))]
    index = tokens.slots[None]
    if tokens.seen is not None:
        slots = torch.arange(tokens.seen.shape[-1], device=x_BKTR.device)
        earlier = tokens.seen & (slots <= tokens.slots[:, None])
        newest = F.pad(torch.where(earlier, slots, -1), (count - 1, 0), value=-1)
        newest = newest.topk(count).values  # (B|1, T, count) slots; -1 for none
    elif tokens.real is not None:
        index = tokens.real.cumsum(-1)[:, tokens.slots] - 1
        slot_of = (~tokens.real).long().argsort(dim=-1, stable=True)
    found, missing = [], x_BKTR if own else x_BKTR.new_zeros(())
    for n in range(count):
        lag = index - n if tokens.seen is None else newest[..., n]
        slot = lag.clamp(min=0)
        if tokens.seen is None and tokens.real is not None:
            slot = slot_of.gather(1, slot)
        reached = lag >= 0
        if tokens.documents is not None:
            slot = slot.expand_as(tokens.documents)
            reached = reached & (tokens.documents.gather(1, slot) == tokens.documents)
        slot = slot[:, None, :, None].expand_as(x_BKTR)
        taken = x_BKTR.gather(2, (slot - tokens.slots[0]).clamp(min=0))
        if past_BKLR is not None:
            old = past_BKLR.gather(2, slot.clamp(max=past_BKLR.shape[2] - 1))
            taken = torch.where(slot >= tokens.slots[0], taken, old)
        found.append(torch.where(reached[:, None, :, None], taken, missing))
    return found
