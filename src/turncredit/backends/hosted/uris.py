"""Names of weights on a service, typed: what trains is not what samples.

`trio://RUN/training_state/NAME` and `tinker://RUN/weights/NAME` are resumed;
`…/sampler_weights/NAME` is sampled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from turncredit.core.errors import ConfigError, did_you_mean

Kind = Literal["state", "sampler"]

# Per scheme: the path segment of weights with optimizer, and of weights for sampling.
_SEGMENTS: Mapping[str, Mapping[Kind, str]] = {
    "trio": {"state": "training_state", "sampler": "sampler_weights"},
    "tinker": {"state": "weights", "sampler": "sampler_weights"},
}
_SERVICES = {"trio": "pytrio", "tinker": "tinker"}


@dataclass(frozen=True, slots=True)
class Uri:
    """Saved weights of a service."""

    scheme: str
    run: str
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.run}/{_SEGMENTS[self.scheme][self.kind]}/{self.name}"

    def as_kind(self, kind: Kind) -> Uri:
        """The weights of the same name, of the other kind."""
        return replace(self, kind=kind)


def parse(text: str, scheme: str) -> Uri:
    """Read the name of saved weights.

    Args:
        text: what a user or a checkpoint record gives.
        scheme: of the backend in use, "trio" or "tinker".

    Raises:
        ConfigError: another service's, a path of a folder, or no such form; with the cure.
    """
    segments = _SEGMENTS[scheme]
    form = f"{scheme}://RUN/{segments['sampler']}/NAME"
    found, mark, rest = text.partition("://")
    if not mark:
        raise ConfigError(
            f'"{text}" is no weights of this service: give {form}, or use --backend local for '
            "folders"
        )
    if found != scheme:
        if found in _SERVICES:
            raise ConfigError(f'"{text}" belongs to the backend "{_SERVICES[found]}": use it')
        raise ConfigError(
            f'"{text}": no scheme "{found}".{did_you_mean(found, _SEGMENTS)} ({form})'
        )
    parts = rest.split("/")
    if len(parts) != 3 or not all(re.fullmatch(r"[\w.:-]+", part) for part in parts):
        raise ConfigError(f'"{text}" is not of the form {form}')
    run, segment, name = parts
    for kind, word in segments.items():
        if segment == word:
            return Uri(scheme, run, kind, name)
    raise ConfigError(
        f'"{text}": no kind of weights "{segment}".{did_you_mean(segment, segments.values())} '
        f"(there are {' and '.join(segments.values())})"
    )


def saved(text: str, scheme: str, kind: Kind) -> str:
    """What a service answers when it has saved weights, with their kind in it.

    Some servers (SkyRL) leave the kind of sampler weights out, and take it when they are asked.
    """
    found, mark, rest = text.partition("://")
    if found == scheme and mark and re.fullmatch(r"[\w.:-]+/[\w.:-]+", rest):
        run, name = rest.split("/")
        return str(Uri(scheme, run, kind, name))
    return text


def sampler(text: str, scheme: str) -> Uri:
    """Weights to sample from.

    Raises:
        ConfigError: not a name of weights, or one of a training state.
    """
    uri = parse(text, scheme)
    if uri.kind != "sampler":
        raise ConfigError(
            f'"{text}" is a training state; sampling and evaluation need the sampler weights of '
            f"the same checkpoint: {uri.as_kind('sampler')}"
        )
    return uri


def state(text: str, scheme: str) -> Uri:
    """Weights to resume training from, with their optimizer.

    Raises:
        ConfigError: not a name of weights, or one of sampler weights.
    """
    uri = parse(text, scheme)
    if uri.kind != "state":
        raise ConfigError(
            f'"{text}" are sampler weights, which have no optimizer; resuming needs the training '
            f"state of the same checkpoint: {uri.as_kind('state')}"
        )
    return uri
