"""The ALFWorld text domain as data: predicates, properties, wordings.

What is here was observed from ALFWorld 0.4.2 on TextWorld 1.7.0 and is held equal to it by a
differential test (`turncredit games verify`). How commands use it is in `rules.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

# Properties of things that no command changes, one argument each.
PROPERTIES = (
    "openable",
    "pickupable",
    "cleanable",
    "heatable",
    "coolable",
    "toggleable",
    "sliceable",
    "isreceptacleobject",
)
# What commands do to an object and what stays with it.
MARKS = ("isclean", "ishot", "iscool", "issliced", "istoggled")

# Predicates a problem may state, with their number of arguments.
PREDICATES: Mapping[str, int] = {
    **dict.fromkeys(PROPERTIES, 1),
    **dict.fromkeys(MARKS, 1),
    "atlocation": 2,
    "receptacleatlocation": 2,
    "objectatlocation": 2,
    "opened": 1,
    "inreceptacle": 2,
    "inreceptacleobject": 2,
    "isreceptacleobjectfull": 1,
    "wasinreceptacle": 2,
    "checked": 1,
    "examined": 1,
    "receptacletype": 2,
    "cancontain": 2,
    "objecttype": 2,
    "holds": 2,
    "holdsany": 1,
    "holdsanyreceptacleobject": 1,
    "full": 1,
    "moveable": 1,
    "ison": 1,
}
# Commands change these too, but nothing the player can see depends on them: the engine does not
# follow them, so a goal may not ask for them.
UNTRACKED = frozenset({"checked", "ison"})


@dataclass(frozen=True, slots=True)
class Appliance:
    """A command `VERB (object) with (receptacle)` on the object in hand.

    Attributes:
        needs: property the object must have.
        receptacle_types: receptacle types that do it.
        gains: mark the object gets.
        loses: mark the object loses.
    """

    verb: str
    needs: str
    receptacle_types: frozenset[str]
    gains: str
    loses: str | None = None


APPLIANCES = (
    Appliance("clean", "cleanable", frozenset({"sinktype", "sinkbasintype"}), "isclean"),
    Appliance("heat", "heatable", frozenset({"microwavetype"}), "ishot", "iscool"),
    Appliance("cool", "coolable", frozenset({"fridgetype"}), "iscool", "ishot"),
)
BLADE_TYPES = frozenset({"knifetype", "butterknifetype"})

# How an examined object reads: the first row whose marks it all carries.
CONDITIONS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"isclean", "ishot", "issliced"}), "This is a hot and clean sliced {}."),
    (frozenset({"isclean", "iscool", "issliced"}), "This is a cool and clean sliced {}."),
    (frozenset({"isclean", "issliced"}), "This is a clean sliced {}."),
    (frozenset({"ishot", "issliced"}), "This is a hot sliced {}."),
    (frozenset({"iscool", "issliced"}), "This is a cool sliced {}."),
    (frozenset({"isclean", "ishot"}), "This is a hot and clean {}."),
    (frozenset({"isclean", "iscool"}), "This is a cool and clean {}."),
    (frozenset({"ishot"}), "This is a hot {}."),
    (frozenset({"isclean"}), "This is a clean {}."),
    (frozenset({"iscool"}), "This is a cold {}."),
)
# Next: rows that also ask for a property.
PROPERTY_CONDITIONS = (
    ("toggleable", "istoggled", "This {} is on."),
    ("sliceable", "issliced", "This is a sliced {}."),
)
UNREMARKABLE = "There's nothing special about {}."

BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"
TASK_PREFIX = "\n\nYour task is to: "
NOTHING_HAPPENS = "Nothing happens."
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
