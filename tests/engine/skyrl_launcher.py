"""Starts SkyRL's Tinker server, or its engine, in this interpreter: `api …` or `engine …`.

Run by the interpreter that has SkyRL. Two things of it do not work as they are: on Python 3.11
pydantic refuses `typing.TypedDict`, and the server starts its engine through `uv run`.
"""

from __future__ import annotations

import runpy
import sys
import typing


def main() -> None:
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
    role = sys.argv.pop(1)
    if role == "engine":
        runpy.run_module("skyrl.tinker.engine", run_name="__main__", alter_sys=True)
        return
    _serve()


def _serve() -> None:
    """What `python -m skyrl.tinker.api` does, with the engine started by this file."""
    import argparse

    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    def command(parent: list[str], config: EngineConfig) -> list[str]:
        return [sys.executable, __file__, "engine", *config_to_argv(config)]

    api._build_uv_run_cmd_engine = command
    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    parser.add_argument("--port", type=int)
    given = vars(parser.parse_args())
    port = given.pop("port")
    api.app.state.engine_config = EngineConfig.model_validate(given)
    uvicorn.run(api.app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
