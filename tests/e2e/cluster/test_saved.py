"""Saved data of etcd."""

from __future__ import annotations

import os
from pathlib import Path

from e2e.cluster import saved
from e2e.cluster.home import Home


def data(folder: Path, content: str) -> Path:
    (folder / "member").mkdir(parents=True)
    (folder / "member" / "db").write_text(content)
    os.utime(folder, (0, 0))
    return folder


def test_data_is_restored_as_it_was_saved(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    assert not saved.restore(home, "0abc", tmp_path / "new")
    saved.save(home, "0abc", data(tmp_path / "old", "content"))
    assert saved.restore(home, "0abc", tmp_path / "new")
    assert (tmp_path / "new" / "member" / "db").read_text() == "content"


def test_a_copy_that_was_cut_short_is_not_restored_and_not_in_the_way(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    data(home.state("partial-0abc"), "half")
    assert not saved.restore(home, "0abc", tmp_path / "new")
    saved.save(home, "0abc", data(tmp_path / "old", "whole"))
    assert saved.restore(home, "0abc", tmp_path / "new")
    assert (tmp_path / "new" / "member" / "db").read_text() == "whole"


def test_only_the_last_few_are_kept(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    source = data(tmp_path / "old", "content")
    for number in range(5):
        saved.save(home, f"{number}abc", source)
        os.utime(home.state(f"{number}abc"), (number + 1, number + 1))
    saved.save(home, "5abc", source)
    assert sorted(path.name for path in (home.root / "state").iterdir()) == ["3abc", "4abc", "5abc"]
