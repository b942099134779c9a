"""Position coupling: one id for all digits of a weight (Cho et al. 2024, arXiv 2405.20671)."""

import torch
from torch import Tensor

from tape.positions.abacus import Abacus


class Coupling(Abacus):
    """Adds row p of a learned table to the embedding of a token. Digits of equal weight have one
    id: p is 1 for units, 2 for tens, and so on, if numbers are written units first. The tokens
    around numbers, such as + and =, have the id before that of units, 0. In training, one number
    per sequence, uniform in 0..offset, is added to the ids of all tokens, where Abacus leaves those
    around numbers at 0. position_ids are not used.

    The paper's ids fall with the weight; these rise, which is another order of the table's rows.
    Its operands may be written in the plain order, whose ids depend on digits that follow, which a
    decoder that writes numbers cannot know. The ids were compared by hand with the authors' code
    (HanseulJo/position-coupling)."""

    name = "coupling"

    def moves(self, places: Tensor, before: Tensor) -> Tensor:
        return torch.ones_like(places)
