"""Compiles a PDDL goal into a predicate over states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from turncredit.core.errors import DataError
from turncredit.envs.household.domain import MARKS, UNTRACKED
from turncredit.envs.household.pddl import Expression, Problem, check_atom, typed
from turncredit.envs.household.state import State

Binding: TypeAlias = dict[str, str]
Test: TypeAlias = Callable[[State, Binding], bool]

_CHANGING: Mapping[str, Callable[[State, tuple[str, ...]], bool]] = {
    "inreceptacle": lambda state, a: a[0] in state.contents.get(a[1], ()),
    "holds": lambda state, a: state.held == a[1],
    "holdsany": lambda state, _: state.held is not None,
    "atlocation": lambda state, a: state.location == a[1],
    "objectatlocation": lambda state, a: a in state.places,
    "opened": lambda state, a: a[0] in state.opened,
}


def compile_goal(problem: Problem) -> Callable[[State], bool]:
    """A function that says whether the goal holds in a state.

    Raises:
        DataError: the goal uses something this domain does not have.
    """
    test = _Compiler(problem).compile(problem.goal, frozenset())
    return lambda state: test(state, {})


class _Compiler:
    def __init__(self, problem: Problem) -> None:
        self.types, self.facts = problem.types, problem.facts
        self.domains: dict[str, list[str]] = {}
        for name, kind in problem.types.items():
            self.domains.setdefault(kind, []).append(name)

    def compile(self, goal: Expression, bound: frozenset[str]) -> Test:
        if not isinstance(goal, tuple) or not goal:
            raise DataError(f"PDDL goal: {goal!r} is not an expression")
        operator = goal[0]
        if operator in ("and", "or"):
            tests = [self.compile(part, bound) for part in goal[1:]]
            if operator == "and":
                return lambda state, env: all(test(state, env) for test in tests)
            return lambda state, env: any(test(state, env) for test in tests)
        if operator == "not" and len(goal) == 2:
            inner = self.compile(goal[1], bound)
            return lambda state, env: not inner(state, env)
        if operator in ("exists", "forall") and len(goal) == 3 and isinstance(goal[1], tuple):
            return self._quantified(goal, bound)
        if operator == "=" and len(goal) == 3:
            left, right = (self._term(str(term), bound) for term in goal[1:])
            return lambda state, env: env.get(left, left) == env.get(right, right)
        return self._atom(goal, bound)

    def _atom(self, goal: Expression, bound: frozenset[str]) -> Test:
        name, arguments = check_atom(goal)
        for argument in arguments:
            self._term(argument, bound)
        if name in UNTRACKED:
            raise DataError(f"PDDL goal: the engine does not follow {name!r}")
        if name in MARKS:
            thing = arguments[0]
            return lambda state, env: (name, env.get(thing, thing)) in state.marks
        if changing := _CHANGING.get(name):
            return lambda state, env: changing(state, tuple(env.get(a, a) for a in arguments))
        known = self.facts.get(name, frozenset())
        return lambda _, env: tuple(env.get(a, a) for a in arguments) in known

    def _term(self, term: str, bound: frozenset[str]) -> str:
        if term not in bound and term not in self.types:
            raise DataError(f"PDDL goal: {term!r} is neither declared nor quantified")
        return term

    def _quantified(self, goal: tuple[Expression, ...], bound: frozenset[str]) -> Test:
        operator, variables, body = goal
        names = typed(variables, "a quantifier of the goal")
        test = self.compile(body, bound | {name for name, _ in names})
        wanted = operator == "exists"
        domains: list[tuple[str, Sequence[str]]] = []
        for name, kind in names:
            domain = self.domains.get(kind, [])
            domains.append((name, self._narrowed(name, domain, body) if wanted else domain))

        def search(state: State, env: Binding, depth: int = 0) -> bool:
            if depth == len(domains):
                return test(state, env)
            name, values = domains[depth]
            outer = env.get(name)
            found = not wanted
            for value in values:
                env[name] = value
                if search(state, env, depth + 1) is wanted:
                    found = wanted
                    break
            if outer is None:
                env.pop(name, None)
            else:
                env[name] = outer
            return found

        return search

    def _narrowed(self, variable: str, domain: list[str], body: Expression) -> list[str]:
        """Values of `variable` that satisfy the unchanging facts the body asks of it alone."""
        for atom in _conjuncts(body, variable):
            if atom[0] in _CHANGING or atom[0] in MARKS or atom[0] in UNTRACKED:
                continue
            known = self.facts.get(str(atom[0]), frozenset())
            if len(atom) == 2 and atom[1] == variable:
                domain = [value for value in domain if (value,) in known]
            elif len(atom) == 3 and atom[1] == variable and atom[2] in self.types:
                domain = [value for value in domain if (value, atom[2]) in known]
        return domain


def _conjuncts(body: Expression, variable: str) -> Iterator[tuple[Expression, ...]]:
    """Atoms that must all hold for `body` to hold, as far as `variable` keeps its meaning."""
    if not isinstance(body, tuple) or not body:
        return
    if body[0] == "and":
        for part in body[1:]:
            yield from _conjuncts(part, variable)
    elif body[0] == "exists" and len(body) == 3:
        if variable not in body[1]:
            yield from _conjuncts(body[2], variable)
    elif body[0] not in ("or", "not", "forall", "="):
        yield body
