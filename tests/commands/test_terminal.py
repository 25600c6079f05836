"""What all commands have in common on a terminal: help, completion, colours, widths, notes, and typing mistakes."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attngeo.commands.app import COMMANDS, app
from attngeo.commands.help import GROUP_OF

NAMES = [function.__name__ for functions in COMMANDS.values() for function in functions]
# What --help puts under Running, because it is about no result.
RUNNING = {"device", "memory", "workers", "offline", "quiet", "verbose", "resume"}
Command = Callable[..., subprocess.CompletedProcess[str]]
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][;m]")


def params(name: str) -> list[Any]:
    import typer.main

    group: Any = typer.main.get_command(app)
    return list(group.commands[name].params)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_help_fits_every_terminal(inside: Command, name: str, width: int) -> None:
    """Every option and its text is there, no line is longer than the terminal, and examples can be copied whole."""
    done = inside(name, "--help", COLUMNS=str(width))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    start = lines.index("Examples") + 1
    stop = lines.index("", start)
    assert all(line.startswith("  attngeo ") for line in lines[start:stop])
    assert f"  attngeo {name}" in lines[start]
    assert all(len(line) <= min(width, 100) for line in lines[:start] + lines[stop:])
    for param in params(name):
        assert all(flag in done.stdout for flag in param.opts if flag.startswith("-"))
        assert all(word in done.stdout for word in (param.help or "").split() if len(word) < 30)


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_commands_that_exist(name: str) -> None:
    """Each option of an example is one of its command's."""
    function = next(each for functions in COMMANDS.values() for each in functions if each.__name__ == name)
    examples = re.findall(r"^ +attngeo (\w+) ?(.*)$", function.__doc__ or "", re.MULTILINE)
    assert examples
    for command, arguments in examples:
        flags = {flag for param in params(command) for flag in param.opts}
        assert {word for word in arguments.split() if re.fullmatch(r"--?[a-z-]+", word) and word != "-"} <= flags


def test_options_are_the_same_in_every_command() -> None:
    """One name, one set of flags; every option stands in a group; every command can be quiet and verbose."""
    flags: dict[str, set[tuple[str, ...]]] = {}
    for name in NAMES:
        options = [param for param in params(name) if param.param_type_name == "option"]
        for param in options:
            flags.setdefault(param.name, set()).add(tuple(param.opts))
        assert {"quiet", "verbose"} <= {param.name for param in options} or name == "families"
    assert {name: each for name, each in flags.items() if len(each) > 1} == {}
    assert set(flags) - set(GROUP_OF) == RUNNING
    assert set(GROUP_OF) <= set(flags)


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
def test_shells_complete(words: str, completed: list[str], tmp_path: Path) -> None:
    """Commands, options, choices, and models: the embedded ones, and those in the Hub's cache."""
    (tmp_path / "models--org--model").mkdir()
    done = subprocess.run(
        [Path(sys.executable).with_name("attngeo")],
        env={
            **os.environ, "_ATTNGEO_COMPLETE": "complete_bash", "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")), "HF_HUB_CACHE": str(tmp_path),
        },
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == completed


def on_terminal(*arguments: str, **environment: str) -> str:
    """What the command writes to a terminal of 80 columns."""
    master, slave = pty.openpty()
    command = [str(Path(sys.executable).with_name("attngeo")), *arguments]
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": "80", **environment},
    ) as process:  # fmt: skip
        os.close(slave)
        written = b""
        while True:
            try:
                some = os.read(master, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not some:
                break
            written += some
    os.close(master)
    assert process.returncode == 0
    return written.decode()


@pytest.mark.parametrize("arguments", [["--help"], ["score", "--help"], ["plot", "--help"]])
def test_no_color(arguments: list[str]) -> None:
    """Help is coloured on a terminal, and not where NO_COLOR or a dumb terminal forbids it."""
    assert COLOUR.search(on_terminal(*arguments))
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert not COLOUR.search(on_terminal(*arguments, **environment))


def test_results_have_no_colours_with_no_color() -> None:
    assert not COLOUR.search(on_terminal("score", "demo:encoder", NO_COLOR="1"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "demo:encoder"],
        ["score", "demo:encoder", "--per-head"],
        ["inspect", "demo:encoder"],
        ["nearest", "demo:minilm", "king", "-", "man", "+", "woman"],
    ],
)
@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_tables_keep_their_numbers_whole(inside: Command, arguments: list[str], width: int) -> None:
    """On a narrow terminal there are fewer columns, not cut numbers or names of columns."""
    shown = inside(*arguments, COLUMNS=str(width)).stdout
    table = [line for line in shown.splitlines() if "https://" not in line and " [" not in line]
    assert "…" not in shown
    assert all(len(line) <= width for line in table)


def test_verbose_says_what_is_read(inside: Command) -> None:
    """Where the files lie, the rule that found the layers, bytes, device; nothing of it on stdout, nor without -v."""
    loud, plain, quiet = (inside("score", "demo:encoder", *more) for more in (["-v"], [], ["-q"]))
    assert loud.stdout == plain.stdout == quiet.stdout
    assert (plain.stderr, quiet.stderr) == ("", "")
    lines = loud.stderr.splitlines()
    assert all(line.startswith("attngeo: demo:encoder: ") for line in lines)
    assert "model.safetensors in " in lines[0]
    assert lines[1].endswith(
        "3 layers found by family bert: query.weight / key.weight, 0.2 MB to read, on cpu in float32"
    )
    assert re.search(r"15 rows in \d+\.\d s$", lines[2])


def test_quiet_and_verbose_contradict_each_other(inside: Command) -> None:
    for name in ("score", "inspect"):
        told = "attngeo: --quiet and --verbose contradict each other; leave one out\n"
        done = inside(name, "demo:encoder", "-q", "-v")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["scor", "demo:minilm"], "score"),
        (["score", "demo:minilm", "--conventon", "published"], "--convention"),
        (["score", "google-bert/bert-base-uncase"], "did you mean google-bert/bert-base-uncased?"),
        (["score", "bert-base-uncaseed"], "did you mean google-bert/bert-base-uncased?"),
        (["score", "mistralai/Mistral-7B-v01"], "did you mean mistralai/Mistral-7B-v0.1?"),
        (["score", "mistralai/Mistral-7B-v01@main"], "did you mean mistralai/Mistral-7B-v0.1?"),
        (["inspect", "minilm"], "did you mean demo:minilm?"),
        (["score", "demo:minlm"], "expected one of: encoder, decoder, minilm"),
    ],
)
def test_mistyped_names_are_met_with_the_nearest(inside: Command, arguments: list[str], meant: str) -> None:
    done = inside(*arguments)
    assert done.returncode in (2, 3)
    assert meant in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_mistyped_paths_are_met_with_their_neighbours(
    inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "scores.parquet").touch()
    for given, meant in (("./checkpiont-500", "checkpoint-500"), ("./scores.parqet", "scores.parquet")):
        assert inside("score", given).stderr.endswith(f"did you mean {meant}?\n")


def test_well_written_names_are_not_doubted(inside: Command) -> None:
    for name in ("mistralai/Mistral-7B-v0.1", "bert-base-uncased", "someone/unlike-any-other"):
        assert inside("score", name).stderr == (
            f"attngeo: {name}: not in the cache, and offline mode is on; run once without it\n"
        )


def test_no_arguments_show_the_commands(attngeo: Command) -> None:
    done = attngeo()
    assert done.returncode == 0
    assert done.stdout == attngeo("--help").stdout
    assert all(re.search(rf"^  {name} +\S", done.stdout, re.MULTILINE) for name in NAMES)
    assert [line for line in done.stdout.splitlines() if line in COMMANDS] == list(COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        "score demo:encoder",
        "score demo:encoder --format csv --fail-if 'layers > 0'",
        "families",
        "report --init",
        "--help",
        "score --help",
    ],
)
def test_a_closed_pipe_is_no_failed_check(arguments: str) -> None:
    """As the shell has it for every program that a closed pipe ends."""
    executable = Path(sys.executable).with_name("attngeo")
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for environment in (buffered, buffered | {"PYTHONUNBUFFERED": "1"}):
        done = subprocess.run(
            ["bash", "-c", f"{executable} {arguments} | head -0; exit ${{PIPESTATUS[0]}}"],
            capture_output=True, text=True, check=False, timeout=60, env=environment,
        )  # fmt: skip
        assert done.returncode == 141
        assert "Exception ignored" not in done.stderr


def test_an_option_is_no_value(inside: Command) -> None:
    said = "attngeo: --compare needs a value, but --seeds follows it (see attngeo pretrain --help)\n"
    done = inside("pretrain", "--compare", "--seeds", "2")
    assert (done.returncode, done.stderr) == (2, said)
    for arguments in (["score", "demo:encoder", "--stack", "--no-such"], ["report", "r.toml", "-o", "-q"]):
        assert inside(*arguments).stderr.startswith(f"attngeo: {arguments[-2]} needs a value, but {arguments[-1]}")
    words = inside("nearest", "demo:minilm", "--limit", "99", "--", "king", "-", "--top-k")
    assert "does not know" in words.stderr  # behind --, words may look like options


def test_a_file_is_not_read_and_written_nor_written_twice(
    inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert inside("score", "demo:encoder", "-o", "x.html", "--plot", "x.html").returncode == 2
    assert not list(tmp_path.iterdir())
    assert inside("score", "demo:encoder", "-q", "-o", "x.json").returncode == 0
    before = (tmp_path / "x.json").read_bytes()
    told = "attngeo: x.json is read, expected another file to write to\n"
    assert inside("plot", "layers", "x.json", "-o", "./x.json").stderr == told
    assert (tmp_path / "x.json").read_bytes() == before


@pytest.mark.parametrize("arguments", ["--version", "score demo:encoder --format csv", "families", "report --init"])
def test_a_closed_stderr_costs_nothing(attngeo: Command, arguments: str) -> None:
    executable = Path(sys.executable).with_name("attngeo")
    done = subprocess.run(
        ["bash", "-c", f"{executable} {arguments} 2>&-"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, attngeo(*arguments.split()).stdout)


def test_an_interrupt_that_a_library_swallows_or_turns_into_another_error_ends_it(
    inside: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the import of numpy does, while it loads."""
    import signal

    from attngeo import scoring

    real = scoring.score

    def swallowed(*arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)

    def turned(*_: Any, **__: Any) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise AttributeError("module 'numpy' has no attribute 'void'") from None

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)  # whatever pytest was started with
    for broken in (swallowed, turned):
        monkeypatch.setattr(scoring, "score", broken)
        done = inside("score", "demo:encoder")
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "attngeo: interrupted\n")
    signal.signal(signal.SIGINT, before)


def test_fish_gets_a_candidate_a_line(attngeo: Command) -> None:
    done = attngeo(
        _ATTNGEO_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args",
        _TYPER_COMPLETE_ARGS="attngeo score --", COLUMNS="50",
    )  # fmt: skip
    assert len(done.stdout.splitlines()) > 10
    assert all(line.startswith("-") for line in done.stdout.splitlines())


def test_names_complete_without_loading_torch() -> None:
    code = "import sys; from attngeo.checkpoints import suggest; list(suggest.local_names()); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_another_broken_pipe_is_an_error_of_its_own(inside: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from attngeo import scoring

    def broken(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(scoring, "score", broken)
    done = inside("score", "demo:encoder")
    assert done.returncode == 3
    assert done.stderr == "attngeo: a connection was closed at its other end ([Errno 32] Broken pipe); try again\n"
