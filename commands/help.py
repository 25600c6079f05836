"""The layout of `--help`: the purpose of a command, examples to copy, and its options in groups.

Typer's own panels have a column each for flags, short flags, negative flags, types and texts. On a terminal of 80
characters that leaves about thirty for the texts. Here names and types share one column.
"""

from __future__ import annotations

import inspect
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise, takewhile
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Typer, TyperException
from typer.core import TyperCommand, TyperGroup

from attngeo.choices import PANELS, RUNNING, find_new_name
from attngeo.errors import NetworkError, UsageError, require_extra

from .messages import FLAGS
from .threads import prepare_threads

# Typer's names of types → short ones.
TYPES = {"<int>": "N", "<int range>": "N", "<float>": "X", "<str>": "TEXT", "<list[Path]>": "FILE", "<path>": "PATH"}
CLOSED_PIPE = 128 + 13
# What --help says where Python has removed the docstrings, which have descriptions and examples.
NO_DOCSTRINGS = "Python's -OO (or PYTHONOPTIMIZE=2) removes descriptions and examples; run without it to see them."
# Names and texts are side by side from this width on; the second number is the most that names take.
SIDE_BY_SIDE, WIDEST_NAME = 60, 32
WIDEST = 100


class Helpful:
    """The common base of commands and groups: `--help` prints while arguments are parsed, to a pipe that may close."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Parse the arguments."""
        with _pipe():
            return super().make_context(*args, **more)  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The whole text of --help."""
        console = Console(highlight=False, markup=False, emoji=False)
        console.width = min(console.width, WIDEST)
        with console.capture() as capture:
            for part in _list_parts(self, ctx):
                console.print(part, soft_wrap=bool(getattr(part, "no_wrap", False)))
        formatter.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


# An option of one command, which users look for in the others with conditions.
BASELINE = "--baseline"


class Command(Helpful, TyperCommand):
    """A command with its help in groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option whose value would be the next option, a stray --baseline, and former names of options.

        The parser itself would accept the first.
        """
        flags: dict[str, Any] = {}
        for param in self.get_params(ctx):
            if param.param_type_name == "option":
                flags |= dict.fromkeys((*param.opts, *param.secondary_opts), param)
        before_dashes = [*takewhile(lambda argument: argument != "--", args)]
        names = [argument.partition("=")[0] for argument in before_dashes]
        if BASELINE in names and not any(flag.startswith(BASELINE) for flag in flags):
            raise UsageError(
                f"no such option: {BASELINE}; only attngeo score has it, and the first model of attngeo compare is its "
                f"baseline (see {ctx.command_path} --help)"
            )
        for name in names:
            prefix = "--no-" if name.startswith("--no-") else "--"
            known = [_name_option(flag, prefix) for flag in flags if flag.startswith(prefix)]
            new_name = find_new_name(_name_option(name, prefix), known)
            if name.startswith("--") and new_name is not None:
                raise UsageError(f"no such option: {name}; it is now called {prefix}{new_name.replace('_', '-')}")
        for option, following in pairwise(before_dashes):
            takes_value = option in flags and not getattr(flags[option], "is_flag", True)
            if takes_value and (following in flags or following.startswith("--")):
                raise UsageError(f"{option} needs a value, but {following} follows it (see {ctx.command_path} --help)")
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            if getattr(error, "ctx", None) is None:  # for a missing or needless value, which then names no command
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command. It ends when the reader of its output closes the pipe."""
        FLAGS.clear()
        for param in self.params:
            is_off = bool(param.secondary_opts) and ctx.params.get(param.name) is False
            flag = (param.secondary_opts if is_off else param.opts)[0]
            if flag.startswith("-"):
                FLAGS[str(param.name)] = flag
        prepare_threads(ctx.params.get("jobs") or 1)
        with _pipe():
            try:
                with require_extra():
                    return super().invoke(ctx)
            finally:
                sys.stdout.flush()


def _name_option(flag: str, prefix: str) -> str:
    """The name of an option in Python, from its flag."""
    return flag.removeprefix(prefix).replace("-", "_")


class Group(Helpful, TyperGroup):
    """The list of commands, in groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a command, print the list of commands. A group has no option that --help leaves out."""
        if args[:1] in ([], ["--help-all"]):
            args = ["--help", *args[1:]]
        return super().parse_args(ctx, args)


def make_group(name: str, help: str, panels: Mapping[str, Iterable[Callable[..., None]]]) -> Typer:
    """A command with sub-commands. panels: title → those under it."""
    group = Typer(name=name, help=help, cls=Group)
    for title, commands in panels.items():
        for command in commands:
            group.command(cls=Command, rich_help_panel=title)(command)
    return group


@contextmanager
def _pipe() -> Iterator[None]:
    """Exit with the code that shells use for a closed pipe; 1 would mean a failed check."""
    try:
        yield
    except BrokenPipeError as error:
        if not _nobody_reads():
            raise NetworkError(f"a connection was closed by the other side ({error}); try again") from error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(CLOSED_PIPE) from None


def _nobody_reads() -> bool:
    """Whether stdout is a pipe whose other end is closed. Other connections can break, too."""
    if not hasattr(select, "poll"):  # Windows, whose sockets raise other errors
        return True
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _list_parts(command: Any, ctx: Any) -> Iterator[RenderableType]:
    usage = command.get_usage(ctx).removeprefix("Usage: ").strip()
    yield Text.assemble(("Usage: ", "bold"), re.sub(r"\{([A-Z]+)\}", r"\1", usage))
    yield from _list_paragraphs(command.help or "")
    members = getattr(command, "commands", {}).values()
    if sys.flags.optimize > 1 and not all(part.help for part in (command, *members)):
        yield from _list_paragraphs(NO_DOCSTRINGS)
    for title, records in _group_records(command, ctx).items():
        yield from _list_records(title, records)
    yield from _list_paragraphs(command.epilog or "")


def _list_paragraphs(text: str) -> Iterator[RenderableType]:
    """The paragraphs of a docstring. A title with indented lines stays as it is: examples.

    Indented lines with two spaces inside are names and their meanings.
    """
    for paragraph in filter(None, inspect.cleandoc(text).split("\n\n")):
        first, *rest = paragraph.splitlines()
        lines = [line.strip() for line in rest]
        if not (first.endswith(":") and all(line.startswith(" ") for line in rest)):
            yield Text("\n" + " ".join(paragraph.split()))
        elif all("  " in line for line in lines):
            records = [(name, meaning) for name, meaning in (re.split("  +", line, maxsplit=1) for line in lines)]
            yield from _list_records(first.removesuffix(":"), records)
        else:
            yield Text("\n" + first.removesuffix(":"), style="bold")
            # Lines are not wrapped on a narrow terminal, so that they can be copied.
            yield from (Text(f"  {line}", style="green", no_wrap=True, overflow="ignore") for line in lines)


def _group_records(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Title → name and text of each argument, option or command under it."""
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", *PANELS)}
    for param in command.get_params(ctx):
        if (record := param.get_help_record(ctx)) is None:
            continue
        name, about = record
        about = re.sub(r"\[default: \((.*?)\)(?=\]|; )", r"[default: \1", about).removesuffix(".")
        about = re.sub(r"(\d+)<=x<=(\d+)", r"from \1 to \2", about)
        if param.param_type_name == "argument":
            groups["Arguments"].append((name.partition(" <")[0], about))
        else:
            name = re.sub(r"<.*?>", lambda kind: TYPES.get(kind[0], kind[0][1:-1]), name)
            groups[getattr(param, "rich_help_panel", None) or RUNNING].append((name, about))
    if isinstance(command, Group):
        for name, member in command.commands.items():
            purpose = " ".join((member.help or "").partition("\n\n")[0].split())
            groups.setdefault(str(getattr(member, "rich_help_panel", "")), []).append((name, purpose))
        groups["Options"] = groups.pop(RUNNING)
    return {title: records for title, records in groups.items() if records}


def _list_records(title: str, records: list[tuple[str, str]]) -> Iterator[RenderableType]:
    """A title, then names beside their meanings; on a narrow terminal, names above them."""
    yield Text(f"\n{title}", style="bold")
    if Console().width < SIDE_BY_SIDE:
        for name, text in records:
            yield Padding(Text(name, style="cyan"), (0, 0, 0, 2))
            yield Padding(Text(text), (0, 0, 0, 6))
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="cyan", width=min(WIDEST_NAME, max(len(name) for name, _ in records)), overflow="fold")
    grid.add_column(ratio=1)
    for name, text in records:
        grid.add_row(Text(name), Text(text))
    yield Padding(grid, (0, 0, 0, 2))
