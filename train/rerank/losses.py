"""Listwise losses of one query's candidates; targets are gains from 0 to 1, graded or binary."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

MU = 10.0
"""Weight of the distance of two ranks against their discounts in `lambda_loss`; the paper's own choice."""


def lambda_loss(scores: Any, gains: Any) -> Any:
    """Return NDCGLoss2++ of one list, a bound of its cost in nDCG.

    Every pair of a better and a worse candidate pays log2(1 + exp(worse - better)), weighted by the difference of their
    gains times (|1/D(i) - 1/D(j)| + `MU` |1/D(|i - j|) - 1/D(|i - j| + 1)|), with D(k) = log2(1 + k) at the ranks that
    the present scores give. Source: Wang et al., "The LambdaLoss Framework for Ranking Metric Optimization" (CIKM
    2018), section 6, with the exponential gains of the metric.

    Parameters
    ----------
    scores, gains : float32[n] tensors
        Not all gains alike; they are divided by the list's best DCG here.

    Returns
    -------
    Tensor
        A number, in which only `scores` are differentiated.
    """
    import torch

    order = torch.argsort(scores.detach(), descending=True, stable=True)
    scores, gains = scores[order], gains[order]
    ranks = torch.arange(1, len(scores) + 1, device=scores.device, dtype=scores.dtype)
    discount = 1 / torch.log2(1 + ranks)
    gains = gains / (torch.sort(gains, descending=True).values * discount).sum()
    apart = (ranks[:, None] - ranks[None, :]).abs().clamp(min=1)  # the diagonal is in no pair
    by_distance = 1 / torch.log2(1 + apart) - 1 / torch.log2(2 + apart)
    weight = (discount[:, None] - discount[None, :]).abs() + MU * by_distance
    difference = (gains[:, None] - gains[None, :]).clamp(min=0)
    pairs = torch.nn.functional.softplus(scores[None, :] - scores[:, None]) / math.log(2)
    return (weight * difference * pairs).sum()


def listnet(scores: Any, gains: Any) -> Any:
    """Return the cross-entropy between each candidate's share of the gains and the softmax of the scores.

    Source: Cao et al., "Learning to Rank: From Pairwise Approach to Listwise Approach" (ICML 2007).
    """
    return -(gains / gains.sum() * scores.log_softmax(0)).sum()


def gain_entropy(scores: Any, gains: Any) -> Any:
    """Return the mean cross-entropy of each score, read as a logit, with its gain read as a probability."""
    import torch

    return torch.nn.functional.binary_cross_entropy_with_logits(scores, gains)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {"lambda": lambda_loss, "listnet": listnet, "gain": gain_entropy}
