"""A room small enough to reason about by hand, with the domain's corners in it."""

from __future__ import annotations

from turncredit.envs.household.engine import Game

TASK = "put a clean mug in shelf."
GOAL = """(exists (?r - receptacle ?o - object) (and (cleanable ?o) (isClean ?o)
    (objectType ?o MugType) (receptacleType ?r ShelfType) (inReceptacle ?o ?r)))"""
OBJECTS = """agent1 - agent
    MugType KnifeType BreadType LampType BoxType CDType - otype
    ShelfType DrawerType SinkBasinType FridgeType MicrowaveType - rtype
    Mug_bar_1 Mug_bar_2 Knife_bar_1 Bread_bar_1 Lamp_bar_1 Box_bar_1 CD_bar_1 - object
    Shelf_bar_1 Shelf_bar_2 Drawer_bar_1 Sink_bar_1_bar_SinkBasin - receptacle
    Fridge_bar_1 Microwave_bar_1 - receptacle
    loc_bar_0 loc_bar_1 loc_bar_2 loc_bar_3 loc_bar_4 loc_bar_5 - location"""
# Shelf 1 and shelf 2 share location 1; the lamp is in the shut drawer.
FACTS = """(= (total-cost) 0) (atLocation agent1 loc_bar_0)
    (receptacleType Shelf_bar_1 ShelfType) (receptacleType Shelf_bar_2 ShelfType)
    (receptacleType Drawer_bar_1 DrawerType) (receptacleType Fridge_bar_1 FridgeType)
    (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType)
    (receptacleType Microwave_bar_1 MicrowaveType)
    (receptacleAtLocation Shelf_bar_1 loc_bar_1) (receptacleAtLocation Shelf_bar_2 loc_bar_1)
    (receptacleAtLocation Drawer_bar_1 loc_bar_2)
    (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_3)
    (receptacleAtLocation Fridge_bar_1 loc_bar_4) (receptacleAtLocation Microwave_bar_1 loc_bar_5)
    (openable Drawer_bar_1) (openable Fridge_bar_1) (openable Microwave_bar_1)
    (objectType Mug_bar_1 MugType) (objectType Mug_bar_2 MugType) (objectType Knife_bar_1 KnifeType)
    (objectType Bread_bar_1 BreadType) (objectType Lamp_bar_1 LampType)
    (objectType Box_bar_1 BoxType) (objectType CD_bar_1 CDType)
    (pickupable Mug_bar_1) (pickupable Mug_bar_2) (pickupable Knife_bar_1)
    (pickupable Bread_bar_1) (pickupable Box_bar_1) (pickupable CD_bar_1)
    (cleanable Mug_bar_1) (cleanable Mug_bar_2) (heatable Mug_bar_1) (coolable Mug_bar_1)
    (sliceable Bread_bar_1) (toggleable Lamp_bar_1) (isReceptacleObject Box_bar_1)
    (inReceptacleObject CD_bar_1 Box_bar_1)
    (inReceptacle Mug_bar_1 Shelf_bar_1) (inReceptacle Mug_bar_2 Fridge_bar_1)
    (inReceptacle Knife_bar_1 Shelf_bar_2) (inReceptacle Bread_bar_1 Shelf_bar_2)
    (inReceptacle Box_bar_1 Shelf_bar_2) (inReceptacle Lamp_bar_1 Drawer_bar_1)
    (objectAtLocation Mug_bar_1 loc_bar_1) (objectAtLocation Mug_bar_2 loc_bar_4)
    (objectAtLocation Knife_bar_1 loc_bar_1) (objectAtLocation Bread_bar_1 loc_bar_1)
    (objectAtLocation Box_bar_1 loc_bar_1) (objectAtLocation Lamp_bar_1 loc_bar_2)
    (isCool Mug_bar_2)
    (canContain ShelfType MugType) (canContain ShelfType KnifeType) (canContain DrawerType MugType)
    (canContain ShelfType BreadType) (canContain FridgeType MugType) (canContain ShelfType BoxType)
    (canContain SinkBasinType MugType) (canContain MicrowaveType MugType)"""


def problem(*, objects: str = OBJECTS, facts: str = FACTS, goal: str = GOAL) -> str:
    return f"""(define (problem tiny) (:domain alfred) ; a comment (with a parenthesis
    (:objects {objects})
    (:init {facts})
    (:goal {goal}))"""


def game(**parts: str) -> Game:
    return Game.from_pddl(problem(**parts), TASK)
