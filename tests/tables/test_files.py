"""Files that are written whole or not at all, and the lock of a folder, which ends with its process."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from support.locks import locked_elsewhere
from support.messages import assert_fails, refuses
from support.runs import small_options

from attngeo.errors import FolderInUseError, OutputError
from attngeo.pretrain import compare_runs, run
from attngeo.pretrain.options import ComparisonOptions
from attngeo.pretrain.settings import write_settings
from attngeo.reporting.report import build_report
from attngeo.tables.files import HOLDER, LOCK, atomic_write, lock_folder, remove_unfinished


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


RECIPE = 'title = "t"\n[[results]]\nname = "a"\ncommand = "score"\nmodels = ["demo:encoder"]\n'
COMPARED = ComparisonOptions(compare=("default", "symmetric"), seeds=1)


def test_the_second_is_refused_with_the_process_of_the_first(tmp_path: Path) -> None:
    with locked_elsewhere(tmp_path / "run") as holder:
        facts = (f"in use by process {holder.pid}", tmp_path / "run")
        with refuses(FolderInUseError, *facts), lock_folder(tmp_path / "run"):
            pass
    with lock_folder(tmp_path / "run"):
        pass


def test_a_lock_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name in ("old", "new", "with"):
        with lock_folder(tmp_path / name):
            assert {path.name for path in (tmp_path / name).iterdir()} == {LOCK, HOLDER}
            if name == "with":
                (tmp_path / name / "file").touch()
    with lock_folder(tmp_path / "in" / "folders"):
        pass
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["old", "with", "with/file"]


@pytest.mark.parametrize("with_worker", [False, True])
def test_a_lock_ends_with_its_process_however_it_ends(with_worker: bool, tmp_path: Path) -> None:
    """Even if a process that it forked lives on; and what it wrote of itself refuses nobody."""
    with locked_elsewhere(tmp_path, with_worker=with_worker) as holder:
        holder.kill()
        holder.wait()
        stale = (tmp_path / HOLDER).read_text()
        with lock_folder(tmp_path):
            assert (tmp_path / HOLDER).read_text() != stale
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "x" * 10**6, None])
def test_a_holder_that_does_not_say_who_it_is(text: str | None, tmp_path: Path) -> None:
    with locked_elsewhere(tmp_path):
        (tmp_path / HOLDER).unlink()
        if text is not None:
            (tmp_path / HOLDER).write_text(text)
        with refuses(FolderInUseError, "another process"), lock_folder(tmp_path):
            pass


@pytest.mark.parametrize("kind", ["file", "below a file", "folder in the way", "link"])
def test_a_folder_that_cannot_be_locked(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    if kind in ("file", "below a file"):
        folder.touch()
        folder = folder / "y" if kind == "below a file" else folder
    else:
        folder.mkdir()
        if kind == "link":
            (folder / LOCK).symlink_to(tmp_path / "other")
        else:
            (folder / LOCK).mkdir()
    with refuses(OutputError, folder), lock_folder(folder):
        pass
    assert not (tmp_path / "other").exists()


def test_the_other_processes_of_a_run_lock_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked_elsewhere(tmp_path):
        monkeypatch.setenv("RANK", "1")
        with lock_folder(tmp_path):
            pass
        assert (tmp_path / HOLDER).is_file()


def do_run(folder: Path, place: Path) -> None:
    run(small_options(folder), place)


def do_resume(folder: Path, place: Path) -> None:
    run(small_options(folder), place, resume=True)


def do_compare(folder: Path, place: Path) -> None:
    compare_runs(small_options(folder), place, comparison=COMPARED)


def do_report(folder: Path, place: Path) -> None:
    (folder / "r.toml").write_text(RECIPE)
    build_report(folder / "r.toml", place)


LIBRARY = {"pretrain": do_run, "resume": do_resume, "compare": do_compare, "report": do_report}


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_refuses_a_folder_that_is_in_use(name: str, tmp_path: Path) -> None:
    place = tmp_path / "out"
    with locked_elsewhere(place) as holder:
        before = sorted(place.rglob("*"))
        with refuses(FolderInUseError, holder.pid, place):
            LIBRARY[name](tmp_path, place)
        assert sorted(place.rglob("*")) == before


def test_a_comparison_locks_the_folders_of_all_its_runs(tmp_path: Path) -> None:
    """From the start, also of those that come later."""
    place = tmp_path / "out"
    with locked_elsewhere(place / "mlm-symmetric-seed0") as holder:
        with refuses(FolderInUseError, holder.pid, place / "mlm-symmetric-seed0"):
            do_compare(tmp_path, place)
        assert [path.name for path in place.iterdir()] == ["mlm-symmetric-seed0"]


@pytest.mark.parametrize("command", ["pretrain", "resume", "compare", "report"])
def test_the_commands_refuse_a_folder_that_is_in_use(
    command: str, inside: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text(RECIPE)
    arguments = {
        "pretrain": ["pretrain"], "resume": ["pretrain", "--resume"], "report": ["report", "r.toml"],
        "compare": ["pretrain", "--compare", "default,symmetric"],
    }[command]  # fmt: skip
    with locked_elsewhere(tmp_path / "out") as holder:
        if command == "resume":
            write_settings(small_options(tmp_path), tmp_path / "out")
        done = inside(*arguments, "-o", "out", cwd=tmp_path)
        assert_fails(done, FolderInUseError.exit_code, "out", holder.pid)
