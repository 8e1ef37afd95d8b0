"""What a run's tries at its start use, before anything is asked: `selfcheck` and `hosted.probe`.

Sums over what those modules do, by hand; a test runs them and compares.
"""

from __future__ import annotations

from turncredit.core.types import Usage

_ANSWER = 16  # tokens sampled at most
_SEARCH = 12  # steps tried at most until one moves the scores enough


def hearing(prompt: float) -> Usage:
    """Trying samples and scores of some weights out (`hosted.hearing.hear`).

    Four samples are rescored, one is tempered, a group of three and one alone are compared, and
    five tokens are scored; every score samples a token.

    Args:
        prompt: tokens of `selfcheck.example_prompt`.
    """
    row = prompt + _ANSWER
    return _used(prefill=(4 + 1 + 3 + 1) * prompt + 5 + 5 * row, sampled=9 * _ANSWER + 6)


def probing(prompt: float, *, most: bool) -> Usage:
    """Trying training out as well (`hosted.probe.probe`).

    Where the service reports gradient norms: 17 rows are trained, five scores taken. Where it does
    not, each strength is a step there and one back, with three scores, and how large a step has to
    be is looked for first.

    Args:
        prompt: as above.
        most: no norm is reported, and the search is long.
    """
    row = prompt + _ANSWER
    rows, scores = 17, 5
    if most:
        rows, scores = 2 * _SEARCH + 20 + 5 + 2, 2 + 3 * _SEARCH + 12 + 9 + 5
    training = _used(prefill=scores * row, sampled=scores, trained=rows * row)
    return hearing(prompt) + training


def checking(prompt: float) -> Usage:
    """Whether sampler, scorer and trainer agree (`selfcheck.measure`)."""
    row = prompt + _ANSWER
    return _used(prefill=4 * prompt + 4 * row, sampled=4 * _ANSWER + 4, trained=4 * row)


def _used(*, prefill: float, sampled: float, trained: float = 0.0) -> Usage:
    return Usage(prefill=round(prefill), sampled=round(sampled), trained=round(trained))
