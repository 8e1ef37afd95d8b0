from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from turncredit.cli.main import main
from turncredit.envs.household import files


def write_transcript(path: Path, game_id: str, game: Path, *, bend: bool = False) -> None:
    loaded = files.read(game)
    play, steps = loaded.game.play(), []
    for command in (None, "look", "nonsense", *loaded.walkthrough):
        if command is not None:
            play.act(command)
        shown = {"observation": play.text, "admissible": list(play.admissible), "won": play.won}
        steps.append({"command": command, **shown})
    if bend:
        steps[-1]["won"] = False
    with gzip.open(path, "at", encoding="utf-8") as file:
        file.write(json.dumps({"game": game_id, "steps": steps}) + "\n")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    out = tmp_path / "made"
    assert main(["games", "generate", "--out", str(out), "--games", "6", "--seed", "1"]) == 0
    return out


def test_generate_is_reproducible_and_never_overwrites(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["games", "generate", "--games", "6", "--seed", "1", "--out"]
    assert main([*command, str(made)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, str(made), "--overwrite"]) == 0
    assert main([*command, str(tmp_path / "again")]) == 0
    one, two = (files.discover(root, "train").games for root in (made, tmp_path / "again"))
    assert [(g.id, g.sha256) for g in one] == [(g.id, g.sha256) for g in two]
    assert sorted({g.task_type for g in one}) == sorted(files.TASK_TYPES)
    assert not list(made.rglob("*.part"))


def test_list(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["games", "list", "--data-root", str(made), "--ids"]) == 0
    printed = capsys.readouterr().out
    assert "train: 6 games, sha256 " in printed
    assert "0  excluded" in printed
    assert files.discover(made, "train").games[0].id in printed


def test_replay(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.jsonl.gz"
    games = files.discover(made, "train").games
    for game in games[:3]:
        write_transcript(record, game.id, game.path)
    command = ["games", "replay", str(record), "--data-root", str(made)]
    assert main(command) == 0
    assert capsys.readouterr().out.endswith("3 passed, 0 failed\n")
    write_transcript(record, games[3].id, games[3].path, bend=True)
    assert main(command) == 1
    printed = capsys.readouterr().out
    assert "won" in printed
    assert printed.endswith("3 passed, 1 failed\n")


@pytest.mark.parametrize(
    "content", [b"", b"no json\n", b'{"game": 1, "steps": []}', b"\x1f\x8b\x08"]
)
def test_a_bad_transcript_file_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    record = tmp_path / "record.jsonl"
    record.write_bytes(content)
    assert main(["games", "replay", str(record), "--data-root", str(made)]) == 2
    assert "record.jsonl" in capsys.readouterr().err


def test_play_reads_commands_from_a_pipe(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    game = files.discover(made, "train").games[0]
    lines = ["?", "lok", *files.read(game.path).walkthrough]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    assert main(["games", "play", "--data-root", str(made), "--task", game.id]) == 0
    printed = capsys.readouterr().out
    assert 'Nothing happens. Did you mean "look"?' in printed
    assert printed.endswith(f"solved in {len(lines) - 1} commands\n")


def test_play_ends_with_its_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("look\n"))
    assert main(["games", "play", "--seed", "3"]) == 0
    assert capsys.readouterr().out.endswith("not solved, after 1 commands\n")


def test_check_env(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--train-games", "12", "--eval-games-per-split", "12", "--tasks", "1"]
    assert main(["check-env", "household", *settings]) == 0
    assert capsys.readouterr().out.endswith("12 passed, 0 failed\n")


def test_check_env_of_a_users_own_module_exits_1_on_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "silent_house.py").write_text(
        "from turncredit.envs.household import Config, Household\n"
        "class Env(Household):\n"
        "    instructions = ''\n"
        "    def __init__(self):\n"
        "        super().__init__(Config(train_games=12, eval_games_per_split=12))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check-env", "silent_house:Env", "--tasks", "1"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED  the interface is complete   (instructions must be some text)" in printed
    assert printed.endswith("11 passed, 1 failed\n")


def test_a_missing_subcommand_or_a_typo_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["games"]) == 2
    assert "verify" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["games", "lst"])
    assert 'Did you mean "list"' in capsys.readouterr().err
