"""The process that plays games on TextWorld: JSON lines in, JSON lines out, one game at a time.

Importing alfworld makes folders, loading a game overwrites `sys.argv` and `sys.stdout`, and two
games in two threads corrupt each other. All of that stays in here. Ends when its parent does.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import IO, Any

_UNKNOWN = "UNKNOWN GOAL."
_ACTIONS = "action PutObject"


def main(scratch: str) -> None:
    """Answer requests on stdin until it closes.

    `{"load": path}` → the opening; `{"step": command}` → what it did; each answered by
    `{"text", "admissible", "won"}` or `{"error"}`. First of all says `{"ready": true}` or
    `{"missing": module}`.

    Args:
        scratch: folder of this process alone, removed at the end.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever TextWorld prints goes to the log, not between the replies
    threading.Thread(target=_end_with_parent, args=(os.getppid(), scratch), daemon=True).start()
    try:
        environment = _environment()
    except ImportError as error:
        _reply(replies, {"missing": error.name or str(error)})
        return
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        _reply(replies, _answer(environment, json.loads(line)))
    shutil.rmtree(scratch, ignore_errors=True)


def _answer(environment: Any, request: Mapping[str, str]) -> dict[str, Any]:
    try:
        if "load" in request:
            environment.load(complete(json.loads(Path(request["load"]).read_bytes())))
            state = environment.reset()
        else:
            state, _, _ = environment.step(request["step"])
    except Exception as error:  # noqa: BLE001  (the boundary: any fault of TextWorld is an answer)
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "text": state.feedback,
        "admissible": state["admissible_commands"],
        "won": bool(state["won"]),
    }


def complete(game: dict[str, Any]) -> dict[str, Any]:
    """A game with the rules of the installed alfworld where it brings none of its own."""
    if game.get("pddl_domain") and _ACTIONS in game["grammar"]:
        return game
    data = resources.files("alfworld") / "data"
    task = game["grammar"].partition("Your task is to: ")[2].partition('"')[0]
    grammar = (data / "alfred.twl2").read_text(encoding="utf-8").replace(_UNKNOWN, task)
    domain = (data / "alfred.pddl").read_text(encoding="utf-8")
    return {**game, "pddl_domain": domain, "grammar": grammar}


def _environment() -> Any:
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs.pddl import PddlEnv, textgen

    def derive(self: Any, context: Any = None) -> list[Any]:
        # The original evaluates through locals().update, which Python 3.13 no longer allows.
        variables = dict((context or self.context)["variables"])
        return [textgen.TerminalSymbol(eval(self.expression, {}, variables))]

    textgen.EvalSymbol.derive = derive
    return AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))


def _reply(replies: IO[str], message: Mapping[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _end_with_parent(parent: int, scratch: str) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
