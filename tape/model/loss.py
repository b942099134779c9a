"""Head and cross-entropy in one function, without the logits of all tokens.

They are computed for a chunk of tokens at a time, gradients included, so no logits are kept for the
backward pass; the arithmetic is the same.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

IGNORED = -100  # label of tokens that are not predicted, as in transformers
CHUNK_LOGITS = {"cpu": 2**23, "cuda": 2**26}  # logits per chunk; more or fewer were slower


class Head(nn.Linear):
    """Language-modelling head without bias: returns logits, or with labels the loss."""

    def __init__(self, hidden_size: int, vocab_size: int):
        super().__init__(hidden_size, vocab_size, bias=False)

    def forward(
        self,
        x_BTC: Tensor,
        labels: Tensor | None = None,
        num_items: Tensor | int | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Computes logits (B, T, V), or with `labels` (B, T) the mean cross-entropy (nats) of the
        next token, a scalar in at least float32.

        Args:
            labels: token ids, -100 for tokens that are not predicted.
            num_items: divisor of the sum; the number of predicted tokens by default.
            positions: (B, M) of the labels to predict (`predicted_positions`): others are not
                computed. To look for them here, a CPU would have to wait for the GPU.
        """
        if labels is None:
            return super().forward(x_BTC)
        if positions is not None:
            before = (positions - 1).clamp(min=0)[..., None].expand(-1, -1, x_BTC.shape[-1])
            x_MC = x_BTC.gather(1, before).flatten(0, 1)
            targets = labels.gather(1, positions.clamp(min=0)).where(positions >= 0, IGNORED)
            targets = targets.flatten()
        else:
            x_MC, targets = x_BTC[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        weight_VC, device = self.weight, x_MC.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            x_MC, weight_VC = x_MC.to(dtype), weight_VC.to(dtype)
        with torch.autocast(device, enabled=False):
            total = SummedCrossEntropy.apply(x_MC, weight_VC, targets)
        return total / ((targets != IGNORED).sum() if num_items is None else num_items)


def next_token_loss(logits_BTV: Tensor, labels: Tensor, num_items: Tensor | int | None) -> Tensor:
    """Returns what `Head` returns with labels, from logits."""
    wide = logits_BTV[:, :-1].flatten(0, 1)
    wide = wide.to(torch.promote_types(wide.dtype, torch.float32))
    targets = labels[:, 1:].flatten().to(wide.device)
    total = F.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="sum")
    count = (targets != IGNORED).sum() if num_items is None else num_items
    return total / (count.to(total.device) if isinstance(count, Tensor) else count)


def predicted_positions(labels: Tensor) -> Tensor | None:
    """Returns the positions (B, M) that `Head` computes for labels (B, T): those of all labels but
    the first that are not -100, -1 where a row has fewer; None if it has to compute all."""
    predicted = labels != IGNORED
    predicted[:, 0] = False
    counts = predicted.sum(1)
    if bool((counts == labels.shape[1] - 1).all()):
        return None
    order = predicted.int().argsort(dim=1, descending=True, stable=True)[:, : int(counts.max())]
    return order.where(predicted.gather(1, order), -1)


class SummedCrossEntropy(torch.autograd.Function):
    """Sum over tokens of -log softmax(W x)[target], without ignored tokens."""

    @staticmethod
    def forward(ctx, x_MC: Tensor, weight_VC: Tensor, targets: Tensor) -> Tensor:
        wide = torch.promote_types(x_MC.dtype, torch.float32)
        needs_x, needs_weight, _ = ctx.needs_input_grad
        total = torch.zeros((), dtype=wide, device=x_MC.device)
        grad_x = torch.empty_like(x_MC) if needs_x else None
        # In the wider dtype, because it accumulates over many chunks.
        grad_weight = torch.zeros_like(weight_VC, dtype=wide) if needs_weight else None
        budget = CHUNK_LOGITS.get(x_MC.device.type, CHUNK_LOGITS["cuda"])
        at_once = max(1, budget // len(weight_VC))
        for first in range(0, len(x_MC), at_once):
            part = slice(first, first + at_once)
            x, target = x_MC[part], targets[part]
            logs = F.log_softmax(F.linear(x, weight_VC), dim=-1, dtype=wide)
            total += F.nll_loss(logs, target, reduction="sum", ignore_index=IGNORED)
            if not (needs_x or needs_weight):
                continue
            # d/dlogits = softmax - one-hot, 0 for ignored tokens.
            known = (target != IGNORED)[:, None]
            grad = logs.exp_().mul_(known)
            grad.scatter_add_(1, target[:, None].clamp(min=0), -known.to(wide))
            grad = grad.to(x_MC.dtype)
            if needs_x:
                grad_x[part] = grad @ weight_VC
            if needs_weight and grad.dtype == wide:
                grad_weight.addmm_(grad.mT, x)
            elif needs_weight:
                grad_weight += grad.mT @ x
        ctx.save_for_backward(grad_x, grad_weight)
        ctx.dtype = weight_VC.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        grad_x, grad_weight = ctx.saved_tensors
        x = None if grad_x is None else grad_x * grad
        weight = None if grad_weight is None else (grad_weight * grad).to(ctx.dtype)
        return x, weight, None
