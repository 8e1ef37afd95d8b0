from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from turncredit.core.errors import DataError
from turncredit.envs.household import files
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.generator import generate, to_file_json


def content(seed: int = 0, **changes: Any) -> dict[str, Any]:
    made = generate(TASK_TYPES[seed % 6], seed, split="train", size="small")
    return {**to_file_json(made), **changes}


def put(path: Path, data: dict[str, Any] | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def game_at(root: Path, split: str, folder: str, trial: str = "trial_0", **changes: Any) -> Path:
    return put(root / split / folder / trial / files.FILE_NAME, content(**changes))


OLD = 'action PutObject {\n    template :: "put {o} in/on {r}";\n}\n"Your task is to: x."'


def test_order_is_independent_of_how_folders_were_made(tmp_path: Path) -> None:
    names = [(f"{TASK_TYPES[i % 6]}-Mug-{i}", f"trial_{i}") for i in range(12)]
    roots = [tmp_path / "one" / "json_2.1.1", tmp_path / "two" / "json_2.1.1"]
    for root, order in zip(roots, (names, Random(1).sample(names, 12)), strict=True):
        for folder, trial in order:
            game_at(root, "train", folder, trial, seed=int(trial[6:]))
    found = [files.discover(files.resolve_root(root), "train").games for root in roots]
    assert [(g.id, g.sha256, g.task_type) for g in found[0]] == [
        (g.id, g.sha256, g.task_type) for g in found[1]
    ]
    assert [g.id for g in found[0]] == sorted(g.id for g in found[0])
    first = found[0][0]
    assert first.id == "train/" + "/".join(first.path.parts[-3:])
    assert first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()


def test_ids_are_the_same_from_cache_root_data_root_and_split_folder(tmp_path: Path) -> None:
    root = tmp_path / "json_2.1.1"
    game_at(root, "valid_seen", "pick_and_place_simple-Mug")
    listed = [
        files.discover(files.resolve_root(folder), "valid_seen").games
        for folder in (tmp_path, root, root / "valid_seen")
    ]
    assert listed[0] == listed[1] == listed[2]
    game_id = listed[0][0].id
    for folder in (tmp_path, root, root / "valid_seen"):
        assert files.path_of(files.resolve_root(folder), game_id) == listed[0][0].path
    with pytest.raises(DataError, match=r'no split "train".*There: valid_seen'):
        files.discover(files.resolve_root(root / "valid_seen"), "train")


def test_what_is_left_out_is_counted_with_its_reason(tmp_path: Path) -> None:
    game_at(tmp_path, "train", "pick_and_place_simple-Mug-None-Desk-1")
    game_at(tmp_path, "train", "pick_and_place_with_movable_recep-Mug-Bowl-Desk-1")
    game_at(tmp_path, "train", "pick_cool_then_place_in_recep-AppleSliced-None-Desk-1")
    game_at(tmp_path, "train", "look_at_obj_in_light-Mug-1", solvable=False)
    game_at(tmp_path, "train", "look_at_obj_in_light-Mug-2", grammar=OLD)
    put(tmp_path / "train/look_at_obj_in_light-Mug-3/trial_0/traj_data.json", {"task_type": "x"})
    unchecked = content()
    del unchecked["solvable"]
    put(tmp_path / "train/look_at_obj_in_light-Mug-4/trial_0" / files.FILE_NAME, unchecked)
    game_at(tmp_path, "train", "something_else-Mug-5")
    found = files.discover(tmp_path, "train")
    assert len(found.games) == 1
    assert dict(found.excluded) == {
        "movable receptacle (not supported by the games)": 1,
        "sliced object (not supported by the games)": 1,
        "unsolvable": 1,
        files.OLD_WORDING: 1,
        "no game.tw-pddl beside traj_data.json": 1,
        "no solvable mark (never checked)": 1,
        "unknown task type": 1,
    }


def test_traj_data_names_the_task_type(tmp_path: Path) -> None:
    path = game_at(tmp_path, "train", "renamed-by-hand")
    put(path.parent / "traj_data.json", {"task_type": "look_at_obj_in_light"})
    assert files.discover(tmp_path, "train").games[0].task_type == "look_at_obj_in_light"


def test_a_filter_on_task_types(tmp_path: Path) -> None:
    game_at(tmp_path, "train", "look_at_obj_in_light-Mug")
    game_at(tmp_path, "train", "pick_and_place_simple-Mug")
    found = files.discover(tmp_path, "train", ("look_at_obj_in_light",))
    assert [g.task_type for g in found.games] == ["look_at_obj_in_light"]
    assert dict(found.excluded) == {"other task type (filtered)": 1}
    with pytest.raises(DataError, match='Did you mean "look_at_obj_in_light"'):
        files.discover(tmp_path, "train", ("look_at_obj_in_ligth",))


def test_a_split_of_old_games_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = game_at(tmp_path, "train", "look_at_obj_in_light-Mug", grammar=OLD)
    with pytest.raises(DataError, match="1 × old wording"):
        files.discover(tmp_path, "train")
    with pytest.raises(DataError, match="alfworld-download"):
        files.read(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "torn"),
        (json.dumps(content())[:-50], "torn"),
        ("[1, 2]", "needs the texts"),
        (json.dumps({"pddl_problem": "(define"}), "needs the texts"),
        (json.dumps(content(grammar="no task")), "Your task is to"),
        (json.dumps(content(pddl_problem="(define")), "missing"),
        (json.dumps(content(walkthrough=[1])), "walkthrough"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = put(tmp_path / "game.tw-pddl", text)
    with pytest.raises(DataError, match=r"game\.tw-pddl") as error:
        files.read(path)
    assert says in str(error.value)


def test_a_torn_file_stops_the_listing(tmp_path: Path) -> None:
    put(tmp_path / "train/look_at_obj_in_light-Mug/trial_0" / files.FILE_NAME, '{"grammar": "')
    with pytest.raises(DataError, match="torn"):
        files.discover(tmp_path, "train")


def test_a_file_that_changed_since_it_was_listed_is_refused(tmp_path: Path) -> None:
    path = game_at(tmp_path, "train", "look_at_obj_in_light-Mug")
    digest = files.discover(tmp_path, "train").games[0].sha256
    put(path, content(seed=1))
    with pytest.raises(DataError, match="changed since it was listed"):
        files.read(path, sha256=digest)


def test_where_the_root_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALFWORLD_DATA", "TURNCREDIT_DATA"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DataError, match="--data-root DIR or set ALFWORLD_DATA"):
        files.resolve_root()
    (tmp_path / "shared/alfworld").mkdir(parents=True)
    monkeypatch.setenv("TURNCREDIT_DATA", str(tmp_path / "shared"))
    (tmp_path / "shared/alfworld/games.tar.zst").touch()
    with pytest.raises(DataError, match=r"still packed.*tar --zstd -xf"):
        files.resolve_root()
    game_at(tmp_path / "shared/alfworld", "train", "look_at_obj_in_light-Mug")
    assert files.resolve_root() == tmp_path / "shared/alfworld"
    game_at(tmp_path / "cache/json_2.1.1", "train", "look_at_obj_in_light-Mug")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "cache"))
    assert files.resolve_root() == tmp_path / "cache/json_2.1.1"
    with pytest.raises(DataError, match="does not exist"):
        files.resolve_root(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no game"):
        files.path_of(files.resolve_root(), "train/../train/look_at_obj_in_light-Mug/trial_0")
    with pytest.raises(DataError, match="no game"):
        files.path_of(files.resolve_root(), __file__)  # no id reaches outside the root
