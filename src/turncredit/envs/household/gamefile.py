"""Generated games in the official file format, to be played by stock TextWorld as well.

The PDDL domain is package data; the grammar, which tells TextWorld how to word things, is made
here from the same data the engine words them with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from turncredit.envs.household.domain import (
    BANNER,
    CONDITIONS,
    HELP,
    PROPERTY_CONDITIONS,
    TASK_PREFIX,
    UNREMARKABLE,
)

if TYPE_CHECKING:
    from turncredit.envs.household.generator import GeneratedGame

# Queries of TextWorld's grammar: what is true of the variables in the braces they stand in.
_AT = "atlocation(a:agent, l:location) & receptacleatlocation(r:receptacle, l:location)"
_BESIDE = (
    f"{_AT} & objectatlocation(o:object, l:location) & not_inreceptacle(o:object, r:receptacle)"
)
_A_THING = "{o.indefinite + ' ' + o.name | %s}"
_CONTENTS = f"[{_A_THING % 'inreceptacle(o:object, r:receptacle)'}]"
_OPENABLE = "openable(r:receptacle)"

# Action of the domain -> how the player writes it.
_COMMANDS: Mapping[str, str] = {
    "look": "look",
    "inventory": "inventory",
    "help": "help",
    "examineReceptacle": "examine {r}",
    "examineObject": "examine {o}",
    "GotoLocation": "go to {r}",
    "OpenObject": "open {r}",
    "CloseObject": "close {r}",
    "PickupObject": "take {o} from {r}",
    "PutObject": "move {o} to {r}",
    "CleanObject": "clean {o} with {r}",
    "HeatObject": "heat {o} with {r}",
    "CoolObject": "cool {o} with {r}",
    "ToggleObject": "use {o}",
    "SliceObject": "slice {o} with {blade}",
}
# Action -> what the player reads: (condition, text), the first that holds.
_FEEDBACK: Mapping[str, tuple[tuple[str, str], ...]] = {
    "look": (
        (
            _AT,
            f"You are facing the [{{r.name | {_AT}}}]. Next to it, you see [{_A_THING % _BESIDE}].",
        ),
        (
            "",
            "You are in the middle of a room. Looking quickly around you, you see "
            "[{r.indefinite + ' ' + r.name | receptacleatlocation(r:receptacle, l:location)}].",
        ),
    ),
    "inventory": (
        (
            "holdsany(a:agent)",
            f"You are carrying: [{_A_THING % 'holds(a:agent, o:object)'}].",
        ),
        ("", "You are not carrying anything."),
    ),
    "help": (("", "\n" + HELP),),
    "examineReceptacle": (
        (
            f"{_OPENABLE} & opened(r:receptacle)",
            f"The {{r.name}} is open. In it, you see {_CONTENTS}.",
        ),
        (_OPENABLE, "The {r.name} is closed."),
        ("", f"On the {{r.name}}, you see {_CONTENTS}."),
    ),
    "GotoLocation": (("", "You arrive at {r.name}. #examineReceptacle.feedback#"),),
    "OpenObject": (("", "You open the {r.name}. #examineReceptacle.feedback#"),),
    "CloseObject": (("", "You close the {r.name}."),),
    "PickupObject": (("", "You pick up the {o.name} from the {r.name}."),),
    "PutObject": (("", "You move the {o.name} to the {r.name}."),),
    "CleanObject": (("", "You clean the {o.name} using the {r.name}."),),
    "HeatObject": (("", "You heat the {o.name} using the {r.name}."),),
    "CoolObject": (("", "You cool the {o.name} using the {r.name}."),),
    "ToggleObject": (("", "You turn on the {o.name}."),),
    "SliceObject": (("", "You sliced the {o.name} with the {blade.name}."),),
}


def _condition(predicates: tuple[str, ...]) -> str:
    return " & ".join(f"{predicate}(o:object)" for predicate in predicates)


def _examined() -> tuple[tuple[str, str], ...]:
    """How an object in the hand reads."""
    inside = "[{o2.indefinite + ' ' + o2.name | inreceptacleobject(o2:object, o:object)}]"
    name = "{o.name}"
    return (
        ("isreceptacleobject(o:object)", f"This is a normal {name}. In it, you see {inside}."),
        *((_condition(tuple(sorted(marks))), text.format(name)) for marks, text in CONDITIONS),
        *((_condition(row[:2]), row[2].format(name)) for row in PROPERTY_CONDITIONS),
        ("", UNREMARKABLE.format(name)),
    )


def grammar(task: str) -> str:
    """TextWorld's grammar of the domain, with this task line."""
    texts = {
        "intro": (("", f"{BANNER}#look.feedback#\n\n#task#"),),
        "task": (("", TASK_PREFIX.strip() + " " + task),),
        "list_empty": (("", "nothing"),),
        "list_separator": (("", ", "),),
        "list_last_separator": (("", ", and "),),
        "examineObject.feedback": _examined(),
        **{f"{action}.feedback": rows for action, rows in _FEEDBACK.items()},
    }
    rules = {
        name: [{"condition": condition, "rhs": text} for condition, text in rows]
        for name, rows in texts.items()
    }
    actions = "\n".join(
        f'action {name} {{\n  template :: "{command}";\n  feedback :: "#{name}.feedback#";\n}}\n'
        for name, command in _COMMANDS.items()
    )
    return f'grammar :: """\n{json.dumps(rules, indent=1)}\n""";\n\n{actions}'


@cache
def domain_pddl() -> str:
    """The PDDL domain shipped with the package."""
    path = files("turncredit.envs.household") / "data" / "domain.pddl"
    return path.read_text(encoding="utf-8")


def to_file_json(game: GeneratedGame) -> dict[str, Any]:
    """The contents of `game.tw-pddl`, in the keys and order of the official files."""
    return {
        "pddl_domain": domain_pddl(),
        "grammar": grammar(game.task),
        "pddl_problem": game.problem,
        "solvable": True,
        "walkthrough": list(game.walkthrough),
    }


def to_bytes(game: GeneratedGame) -> bytes:
    """The very bytes of the game file; a task's digest is their sha256."""
    return json.dumps(to_file_json(game)).encode("ascii")
