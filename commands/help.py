"""How `--help` looks: what a command is for, examples that can be copied, and its options in groups.

Typer's own panels give the flags, the short flags, the negative flags, the types and the texts a column each, which
leaves the texts about thirty characters of a terminal of 80. Here names and types share one.
"""

from __future__ import annotations

import inspect
import os
import re
import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from attngeo.errors import NetworkError, UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# The groups of options, in this order, and what is in each, in every command that has it. The rest is about running.
GROUPS = {
    "Model and task": ("init", "model", "objective", "task", "mlm_probability", "dimensions", "window", "negative"),
    "What is read": (
        "per_head", "stack", "layers", "questions", "keep_duplicates", "table", "candidates", "case", "compose",
        "limit", "tokenised", "keep_case", "min_count", "data", "text_column", "tokenizer", "vocab_size", "pack",
        "published_text", "seq_len",
    ),
    "What is drawn": ("score", "layer", "head", "where", "width", "height"),
    "What is computed": (
        "gamma", "convention", "with_bias", "fold_norm", "rope_offset", "precision", "method", "normalise", "centre",
        "whiten", "own", "resample", "draws", "seed", "top_k",
    ),
    "Optimisation": (
        "steps", "epochs", "batch_size", "grad_accum", "lr", "warmup", "weight_decay", "log_every", "save_every",
    ),
    "Comparison": ("compare", "objectives", "seeds"),
    "Results": (
        "output", "format", "start", "plot", "fail_if", "questions_output", "comparisons_output", "published",
        "report_to",
    ),
    "Running": (),
}  # fmt: skip
GROUP_OF = {name: title for title, names in GROUPS.items() for name in names}
RUNNING = "Running"
# How Typer names the types of values, and how a person would.
TYPES = {"<int>": "N", "<int range>": "N", "<float>": "X", "<str>": "TEXT", "<list[Path]>": "FILE", "<path>": "PATH"}
CLOSED_PIPE = 128 + 13
# Names and texts stand side by side from this width on, with at most so much for the names.
SIDE_BY_SIDE, WIDEST_NAME = 60, 32
WIDEST = 100


class Command(TyperCommand):
    """A command with its help in groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option that takes the next option for its value, which the parser lets pass."""
        flags = {flag: param for param in self.get_params(ctx) for flag in (*param.opts, *param.secondary_opts)}
        for option, following in pairwise(takewhile(lambda argument: argument != "--", args)):
            takes_value = option in flags and not getattr(flags[option], "is_flag", True)
            if takes_value and (following in flags or following.startswith("--")):
                raise UsageError(f"{option} needs a value, but {following} follows it (see {ctx.command_path} --help)")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run it, unless it is asked to be quiet and to say more. Where nobody reads its output any more, it ends."""
        if ctx.params.get("quiet") and ctx.params.get("verbose"):
            raise UsageError("--quiet and --verbose contradict each other; leave one out")
        with _pipe():
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Parse the arguments; --help prints here."""
        with _pipe():
            return super().make_context(*args, **more)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The whole text of --help."""
        formatter.write(_rendered(_parts(self, ctx)))


class Group(TyperGroup):
    """The list of commands, in groups."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Parse the arguments; --help and --version print here."""
        with _pipe():
            return super().make_context(*args, **more)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The whole text of --help."""
        formatter.write(_rendered(_parts(self, ctx)))


@contextmanager
def _pipe() -> Iterator[None]:
    """End as the shell has it for a program whose pipe is closed; 1 would say that a check did not hold."""
    try:
        yield
    except BrokenPipeError as error:
        if not _nobody_reads():
            raise NetworkError(f"a connection was closed at its other end ({error}); try again") from error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(CLOSED_PIPE) from None


def _nobody_reads() -> bool:
    """Whether stdout is a pipe whose other end is closed, rather than some other connection."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _parts(command: Command | Group, ctx: Any) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text.assemble(("Usage: ", "bold"), command.get_usage(ctx).removeprefix("Usage: ").strip())
    yield from _prose(command.help or "")
    for title, records in _groups(command, ctx).items():
        yield from _section(title, records)
    yield from _prose(command.epilog or "")


def _prose(text: str) -> Iterator[RenderableType]:
    """The paragraphs of a docstring; a title and indented lines, as of examples, stay lines.

    Lines with two spaces in them are names and what they mean.
    """
    from rich.text import Text

    for paragraph in filter(None, inspect.cleandoc(text).split("\n\n")):
        first, *rest = paragraph.splitlines()
        lines = [line.strip() for line in rest]
        if not (first.endswith(":") and all(line.startswith(" ") for line in rest)):
            yield Text("\n" + " ".join(paragraph.split()))
        elif all("  " in line for line in lines):
            pairs = (line.partition("  ") for line in lines)
            yield from _section(first.removesuffix(":"), [(name, text.strip()) for name, _, text in pairs])
        else:
            yield Text("\n" + first.removesuffix(":"), style="bold")
            # Whole lines, also where the terminal is narrower, so that they can be copied.
            yield from (Text(f"  {line}", style="green", no_wrap=True, overflow="ignore") for line in lines)


def _groups(command: Command | Group, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Title → name and text of each argument, option or command under it."""
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", *GROUPS)}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None:
            continue
        name, about = record[0], re.sub(r"\[default: \((.*?)\)\]", r"[default: \1]", record[1])
        if param.param_type_name == "argument":
            groups["Arguments"].append((name.partition(" <")[0], about))
        else:
            name = re.sub(r"<.*?>", lambda kind: TYPES.get(kind[0], kind[0][1:-1]), name)
            groups[GROUP_OF.get(param.name, RUNNING)].append((name, about))
    if isinstance(command, Group):
        for name in command.list_commands(ctx):
            each: Any = command.get_command(ctx, name)
            purpose = " ".join(each.help.partition("\n\n")[0].split())
            groups.setdefault(each.rich_help_panel, []).append((name, purpose))
        groups["Options"] = groups.pop(RUNNING)
    return {title: records for title, records in groups.items() if records}


def _section(title: str, records: Iterable[tuple[str, str]]) -> Iterator[RenderableType]:
    """A title, and under it names beside what they mean; on narrow terminals names above it."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    yield Text(f"\n{title}", style="bold")
    records = list(records)
    if _console().width < SIDE_BY_SIDE:
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


def _rendered(parts: Iterable[RenderableType]) -> str:
    """The parts one below the other, coloured where stdout is a terminal that wants colours."""
    console = _console()
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=bool(getattr(part, "no_wrap", False)))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDEST)
    return console
