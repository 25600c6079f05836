"""The checkpoints in a run's folder."""

from __future__ import annotations

from pathlib import Path

from attngeo.pretrain.checkpoints import (
    MARK,
    CheckpointMark,
    find_last_checkpoint,
    list_checkpoints,
    read_mark,
    remove_broken,
    write_mark,
)


def test_a_mark_is_read_as_it_was_written(tmp_path: Path) -> None:
    mark = CheckpointMark(loss_sum=0.1 + 0.2, logged_at=7, seconds=1.5)
    write_mark(tmp_path, mark)
    assert read_mark(tmp_path) == mark
    assert read_mark(tmp_path / "nowhere") is None


def test_the_last_checkpoint_is_the_last_whole_one(tmp_path: Path) -> None:
    assert find_last_checkpoint(tmp_path) is None
    assert find_last_checkpoint(tmp_path / "nowhere") is None
    for step in (9, 10, 11, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    write_mark(tmp_path / "checkpoint-9", CheckpointMark(1.0, 9, 1.0))
    write_mark(tmp_path / "checkpoint-10", CheckpointMark(1.0, 10, 1.0))
    (tmp_path / "checkpoint-11" / MARK).write_text("")  # killed while it wrote the mark
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in (9, 10, 11, 100)]
    assert find_last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert len(list(tmp_path.iterdir())) == 5  # finding removes nothing
    remove_broken(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-9", "checkpoint-best"]
