"""flash-attn's two functions by their documentation, in float64 and without a GPU."""

import torch


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    alibi_slopes=None,
    return_attn_probs=False,
) -> torch.Tensor:
    """q (B, T, H, D), k and v (B, S, K, D); the causal mask ends at the bottom right corner. A
    query sees window_size[0] keys before it; -1: all. With return_attn_probs also returns the
    log-sum-exp (B, H, T) of the scores, without a gradient, and what this project does not use."""
    assert q.shape[-1] == k.shape[-1] == v.shape[-1] <= 256
    assert q.dtype == k.dtype == v.dtype and q.shape[0] == k.shape[0] == v.shape[0]
    (_, T, H, _), (_, S, K, _) = q.shape, k.shape
    k, v = (x.double().repeat_interleave(H // K, dim=2) for x in (k, v))
    scores = torch.einsum("bthd,bshd->bhts", q.double(), k) * softmax_scale
    query, key = torch.arange(T)[:, None] + S - T, torch.arange(S)
    if alibi_slopes is not None:
        assert alibi_slopes.dtype == torch.float32 and alibi_slopes.shape == (H,)
        scores = scores - alibi_slopes[:, None, None] * (query - key).abs()
    if causal:
        scores = scores.masked_fill(key > query, -torch.inf)
    if window_size[0] >= 0:
        scores = scores.masked_fill(key < query - window_size[0], -torch.inf)
    weights = torch.nn.functional.dropout(scores.softmax(-1), dropout_p)
    attended = torch.einsum("bhts,bshd->bthd", weights, v).to(q.dtype)
    return (
        (attended, scores.logsumexp(-1).float().detach(), None) if return_attn_probs else attended
    )


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **settings
) -> torch.Tensor:
    """q (tokens, H, D), k and v (tokens, K, D), sequence b from cu_seqlens[b] to [b + 1]; the
    log-sum-exp is (H, tokens)."""
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    lengths_q, lengths_k = cu_seqlens_q.diff(), cu_seqlens_k.diff()
    assert lengths_q.max() <= max_seqlen_q and lengths_k.max() <= max_seqlen_k
    sequences = (x.split(lengths_k.tolist()) for x in (k, v))
    rows = zip(q.split(lengths_q.tolist()), *sequences, strict=True)
    found = [flash_attn_func(*(x[None] for x in row), **settings) for row in rows if len(row[0])]
    if settings.get("return_attn_probs"):
        return torch.cat([x[0][0] for x in found]), torch.cat([x[1][0] for x in found], dim=1), None
    return torch.cat([x[0] for x in found])
