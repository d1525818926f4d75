"""From raw scores to 0..100: in proportion (DefaultNormalizeScore), or by rank."""

from __future__ import annotations

import numpy as np

from berth.framework.interface import MAX_SCORE, MIN_SCORE, Scores


def default_normalize(scores: Scores, *, reverse: bool = False) -> Scores:
    """``100 * score / largest`` in whole numbers, counted from the other end when reversed.

    All scores 0: unchanged, or all 100 when reversed. Scores are 0 or more.
    """
    largest = int(scores.max(initial=0))
    if largest == 0:
        return scores + MAX_SCORE if reverse else scores
    stretched = MAX_SCORE * scores // largest
    return MAX_SCORE - stretched if reverse else stretched


def normalize_by_rank(scores: Scores) -> Scores:
    """100 for the largest score, 99 for the next smaller one that occurs, and so on; never below 0.

    For scores of which every unit counts: in proportion, 100,001 and 100,000 would be equal.
    """
    _, places = np.unique(scores, return_inverse=True)
    normalized: Scores = np.maximum(MAX_SCORE - (places.max(initial=0) - places), MIN_SCORE).astype(np.int64)
    return normalized
