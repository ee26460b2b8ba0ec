"""What is watched, and what is not."""

from pathlib import Path

from mrtr_server.cli.dev_server import changed_names, left_out
from mrtr_server.dev.effects import shown_path


def test_folders_of_environments_and_builds_are_left_out(tmp_path: Path) -> None:
    for name in ("shop", "tests", ".git", "node_modules", "build", "env"):
        (tmp_path / name).mkdir()
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "setup.py").write_text("")
    assert {Path(each).name for each in left_out([str(tmp_path)])} == {".git", "node_modules", "build", "env"}


def test_some_of_many_changes_are_named() -> None:
    assert changed_names([Path(f"{name}.py").resolve() for name in "dcbae"]) == "a.py, b.py, c.py and 2 more"


def test_files_are_named_from_the_working_directory() -> None:
    assert shown_path(str(Path("shop/server.py").resolve())) == str(Path("shop/server.py"))
    assert shown_path("/elsewhere/server.py") == "/elsewhere/server.py"
