"""What all commands have in common on a terminal: help, completion, colours, widths, notes, and typing mistakes."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from attngeo.commands import asking
from attngeo.commands.app import COMMANDS, load_command
from attngeo.commands.tables import NARROWEST
from support.messages import assert_fails, assert_states
from support.terminal import on_terminal
from support.vectors import write_text

import attngeo as attngeo_package
from attngeo.checkpoints.suggestions import hub_models
from attngeo.choices import PANELS, RUNNING
from attngeo.errors import AttnGeoError, ModelNotFoundError, NetworkError, UsageError
from attngeo.studies.processes import catch_signals
from attngeo.tables import write

NAMES = [name for name in COMMANDS if name not in ("efa", "tabular")]
# The options that change no result.
RUNNING_OPTIONS = {
    "device", "memory", "workers", "offline", "download", "retries", "fresh", "quiet", "verbose", "resume",
    "save_every", "jobs", "cluster", "fail_fast",
}  # fmt: skip
# The exit codes of shells for a program that a signal or a closed pipe ended.
INTERRUPTED, CLOSED_PIPE = 130, 141
Command = Callable[..., subprocess.CompletedProcess[str]]
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][;m]")


def params(name: str) -> list[Any]:
    return list(load_command(name).params)


def test_the_table_of_commands_says_what_their_help_says() -> None:
    for name, command in COMMANDS.items():
        assert command.help == " ".join(load_command(name).help.partition("\n\n")[0].split())


def help_flag(name: str) -> str:
    """The option that shows every option of a command."""
    return "--help-all" if any(param.name == "help_all" for param in params(name)) else "--help"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_help_fits_every_terminal(inside: Command, name: str, width: int) -> None:
    """Every option and its text is there, no line is longer than the terminal, and examples can be copied whole."""
    done = inside(name, help_flag(name), COLUMNS=str(width))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    start = lines.index("Examples") + 1
    stop = lines.index("", start)
    assert all(line.startswith("  attngeo ") for line in lines[start:stop])
    assert f"  attngeo {name}" in lines[start]
    assert max(map(len, lines[start:stop])) <= 80
    assert all(len(line) <= min(width, 100) for line in lines[:start] + lines[stop:])
    for param in params(name):
        assert all(flag in done.stdout for flag in param.opts if flag.startswith("-"))
        assert all(word in done.stdout for word in (param.help or "").split() if len(word) < 30)


@pytest.mark.parametrize("group", ["efa", "tabular"])
def test_examples_of_groups_can_be_copied_whole(group: str) -> None:
    for name, command in load_command(group).commands.items():
        examples = re.findall(rf"^ *(attngeo {group} {name}\b.*)$", command.help, re.MULTILINE)
        assert examples
        assert max(map(len, examples)) <= 78


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_commands_that_exist(name: str) -> None:
    """Each option of an example is one of its command's."""
    examples = re.findall(r"^ +attngeo (\w+) ?(.*)$", load_command(name).help, re.MULTILINE)
    assert examples
    for command, arguments in examples:
        flags = {flag for param in params(command) for flag in param.opts}
        assert {word for word in arguments.split() if re.fullmatch(r"--?[a-z-]+", word) and word != "-"} <= flags


def test_options_are_the_same_in_every_command() -> None:
    """One name, one set of flags; every option has a group of --help; those that read models are quiet or verbose."""
    flags: dict[str, set[tuple[str, ...]]] = {}
    running = set()
    for name in NAMES:
        options = [param for param in params(name) if param.param_type_name == "option"]
        for param in options:
            flags.setdefault(param.name, set()).add(tuple(param.opts))
            group = getattr(param, "rich_help_panel", None) or RUNNING
            assert group in PANELS, f"{name} {param.opts}"
            running |= {param.name} if group == RUNNING else set()
        assert {"quiet", "verbose"} <= {param.name for param in options} or name == "cache"
    assert {name: each for name, each in flags.items() if len(each) > 1} == {}
    assert running == {*RUNNING_OPTIONS, "help_all"}


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("attngeo sc", ["score"]),
        ("attngeo score --conv", ["--convention"]),
        ("attngeo score --convention p", ["published"]),
        ("attngeo plot hea", ["heatmap", "heads"]),
        ("attngeo score d", ["demo:encoder", "demo:decoder", "demo:minilm"]),
        ("attngeo score org", ["org/model"]),
    ],
)
def test_shells_complete(
    words: str, completed: list[str], inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands, options, choices, and models: the embedded ones, and those in the Hub's cache."""
    (tmp_path / "models--org--model").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    done = inside(_ATTNGEO_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert done.stdout.split() == completed


@pytest.mark.parametrize(
    ("arguments", "environment"), [(["--help"], {"NO_COLOR": "1"}), (["score", "--help"], {"TERM": "dumb"})]
)
def test_no_color(arguments: list[str], environment: dict[str, str]) -> None:
    """Help is coloured on a terminal, and not where NO_COLOR or a dumb terminal forbids it."""
    assert COLOUR.search(on_terminal(*arguments))
    assert not COLOUR.search(on_terminal(*arguments, **environment))


@pytest.mark.slow
def test_results_have_no_colours_with_no_color() -> None:
    assert not COLOUR.search(on_terminal("score", "demo:encoder", NO_COLOR="1"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "demo:encoder"],
        ["score", "demo:encoder", "--per-head"],
        ["inspect", "demo:encoder"],
        ["nearest", "words.txt", "king", "-", "man", "+", "woman"],
    ],
)
@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_tables_keep_their_numbers_whole(inside: Command, arguments: list[str], width: int, tmp_path: Path) -> None:
    """On a narrow terminal there are fewer columns, not cut numbers or names of columns."""
    words = ["king", "man", "woman", "queen", "internationalisation", *(f"word{number}" for number in range(20))]
    write_text(tmp_path / "words.txt", words, np.random.default_rng(0).normal(size=(len(words), 8)))
    done = inside(*arguments, cwd=tmp_path, COLUMNS=str(width))
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    table = [line for line in shown.splitlines() if "https://" not in line and " [" not in line]
    assert "…" not in shown
    assert all(len(line) <= width for line in table)


# Models whose names leave a narrow table little room.
LONG_NAMES = ("sentence-transformers/all-MiniLM-L6-v2", "mistralai/Mistral-7B-Instruct-v0.2")
# What a table says of columns without room.
LEFT_OUT = re.compile(r"no room for:\s+([^(]*)\s+\(COLUMNS=(\d+)\s+shows\s+all\)")
# A word, or an interval in brackets, which is one thing.
WORD = re.compile(r"\[[^][]*\]|\S+")


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", *LONG_NAMES],
        ["score", *LONG_NAMES, "--circuit", "both", "--scores", "all"],
        ["score", *LONG_NAMES, "--per-head", "--sort", "symmetry", "--top", "3"],
        ["inspect", *LONG_NAMES],
        ["theory", "lemma-1", "theorem-2-several-heads", "proposition-14-constant"],
    ],
    ids=lambda arguments: "_".join(arguments).replace("_".join(LONG_NAMES), "models"),
)
def test_narrow_tables_break_no_word_and_no_interval(inside: Command, arguments: list[str], tmp_path: Path) -> None:
    """Every word of a narrow table is a word of the wide one; names of models, and medians, are all there."""
    for name, demo in zip(LONG_NAMES, ("encoder", "decoder"), strict=True):
        shutil.copytree(Path(attngeo_package.__file__).parent / "demos" / demo, tmp_path / name)
    wide = inside(*arguments, cwd=tmp_path, COLUMNS="400").stdout
    for width in (60, 80):
        narrow = inside(*arguments, cwd=tmp_path, COLUMNS=str(width)).stdout
        assert max(map(len, narrow.splitlines())) <= width
        narrow = LEFT_OUT.sub("", narrow)
        words = {word for word in WORD.findall(narrow) if set(word) != {"─"}}
        assert words <= set(WORD.findall(wide))
        assert {name for name in LONG_NAMES if name in wide} <= words
        if "--sort" not in arguments:
            assert {word for word in WORD.findall(wide) if word.startswith("[")} <= words


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "demo:encoder", "--scores", "all"],
        ["score", "demo:encoder", "--columns", "model,layer,symmetry,frobenius_norm,column_spread,row_spread"],
        ["score", "demo:encoder", "demo:decoder"],
        ["compare", "demo:encoder", "demo:decoder"],
        ["positions", "demo:decoder", "--summary"],
    ],
    ids=lambda arguments: "_".join(arguments[:3]),
)
def test_columns_without_room_are_named_with_the_width_that_shows_them(inside: Command, arguments: list[str]) -> None:
    narrow = inside(*arguments, "-q", COLUMNS="40").stdout
    assert LEFT_OUT.search(narrow)
    for names, width in LEFT_OUT.findall(narrow):
        wide = inside(*arguments, "-q", COLUMNS=width).stdout
        assert set(names.replace(",", "").split()) <= set(wide.split())
    widest = max(int(width) for _, width in LEFT_OUT.findall(narrow))
    assert not LEFT_OUT.search(inside(*arguments, "-q", COLUMNS=str(widest)).stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "demo:encoder"],
        ["lineage", "demo:encoder", "demo:decoder"],
        ["positions", "demo:decoder"],
        ["mirrors", "demo:decoder"],
        ["score", "demo:encoder"],
        ["words", "demo:encoder", "--layer", "0", "--head", "0", "--top", "2"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_terminal_without_a_width_has_the_usual_one(inside: Command, arguments: list[str]) -> None:
    """Some terminals say 0, in which rich prints nothing, or fails."""
    unset, none, odd = (inside(*arguments, COLUMNS=width) for width in ("80", "0", "9" * 5000))
    assert (none.returncode, none.stdout) == (odd.returncode, odd.stdout) == (0, unset.stdout)
    assert len(unset.stdout.splitlines()) > 3
    narrowest, narrower = (inside(*arguments, COLUMNS=width).stdout for width in (str(NARROWEST), "3"))
    assert narrower == narrowest


def test_verbose_says_what_is_read(inside: Command) -> None:
    """The place of the files, the rule that found the layers, bytes, device; only on stderr, and only with -v."""
    loud, plain, quiet = (inside("score", "demo:encoder", *more) for more in (["-v"], [], ["-q"]))
    assert loud.stdout == plain.stdout == quiet.stdout
    assert (plain.stderr, quiet.stderr) == ("", "")
    first, second, third = loud.stderr.splitlines()
    assert_states(first, "demo:encoder", "model.safetensors")
    assert first.endswith(", 1 weight file")
    assert_states(second, "demo:encoder", "3 layers", "bert", "query.weight", "key.weight", "0.2 MB", "cpu", "float32")
    assert_states(third, "demo:encoder", "15 rows")


def test_quiet_and_verbose_contradict_each_other(inside: Command) -> None:
    for name in ("score", "inspect"):
        assert_fails(inside(name, "demo:encoder", "-q", "-v"), UsageError.exit_code, "--quiet", "--verbose")


@pytest.mark.parametrize(
    ("arguments", "error", "meant"),
    [
        (["scor", "demo:minilm"], UsageError, ["'scor'", "'score'"]),
        (["score", "demo:minilm", "--conventon", "published"], UsageError, ["--conventon", "--convention"]),
        (["score", "google-bert/bert-base-uncase"], NetworkError, ["google-bert/bert-base-uncased"]),
        (["score", "bert-base-uncaseed"], NetworkError, ["google-bert/bert-base-uncased"]),
        (["score", "mistralai/Mistral-7B-v01"], NetworkError, ["mistralai/Mistral-7B-v0.1"]),
        (["score", "mistralai/Mistral-7B-v01@main"], NetworkError, ["mistralai/Mistral-7B-v0.1"]),
        (["inspect", "minilm"], NetworkError, ["demo:minilm"]),
        (["score", "demo:minlm"], ModelNotFoundError, ["encoder", "decoder", "minilm", "demo:minilm"]),
        (["score", "folder-of-mine"], NetworkError, ["folder-of-mine", "no such file or folder"]),
    ],
)
def test_mistyped_names_are_met_with_the_nearest(
    inside: Command, arguments: list[str], error: type[AttnGeoError], meant: list[str]
) -> None:
    assert_fails(inside(*arguments), UsageError.exit_code if error is UsageError else error, *meant)


def list_numbers(command: Any) -> list[str]:
    """The flags of the options of a command that take a number."""
    parameters = inspect.signature(command.callback, eval_str=True).parameters
    flags = []
    for param in command.params:
        if param.param_type_name != "option" or param.name not in parameters:
            continue
        hint = get_args(parameters[param.name].annotation)[0]  # of Annotated[int | None, …]
        if {int, float} & {hint, *get_args(hint)}:
            flags.append(max(param.opts, key=len))
    return flags


@pytest.mark.parametrize("name", COMMANDS)
def test_a_number_that_is_none_is_answered_with_the_option_and_what_was_expected(inside: Command, name: str) -> None:
    command = load_command(name)
    members = getattr(command, "commands", {"": command})
    for member, of_member in members.items():
        for flag in list_numbers(of_member):
            done = inside(name, *member.split(), flag, "many")
            assert_fails(done, UsageError.exit_code, f"{flag} is 'many'", "expected a", f"{name} {member}".strip())
            assert "Input" not in done.stderr
    assert name in ("report", "inspect", "cache", "cbow") or any(map(list_numbers, members.values()))


def test_mistyped_paths_are_met_with_their_neighbours(inside: Command, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "scores.parquet").touch()
    for given, meant in (("./checkpiont-500", "checkpoint-500"), ("./scores.parqet", "scores.parquet")):
        assert_fails(inside("score", given, cwd=tmp_path), ModelNotFoundError, given, meant)


def test_well_written_names_are_not_doubted(inside: Command) -> None:
    for name in ("mistralai/Mistral-7B-v0.1", "bert-base-uncased", "someone/unlike-any-other"):
        done = inside("score", name)
        assert_fails(done, NetworkError, name, "offline")
        assert not any(other in done.stderr for other in hub_models() if other != name)


def test_no_arguments_show_the_commands(inside: Command) -> None:
    done = inside()
    assert done.returncode == 0
    assert done.stdout == inside("--help").stdout
    assert all(re.search(rf"^  {name} +\S", done.stdout, re.MULTILINE) for name in NAMES)
    panels = dict.fromkeys(command.rich_help_panel for command in COMMANDS.values())
    assert [line for line in done.stdout.splitlines() if line in panels] == list(panels)


def test_a_deleted_working_folder_is_named(inside: Command, tmp_path: Path) -> None:
    """Libraries that load files from it would end the process without an error."""
    gone = tmp_path / "gone"
    gone.mkdir()
    with contextlib.chdir(gone):
        gone.rmdir()
        assert_fails(inside("compare", "demo:encoder", "demo:decoder"), UsageError, "working folder was deleted", "cd")
        assert inside("--version").returncode == 0


def run_into_closed_pipe(
    command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command whose stdout is a pipe that nobody reads any more, as that of `command | head -0`."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        return subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    finally:
        os.close(writes)


@pytest.mark.parametrize(
    "arguments",
    [
        "report --init",
        "--help",
        pytest.param("inspect demo:encoder", marks=pytest.mark.slow),
        pytest.param("score demo:encoder --format csv --fail-if 'layers > 0'", marks=pytest.mark.slow),
    ],
)
def test_a_closed_pipe_is_no_failed_check(arguments: str) -> None:
    """As the shell has it for every program that a closed pipe ends."""
    command = [str(Path(sys.executable).with_name("attngeo")), *shlex.split(arguments)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for environment in (buffered, buffered | {"PYTHONUNBUFFERED": "1"}):
        done = run_into_closed_pipe(command, environment)
        assert done.returncode == CLOSED_PIPE
        assert "Exception ignored" not in done.stderr


def test_a_closed_pipe_is_noticed_where_the_system_has_no_poll() -> None:
    code = "import select; del select.poll; from attngeo.commands.app import main; main()"
    done = run_into_closed_pipe([sys.executable, "-c", code, "--help"])
    assert (done.returncode, done.stderr) == (CLOSED_PIPE, "")


def test_an_option_is_no_value(inside: Command) -> None:
    done = inside("pretrain", "--compare", "--seeds", "2")
    assert_fails(done, UsageError.exit_code, "--compare", "--seeds", "attngeo pretrain --help")
    for arguments in (["score", "demo:encoder", "--stack", "--no-such"], ["report", "r.toml", "-o", "-q"]):
        assert_fails(inside(*arguments), UsageError.exit_code, *arguments[-2:])
    # After --, words may look like options.
    words = inside("nearest", "demo:minilm", "--limit", "99", "--", "king", "-", "--top")
    assert_fails(words, UsageError.exit_code, "demo:minilm", "'king'")


def test_a_file_is_not_read_and_written_nor_written_twice(inside: Command, tmp_path: Path) -> None:
    twice = inside("score", "demo:encoder", "-o", "x.html", "--plot", "x.html", cwd=tmp_path)
    assert_fails(twice, UsageError.exit_code)
    assert not list(tmp_path.iterdir())
    assert inside("score", "demo:encoder", "-q", "-o", "x.json", cwd=tmp_path).returncode == 0
    before = (tmp_path / "x.json").read_bytes()
    assert_fails(inside("plot", "layers", "x.json", "-o", "./x.json", cwd=tmp_path), UsageError.exit_code, "x.json")
    assert (tmp_path / "x.json").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["--version", "score demo:encoder --format csv", "report --init"])
def test_a_closed_stderr_costs_nothing(attngeo: Command, arguments: str) -> None:
    executable = Path(sys.executable).with_name("attngeo")
    done = subprocess.run(["sh", "-c", f"{executable} {arguments} 2>&-"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, attngeo(*arguments.split()).stdout)


@pytest.mark.parametrize("swallowed", [True, False])
def test_an_interrupt_that_a_library_swallows_or_turns_into_another_error_ends_it(
    inside: Command, monkeypatch: pytest.MonkeyPatch, swallowed: bool
) -> None:
    """As the import of numpy does."""
    real = asking.ask

    def swallow(*arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)

    def convert(*_: Any, **__: Any) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise AttributeError("module 'numpy' has no attribute 'void'") from None

    monkeypatch.setattr(asking, "ask", swallow if swallowed else convert)
    done = inside("score", "demo:encoder")
    assert_fails(done, INTERRUPTED, "interrupted")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_the_end_that_the_system_asks_for_leaves_no_unfinished_file(
    name: str, inside: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Ctrl-C, but for the exit code."""
    number = signal.Signals[name]

    def end_while_it_writes(*_: Any, **__: Any) -> str:
        signal.raise_signal(number)
        return "rows"

    monkeypatch.setitem(write.WRITERS, ".json", end_while_it_writes)
    output = tmp_path / "rows.json"
    output.write_text("old")
    done = inside("score", "demo:encoder", "-o", output)
    assert_fails(done, 128 + number, "interrupted", name)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no SIGHUP")
def test_a_signal_that_is_ignored_stays_so(inside: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SIGHUP under nohup."""
    real = asking.ask
    requests: list[bool] = []

    def hang_up(*arguments: Any, **options: Any) -> Any:
        with catch_signals(lambda: not requests.append(True)):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        return real(*arguments, **options)

    monkeypatch.setattr(asking, "ask", hang_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = inside("score", "demo:encoder")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.returncode, requests) == (0, [])


class Removed:
    """Python drops the exceptions of its removal."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_python_drops_ends_a_wait(inside: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: Any, **__: Any) -> None:
        Removed()
        threading.Event().wait(60)
        pytest.fail("the wait did not end")

    monkeypatch.setattr(asking, "ask", wait)
    done = inside("score", "demo:encoder")
    assert_fails(done, INTERRUPTED, "interrupted")


def test_fish_gets_a_candidate_a_line(inside: Command) -> None:
    done = inside(
        _ATTNGEO_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args",
        _TYPER_COMPLETE_ARGS="attngeo score --", COLUMNS="50",
    )  # fmt: skip
    assert len(done.stdout.splitlines()) > 10
    assert all(line.startswith("-") for line in done.stdout.splitlines())


def test_names_complete_without_loading_torch() -> None:
    code = (
        "import sys; from attngeo.checkpoints.suggestions import local_names\n"
        "list(local_names()); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_another_broken_pipe_is_an_error_of_its_own(inside: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(asking, "ask", broken)
    assert_fails(inside("score", "demo:encoder"), NetworkError.exit_code, "Broken pipe")


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "x" * 3000],
        ["score", "./" + "long/" * 700],
        ["score", "demo:encoder", "--layers", "9" * 5000],
        ["score", "demo:encoder", "-o", "y" * 200 + ".csv/" + "z" * 3000],
        ["score", "demo:encoder", "--fail-if", "symmetry.median < " + "w " * 4000],
        ["plot", "k" * 5000, "demo:encoder", "-o", "f.html"],
        ["pretrain", "--model", "m" * 5000],
        ["no-such-command" * 300],
    ],
    ids=lambda arguments: arguments[0][:20] + arguments[-1][:6],
)
def test_a_message_is_short_however_long_its_names_and_values_are(arguments: list[str], inside: Command) -> None:
    done = inside(*arguments)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert 20 < len(done.stderr) < 1400


@pytest.mark.parametrize("name", [*NAMES, "efa fit", "efa run", "tabular fit", "tabular simulate"])
def test_help_is_for_people_not_for_parsers(name: str, inside: Command) -> None:
    text = inside(*name.split(), "--help-all" if name != "inspect" else "--help", COLUMNS="100").stdout
    assert not re.search(r"[{}]|<=x|x>=|\.\.\.\]?\.\.\.|\[default: \(", text)


@pytest.mark.parametrize("name", [*NAMES, "efa fit", "efa run", "tabular fit", "tabular simulate"])
def test_help_shows_at_most_25_options_and_help_all_every_one(name: str, inside: Command) -> None:
    def list_options(flag: str) -> list[str]:
        shown = inside(*name.split(), flag, COLUMNS="200")
        assert shown.returncode == 0
        return re.findall(r"^  (--?[\w-]+)", shown.stdout, re.MULTILINE)

    chosen = list_options("--help")
    assert len(chosen) <= 25
    if "--help-all" in chosen:
        every = list_options("--help-all")
        assert set(chosen) < set(every)


@pytest.mark.parametrize(
    ("arguments", "lacks"),
    [("efa fit --help-all", True), ("efa --help", True), ("plot --help", True), ("--help", False)],
)
def test_without_docstrings_help_says_what_is_missing(arguments: str, lacks: bool) -> None:
    """Python removes them with -OO; the texts of options are none."""
    executable = str(Path(sys.executable).with_name("attngeo"))
    shown = []
    for flags in ([], ["-OO"]):
        command = [sys.executable, *flags, executable, *arguments.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "80"})
        assert done.stderr == ""
        shown.append(" ".join(done.stdout.split()))
    assert ["run without it" in text for text in shown] == [False, lacks]
    assert (len(shown[1]) < len(shown[0])) == lacks
    assert "None" not in shown[1]


def list_all_commands() -> list[str]:
    """Every command, group and command of a group, as a user writes them."""
    listed = [""]
    for name in COMMANDS:
        listed.append(name)
        listed += [f"{name} {member}" for member in getattr(load_command(name), "commands", {})]
    return listed


@pytest.mark.parametrize("command", list_all_commands(), ids=lambda command: command or "attngeo")
def test_help_all_works_in_every_command_and_shows_what_help_shows(command: str, inside: Command) -> None:
    usual = inside(*command.split(), "--help", COLUMNS="200")
    assert all(len(line) <= 80 for line in usual.stdout.splitlines() if line.startswith("  attngeo "))
    every = inside(*command.split(), "--help-all", COLUMNS="200")
    assert (every.returncode, every.stderr) == (0, "")
    assert re.search(r"; ([^;]+); \1\b", " ".join(every.stdout.split())) is None  # a clause that is said twice
    names = [re.findall(r"^  (--?[\w-]+|\w+)", run.stdout, re.MULTILINE) for run in (usual, every)]
    assert names[0]
    assert {*names[0]} <= {*names[1]}
