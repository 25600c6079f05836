"""Files that are written whole or not at all, also if Ctrl-C is pressed again and again."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from attngeo.errors import OutputError
from attngeo.tables.files import atomic_write, remove_unfinished


class SecondInterrupt:
    """Raises KeyboardInterrupt at one of the moments when Python acts on a signal, counted from `start`.

    These are the beginning of each Python function and the end of each function of C.
    """

    def __init__(self, moment: int) -> None:
        self.left, self.raised = moment, False

    def start(self) -> None:
        sys.setprofile(self._on_event)

    def _on_event(self, frame: Any, event: str, _: Any) -> None:
        # Python reports as a call that a generator resumes with an exception, but acts on no signal there.
        resumed = event == "call" and frame.f_code is atomic_write.__wrapped__.__code__  # type: ignore[attr-defined]
        if event not in ("call", "c_return") or resumed:
            return
        if not self.left:
            sys.setprofile(None)
            self.raised = True
            raise KeyboardInterrupt
        self.left -= 1


@pytest.mark.parametrize("written", [False, True])
def test_a_second_interrupt_at_any_moment_leaves_nothing_half_written(written: bool, tmp_path: Path) -> None:
    """written: it is the first one, and arrives after the block."""
    path = tmp_path / "x.txt"
    profile = sys.getprofile()
    for moment in range(500):
        path.write_text("old")
        second = SecondInterrupt(moment)
        try:
            with atomic_write(path) as partial:
                partial.write_text("new")
                second.start()
                if not written:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(profile)
        assert [each.name for each in tmp_path.iterdir()] == ["x.txt"], f"interrupted at moment {moment}"
        assert path.read_text() in (("old", "new") if written else ("old",))
        if not second.raised:
            break
    assert moment > 1
    assert not second.raised


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def write() -> None:
        with atomic_write(path) as partial:
            partial.write_text("new")
            raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match=r"x\.txt cannot be written \(No space left"):
        write()
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_does_not_stop_the_removal_of_a_folder(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    remove = shutil.rmtree

    def interrupt(path: Path, **options: Any) -> None:
        signal.raise_signal(number)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupt)
    before = signal.signal(number, signal.default_int_handler)
    try:
        remove_unfinished(folder)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert not folder.exists()
