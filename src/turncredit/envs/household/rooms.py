"""What households are made of: receptacles, objects, and what each can do. Data only.

Type names are those of the ALFWorld domain, whose public games show the same affordances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Size = Literal["small", "medium", "full"]
SIZES: tuple[Size, ...] = get_args(Size)

_FOOD = "Apple Bread Egg Lettuce Potato Tomato"
_DISHES = "Bowl Cup Mug Plate"
_CUTLERY = "ButterKnife Fork Knife Ladle Spatula Spoon"
_JARS = "PepperShaker SaltShaker"
_SMALL_THINGS = "CD CellPhone CreditCard KeyChain Pen Pencil RemoteControl Watch"
_WASHING = "Cloth DishSponge SoapBar SoapBottle SprayBottle TissueBox ToiletPaper"
_TABLE = f"AlarmClock Book Box Candle Laptop Newspaper Statue TissueBox Vase {_SMALL_THINGS}"


def _words(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


def _sorted(*texts: str) -> tuple[str, ...]:
    return tuple(sorted(_words(*texts)))


HEATABLE = _words("Apple Bread Cup Egg Mug Plate Potato Tomato")
COOLABLE = _words(_FOOD, _DISHES, "Pan Pot WineBottle")
CLEANABLE = _words(_DISHES, _CUTLERY, "Apple Cloth DishSponge Egg Kettle Lettuce Pan Pot")
CLEANABLE |= _words("Potato SoapBar Tomato")
SLICEABLE = _words(_FOOD)
HOLLOW = _words(_DISHES, "Box Pan Pot")  # things that could hold others
OPENABLE = _words("Cabinet Drawer Fridge Microwave Safe")
LAMP = "DeskLamp"
LAMP_STANDS = _words("CoffeeTable Desk DiningTable Dresser SideTable")

CAN_CONTAIN: Mapping[str, frozenset[str]] = {
    "ArmChair": _words("Book Box CellPhone Cloth CreditCard KeyChain Laptop Newspaper Pillow"),
    "BathtubBasin": _words("Cloth DishSponge HandTowel SoapBar"),
    "Bed": _words("BaseballBat BasketBall Book CellPhone Laptop Pillow TennisRacket"),
    "Cabinet": _words(_DISHES, _JARS, _WASHING, "Candle HandTowel Kettle Ladle Pan Plunger Pot")
    | _words("Box CD Newspaper Vase WineBottle"),
    "Cart": _words(_WASHING, "Candle HandTowel Plunger"),
    "CoffeeMachine": _words("Mug"),
    "CoffeeTable": _words(_TABLE, "Bowl Plate WateringCan"),
    "CounterTop": _words(_FOOD, _DISHES, _CUTLERY, _JARS, _WASHING, _SMALL_THINGS)
    | _words("Candle HandTowel Kettle Pan Pot Vase WineBottle"),
    "Desk": _words(_TABLE, "BasketBall Bowl Mug TennisRacket"),
    "DiningTable": _words(_FOOD, _DISHES, _CUTLERY, _JARS, _TABLE)
    | _words("Kettle Pan Pot SoapBottle SprayBottle WateringCan WineBottle"),
    "Drawer": _words(_CUTLERY, _JARS, _WASHING, _SMALL_THINGS, "Book Candle HandTowel Newspaper"),
    "Dresser": _words(_TABLE, "BasketBall Bowl Mug Plate TennisRacket ToiletPaper"),
    "Fridge": _words(_FOOD, _DISHES, "Pan Pot WineBottle"),
    "GarbageCan": _words("Apple Bread CD Cloth DishSponge Egg Lettuce Newspaper Pen Pencil Potato")
    | _words("SoapBar SoapBottle SprayBottle TissueBox ToiletPaper Tomato WineBottle"),
    "HandTowelHolder": _words("HandTowel"),
    "LaundryHamper": _words("Cloth"),
    "Microwave": _words(_DISHES, "Apple Bread Egg Potato Tomato"),
    "Ottoman": _words("Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow"),
    "Safe": _words("CD CellPhone CreditCard KeyChain"),
    "Shelf": _words(
        _DISHES, _JARS, _WASHING, _TABLE, "HandTowel Kettle Pot WateringCan WineBottle"
    ),
    "SideTable": _words(_FOOD, _DISHES, _TABLE, "BaseballBat BasketBall Mug TennisRacket")
    | _words("Cloth HandTowel SoapBar SoapBottle SprayBottle ToiletPaper"),
    "SinkBasin": _words(_DISHES, _CUTLERY, "Apple Cloth DishSponge Egg HandTowel Kettle Lettuce")
    | _words("Pan Pot Potato SoapBar Tomato"),
    "Sofa": _words("Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl"),
    "StoveBurner": _words("Kettle Pan Pot"),
    "Toilet": _words(_WASHING, "Candle HandTowel"),
    "ToiletPaperHanger": _words("ToiletPaper"),
}


@dataclass(frozen=True)
class Room:
    """A kind of room.

    Attributes:
        always: receptacle types every such room has.
        others: receptacle type -> (weight when one more is added, most there may be).
        objects: types of the things lying about.
    """

    always: tuple[str, ...]
    others: Mapping[str, tuple[int, int]]
    objects: tuple[str, ...]


ROOMS: Mapping[str, Room] = {
    "kitchen": Room(
        ("CounterTop", "Fridge", "Microwave", "SinkBasin"),
        {
            "Cabinet": (8, 16),
            "CoffeeMachine": (2, 1),
            "CounterTop": (2, 3),
            "DiningTable": (2, 2),
            "Drawer": (5, 9),
            "GarbageCan": (2, 1),
            "Shelf": (1, 3),
            "SideTable": (1, 1),
            "StoveBurner": (3, 4),
        },
        _sorted(_FOOD, _DISHES, _CUTLERY, _JARS, "DishSponge Kettle Pan Pot SoapBottle WineBottle"),
    ),
    "living_room": Room(
        ("CoffeeTable", "SideTable", "Sofa"),
        {
            "ArmChair": (3, 3),
            "Cabinet": (2, 6),
            "DiningTable": (2, 1),
            "Drawer": (4, 8),
            "Dresser": (2, 1),
            "GarbageCan": (2, 1),
            "Ottoman": (1, 1),
            "Shelf": (4, 8),
            "SideTable": (2, 3),
        },
        _sorted(
            "Book Box Candle CellPhone CreditCard KeyChain Laptop Newspaper Pillow",
            "RemoteControl Statue TissueBox Vase Watch WateringCan",
        ),
    ),
    "bedroom": Room(
        ("Bed", "Desk"),
        {
            "ArmChair": (1, 1),
            "Desk": (1, 2),
            "Drawer": (6, 10),
            "Dresser": (2, 2),
            "GarbageCan": (2, 1),
            "LaundryHamper": (1, 1),
            "Safe": (1, 1),
            "Shelf": (4, 8),
            "SideTable": (3, 2),
        },
        _sorted(
            "AlarmClock BaseballBat BasketBall Book Bowl CD CellPhone CreditCard KeyChain",
            "Laptop Mug Pen Pencil Pillow TennisRacket",
        ),
    ),
    "bathroom": Room(
        ("CounterTop", "SinkBasin", "Toilet"),
        {
            "BathtubBasin": (2, 1),
            "Cabinet": (5, 8),
            "Cart": (1, 1),
            "Drawer": (4, 8),
            "GarbageCan": (2, 1),
            "HandTowelHolder": (2, 2),
            "Shelf": (3, 5),
            "SideTable": (1, 1),
            "SinkBasin": (1, 2),
            "ToiletPaperHanger": (2, 1),
        },
        _sorted(
            "Candle Cloth DishSponge HandTowel Plunger SoapBar SoapBottle SprayBottle",
            "TissueBox ToiletPaper",
        ),
    ),
}

# Fewest and most, both included: receptacles of a room, and things placed in it.
RECEPTACLES: Mapping[Size, tuple[int, int]] = {
    "small": (6, 9),
    "medium": (10, 16),
    "full": (17, 30),
}
OBJECTS: Mapping[Size, tuple[int, int]] = {"small": (6, 10), "medium": (12, 20), "full": (22, 42)}
# Chance that a cabinet, drawer or burner shares the spot of its neighbour (about 0.1 in ALFWorld).
SHARED_SPOT: Mapping[Size, float] = {"small": 0.0, "medium": 0.15, "full": 0.15}
