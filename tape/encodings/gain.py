"""RoPE with a temperature that reads the text: what TAPE's update after the MLP can do, alone.

Without the average of its state, TAPE is exactly RoPE whose queries and keys are multiplied by one
real number per token and head (tests/test_special_cases.py). Here a layer reads it from its input.
"""

from torch import Tensor
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.positions.base import LayerPosition, Prepared, Tokens, WideLinear, widen
from tape.positions.rotary import RoPE, RotaryLayer


class GainLayer(RotaryLayer):
    """RoPE's rotation, times the gain of the token and key/value head."""

    decays = ("gain",)

    def __init__(self, config: PretrainedConfig):
        super().__init__()
        self.gain = WideLinear(config.hidden_size, config.num_key_value_heads, bias=False)

    def reset_parameters(self) -> None:
        init.zeros_(self.gain.weight)

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        gain_BKT = 2 * widen(self.gain, tokens.x).sigmoid().mT
        e = tokens.e * gain_BKT[..., None, None]
        return super().prepare(q_BHTD, k_BKTD, tokens._replace(e=e))


class RoPEGain(RoPE):
    """RoPE whose queries and keys are multiplied by 2 sigmoid(w_h . x), one number per token and
    key/value head, which is 1 at first. The control for what TAPE's phases are worth."""

    def layer(self, layer_idx: int) -> LayerPosition:
        return GainLayer(self.config)
