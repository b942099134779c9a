"""TAPE: contextualized equivariant positional encoding (arXiv 2501.00712).

RoPE whose state is updated in every layer but the last, where nothing would read it. With state E
(a 2-vector per token, head and frequency), its average A over the attended tokens and the MLP's
output m:

    E1 = E + P A                             after attention  (`mix` is P)
    E' = E1 + W2 diag(SiLU(W_x m)) W1 E1     after the MLP    (`gate`, `up`, `down`: W_x, W1, W2)

All maps act on the heads and leave frequencies and the pair (cosine, sine) alone. They commute
with every rotation of the pairs, so shifting all positions leaves the output unchanged.
"""

import math
import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.positions.base import LayerPosition, PositionModule, WideLinear, without_autocast
from tape.positions.rotary import RoPE, RotaryLayer, YaRN


class StateMap(PositionModule):
    """Linear map on one axis of the state, or one each for the cosine and the sine part, at first
    normal with standard deviation `std`, or uniform as Xavier's."""

    def __init__(
        self, parts: int, inputs: int, outputs: int, std: float = 0.0, xavier: bool = False
    ):
        super().__init__()
        self.std, self.bound = std, math.sqrt(6 / (inputs + outputs)) if xavier else None
        shape = (outputs, inputs) if parts == 1 else (parts, outputs, inputs)
        self.weight = nn.Parameter(torch.empty(shape))

    def reset_parameters(self) -> None:
        if self.bound is None:
            init.normal_(self.weight, std=self.std)
        else:
            init.uniform_(self.weight, -self.bound, self.bound)

    def forward(self, dtype: torch.dtype) -> Tensor:
        """Returns the matrix, or both, in `dtype`."""
        return self.weight.to(dtype)


# (tensorial, equivariant): order of the axes B, H, T, part, F of the state.
ORDERS = {(True, True): (0, 2, 1, 3, 4), (False, True): (0, 2, 4, 1, 3)}
ORDERS |= dict.fromkeys([(True, False), (False, False)], (3, 0, 2, 1, 4))


class TapeLayer(RotaryLayer):
    """RoPE with g, the update of the state. The state is laid out as (B T, M, N), or (2, B T, M, N)
    for two sets of maps; the maps mix axis M and leave N alone:

        tensorial  equivariant  sets  M          N
        yes        yes          1     heads      2 F
        yes        no           2     heads      F
        no         yes          1     F          2 heads
        no         no           2     heads F    1
    """

    decays = ("mix", "gate", "up", "down")

    def __init__(self, config: PretrainedConfig, encoding: "Tape"):
        super().__init__()
        H, K = config.num_attention_heads, config.num_key_value_heads
        frequencies, self.num_heads = config.head_dim // 2, K
        self.attends, self.feed_forward = encoding.attention, encoding.feed_forward
        self.tensorial, self.magnitudes = encoding.tensorial, encoding.magnitudes
        self.length = encoding.magnitude  # of the pairs of the initial state
        tensorial, equivariant = encoding.tensorial, encoding.equivariant
        self.order = ORDERS[tensorial, equivariant]
        self.restored = [self.order.index(axis) for axis in range(5)]
        parts, self.sets = (1, ()) if equivariant else (2, (2,))
        attended = H if tensorial else frequencies if equivariant else H * frequencies
        self.mixed = K if tensorial else frequencies if equivariant else K * frequencies
        width, xavier = encoding.width, encoding.init == "xavier"  # with zeros TAPE starts as RoPE
        if self.attends:
            self.mix = StateMap(parts, attended, self.mixed, xavier=xavier)
        if self.feed_forward:
            self.gate = WideLinear(config.hidden_size, width, bias=False)
            self.up = StateMap(parts, self.mixed, width, xavier=xavier)
            self.down = StateMap(parts, width, self.mixed, std=0.02)

    def payload(self, e: Tensor, dtype: torch.dtype) -> Tensor | None:
        return e.flatten(-2).to(dtype) if self.attends else None  # (B|1, K|1, T, 2 F)

    def next_state(self, e: Tensor, attended_e: Tensor | None, mlp_out: Tensor) -> Tensor:
        with without_autocast(mlp_out):
            shape = (mlp_out.shape[0], self.num_heads, *e.shape[2:])  # B, K, T, 2, F
            gates = None
            if self.feed_forward:
                weight = self.gate.weight
                if isinstance(weight, Tensor) and weight.is_floating_point():
                    mlp_out = mlp_out.to(weight.dtype)  # quantized weights take any dtype
                gates = F.silu(self.gate(mlp_out)).to(e.dtype)
            if shape[2] == 1 and self.order == ORDERS[True, True]:
                e = self._of_one_token(e.expand(shape).flatten(2), attended_e, gates).view(shape)
                return e if self.magnitudes else F.normalize(e, dim=-2) * self.length
            state = self._arrange(e.expand(shape), self.mixed)
            if self.attends:
                average = attended_e.to(e.dtype).view(*attended_e.shape[:-1], *shape[3:])
                P = self.mix(e.dtype)
                state = add_product(state, P, self._arrange(average, P.shape[-1]))
            if self.feed_forward:
                state = self._feed_forward(state, gates)
            e = state.reshape([shape[axis] for axis in self.order]).permute(self.restored)
            return e if self.magnitudes else F.normalize(e, dim=-2) * self.length

    def _of_one_token(
        self, state: Tensor, attended_e: Tensor | None, gates: Tensor | None
    ) -> Tensor:
        """Updates a state (B, K, 2 F), whose axes are in place, in half the time."""
        if self.attends:
            average = attended_e.to(state.dtype).flatten(2)
            state = add_product(state, self.mix(state.dtype), average)
        if self.feed_forward:
            up = torch.bmm(self.up(state.dtype).expand(state.shape[0], -1, -1), state)
            state = add_product(state, self.down(state.dtype), gates.mT * up)
        return state

    def _arrange(self, e_BHT2F: Tensor, mixed: int) -> Tensor:
        tokens = e_BHT2F.shape[0] * e_BHT2F.shape[2]
        return e_BHT2F.permute(self.order).reshape(*self.sets, tokens, mixed, -1)

    def _feed_forward(self, state: Tensor, gates: Tensor) -> Tensor:
        """Returns state + W2 diag(SiLU(W_x m)) W1 state."""
        W1, W2 = self.up(state.dtype), self.down(state.dtype)
        gate = gates.flatten(0, 1)
        if self.tensorial:
            # One small matrix per token, W2 diag(gate) W1: I M^2 + M^2 N multiply-adds with M heads
            # and I = width; applying W1 and W2 in turn costs 2 I M N.
            products = W2.mT[..., None] * W1[..., None, :]  # (.., I, M, M)
            maps = (gate @ products.flatten(-2)).view(*state.shape[:-1], -1)  # (.., B T, M, M)
            return torch.baddbmm(state, maps, state) if state.ndim == 3 else state + maps @ state
        up = torch.einsum("...im,...tmn->...tin", W1, state)
        return add_product(state, W2, gate[..., None] * up)


def add_product(state: Tensor, maps: Tensor, x: Tensor) -> Tensor:
    """Computes state (.., B T, M, N) + maps ((2,) M, L) @ x (.., B T, L, N) in one pass."""
    if maps.ndim == 2:
        return torch.baddbmm(state, maps.expand(state.shape[0], -1, -1), x)
    # baddbmm would copy two expanded sets of maps for each token.
    return state + torch.einsum("gml,gtln->gtmn", maps, x)


class Tape(RoPE):
    """RoPE whose state is updated by the context (Zhu et al. 2025, arXiv 2501.00712)."""

    updates = True

    # Width I of the update after the MLP; also as a multiple of the number of heads. By default 4H.
    width: int | str | None = None
    attention: bool = True  # update the state after attention (Table 6)
    feed_forward: bool = True  # update it after the MLP (Table 6)
    equivariant: bool = True  # the same maps for cosine and sine (Table 6)
    # Maps mix heads; otherwise the frequencies of a head or, if they are not equivariant, heads and
    # frequencies together (Table 6).
    tensorial: bool = True
    # Otherwise updates bring pairs to the length they begin with: phases alone, a control.
    magnitudes: bool = True
    # Of P and W1: "zero", and TAPE starts as RoPE, or "xavier", as in the authors' code.
    init: str | None = None

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        if not self.tensorial and config.num_attention_heads > config.num_key_value_heads:
            raise ValueError(
                f"position tape: tensorial=false needs a key/value head per query head, but "
                f"num_attention_heads={config.num_attention_heads} and num_key_value_heads="
                f"{config.num_key_value_heads}"
            )

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        width = "4H" if arguments["width"] is None else arguments["width"]
        if isinstance(width, str) and re.fullmatch(r"\d+H", width):
            width = int(width[:-1]) * config.num_attention_heads
        if type(width) is not int or not 1 <= width < 2**31:
            raise ValueError(
                f"position tape: width={arguments['width']!r} must be an integer > 0, or a "
                f"multiple of the heads such as '4H'"
            )
        init = "zero" if arguments["init"] is None else arguments["init"]
        if init not in ("zero", "xavier"):
            raise ValueError(f"position tape: init={init!r} must be 'zero' or 'xavier'")
        return super().configure(config, arguments | {"width": width, "init": init})

    def layer(self, layer_idx: int) -> LayerPosition:
        """Without an update in the last layer: its result is unused, and its parameters would get
        no gradient. With recurrences the next recurrence uses it, except in the last one."""
        last = layer_idx == self.config.num_hidden_layers - 1 and self.config.num_recurrences == 1
        idle = not (self.attention or self.feed_forward)
        return RotaryLayer() if last or idle else TapeLayer(self.config, self)


class TapeYaRN(Tape, YaRN):
    """TAPE with an initial state from the YaRN schedule (same paper, Fig. 6)."""
