"""Every error a user can meet: what is wrong, and the cure.

All derive from `TurncreditError`, which the command line prints without a traceback.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class TurncreditError(Exception):
    """Root of all errors that are the user's to mend (exit code 2, no traceback)."""


class ConfigError(TurncreditError, ValueError):
    """A setting, or a combination of settings, that cannot work. Raised before anything runs."""


class DataError(TurncreditError, ValueError):
    """A file that cannot be read, is torn, or is not what its name says."""


class EnvError(TurncreditError, RuntimeError):
    """A fault of the environment's machinery. Recorded on one trajectory; the step goes on."""


class MissingExtra(TurncreditError, ImportError):
    """An optional package is needed. `extra` names the pip extra that brings it."""

    def __init__(self, what: str, extra: str, missing: str = "") -> None:
        self.what, self.extra, self.missing = what, extra, missing
        detail = f" (no module {missing!r})" if missing else ""
        super().__init__(
            f"{what} needs an extra package{detail}.   pip install 'turncredit[{extra}]'"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.what, self.extra, self.missing)


class AlignmentError(TurncreditError, ValueError):
    """Two things that must describe the same tokens do not."""

    def __init__(self, trace: str, *, expected: object, got: object) -> None:
        self.trace, self.expected, self.got = trace, expected, got
        super().__init__(f"{trace}: expected {expected}, got {got}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_alignment, (self.trace, self.expected, self.got)


def _rebuild_alignment(trace: str, expected: object, got: object) -> AlignmentError:
    return AlignmentError(trace, expected=expected, got=got)


class BackendError(TurncreditError, RuntimeError):
    """A fault of the training or sampling service.

    `retryable` says whether repeating the *same* call is safe; it never is for
    `forward_backward` and `optim_step`, whose effect is unknown after a fault.
    """

    def __init__(
        self, message: str, *, retryable: bool = False, code: str = "", request_id: str = ""
    ) -> None:
        self.retryable, self.code, self.request_id = retryable, code, request_id
        super().__init__(message)


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is closest, or an empty string when none is close."""
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.6)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`' Did you mean "x"?'`, or an empty string when nothing known is close."""
    close = nearest(word, known)
    return f' Did you mean "{close}"?' if close else ""
