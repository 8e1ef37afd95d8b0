"""Reads a PDDL problem of the ALFWorld domain into types, facts and a goal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from turncredit.core.errors import DataError, did_you_mean
from turncredit.envs.household.domain import PREDICATES

Expression: TypeAlias = "str | tuple[Expression, ...]"
Facts: TypeAlias = Mapping[str, frozenset[tuple[str, ...]]]

# An innermost list is one token: a problem is mostly flat facts, and `split` reads those in C.
_TOKEN = re.compile(r"\([^()]*\)|[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, all in lower case (PDDL has no case).

    Attributes:
        types: declared id → type.
        facts: predicate → the argument tuples that hold at the start.
        goal: the goal expression.
    """

    types: Mapping[str, str]
    facts: Facts
    goal: Expression


def parse(text: str) -> Expression:
    """The one s-expression in `text`, as nested tuples of lower-case words.

    Raises:
        DataError: unbalanced, nested too deeply, empty, or more than one expression.
    """
    if ";" in text:
        text = _COMMENT.sub("", text)
    stack: list[list[Expression]] = [[]]
    for token in _TOKEN.findall(text.lower()):
        if token == "(":
            stack.append([])
            if len(stack) > _MAX_DEPTH:
                raise DataError(f"PDDL problem: nested deeper than {_MAX_DEPTH} levels")
        elif token == ")":
            if len(stack) == 1:
                raise DataError("PDDL problem: a closing parenthesis too many")
            closed = tuple(stack.pop())
            stack[-1].append(closed)
        else:
            stack[-1].append(tuple(token[1:-1].split()) if token[0] == "(" else token)
    if len(stack) > 1:
        raise DataError(f"PDDL problem: {len(stack) - 1} closing parentheses missing; is it torn?")
    if len(stack[0]) != 1:
        raise DataError(f"PDDL problem: expected one expression, got {len(stack[0])}")
    return stack[0][0]


def typed(words: Sequence[Expression], where: str) -> list[tuple[str, str]]:
    """`a b - t c - u` → [(a, t), (b, t), (c, u)]. Words without a type get `object`."""
    names, dashes, kinds = words[0::3], set(words[1::3]), words[2::3]
    regular = len(names) == len(kinds) and dashes == {"-"} and "-" not in names
    if regular and set(map(type, words)) == {str}:  # `name - kind`, each: the usual form
        return list(zip(map(str, names), map(str, kinds), strict=True))
    pairs: list[tuple[str, str]] = []
    waiting: list[str] = []
    items = iter(words)
    for word in items:
        if not isinstance(word, str):
            raise DataError(f"PDDL problem: {where} holds a list where a name belongs: {word}")
        if word != "-":
            waiting.append(word)
            continue
        kind = next(items, None)
        if not isinstance(kind, str) or not waiting:
            raise DataError(f"PDDL problem: a dangling '-' in {where}")
        pairs += [(name, kind) for name in waiting]
        waiting = []
    return pairs + [(name, "object") for name in waiting]


def read_problem(text: str) -> Problem:
    """Parse and check a whole problem.

    Raises:
        DataError: not a problem of this domain; says what is wrong where.
    """
    root = parse(text)
    if not isinstance(root, tuple) or not root or root[0] != "define":
        raise DataError("PDDL problem: expected (define (problem …) …)")
    sections = {part[0]: part[1:] for part in root[1:] if isinstance(part, tuple) and part}
    for name in (":objects", ":init", ":goal"):
        if name not in sections:
            raise DataError(f"PDDL problem: no {name} section")
    if len(sections[":goal"]) != 1:
        raise DataError("PDDL problem: :goal must hold exactly one expression")
    types = dict(typed(sections[":objects"], ":objects"))
    return Problem(types, _facts(sections[":init"], types), sections[":goal"][0])


def _facts(items: Sequence[Expression], types: Mapping[str, str]) -> Facts:
    found: defaultdict[Any, list[Any]] = defaultdict(list)
    if odd := [item for item in items if type(item) is not tuple or not item]:
        raise DataError(f"PDDL problem: :init holds {odd[0]!r}, not a fact")
    for fact in items:
        found[fact[0]].append(fact[1:])
    found.pop("=", None)  # costs and distances: planners read them, players do not
    # Checked a predicate at a time: a problem states some 500 facts of a dozen predicates.
    for name, tuples in found.items():
        lengths, arguments = set(map(len, tuples)), set(chain.from_iterable(tuples))
        if lengths != {PREDICATES.get(name)} or not types.keys() >= arguments:
            for one in tuples:
                _check_declared(check_atom((name, *one)), types)
    return {name: frozenset(tuples) for name, tuples in found.items()}


def _check_declared(fact: tuple[str, tuple[str, ...]], types: Mapping[str, str]) -> None:
    name, arguments = fact
    if unknown := sorted(set(arguments) - types.keys()):
        raise DataError(
            f"PDDL problem: {unknown[0]} in ({name} {' '.join(arguments)}) is not declared."
            f"{did_you_mean(unknown[0], types)}"
        )


def check_atom(atom: Expression) -> tuple[str, tuple[str, ...]]:
    """Predicate and arguments of a fact, or of an atom of a goal.

    Raises:
        DataError: unknown predicate, or another number of arguments than it takes.
    """
    words = tuple(word for word in atom if isinstance(word, str))
    if isinstance(atom, str) or not words or len(words) != len(atom):
        raise DataError(f"PDDL problem: {atom!r} is not an atom")
    name, arguments = words[0], words[1:]
    arity = PREDICATES.get(name)
    if arity is None:
        raise DataError(
            f'PDDL problem: no predicate "{name}" in the household domain.'
            f"{did_you_mean(name, PREDICATES)}"
        )
    if len(arguments) != arity:
        raise DataError(f"PDDL problem: {name} takes {arity} names, got {arguments}")
    return name, arguments
