"""Commands get their options from the options classes: every field, with its help, choices and default."""

from __future__ import annotations

import re

import pytest
from attngeo.commands.app import COMMANDS as COMMANDS_BY_NAME, load_command
from conftest import Command

from attngeo.analogies.options import AnalogyOptions, NearestOptions
from attngeo.changes.compare_options import CompareOptions
from attngeo.changes.lineage_options import LineageOptions
from attngeo.circuits.compose_options import ComposeOptions
from attngeo.circuits.mirror_options import MirrorOptions
from attngeo.circuits.word_options import WordOptions
from attngeo.embeddings.options import CbowOptions
from attngeo.offsets.options import PositionOptions
from attngeo.options import PANELS, Options, choices_of, options_of
from attngeo.scores.options import ScoreOptions
from attngeo.updates.options import GradientOptions

COMMANDS: dict[str, type[Options]] = {
    "score": ScoreOptions, "analogy": AnalogyOptions, "nearest": NearestOptions, "cbow": CbowOptions,
    "gradients": GradientOptions, "positions": PositionOptions, "words": WordOptions, "compose": ComposeOptions,
    "compare": CompareOptions, "mirrors": MirrorOptions,
    "lineage": LineageOptions,
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_field_in_its_group(inside: Command, command: str) -> None:
    advanced = any(declared.advanced for declared in options_of(COMMANDS[command]).values())
    run = inside(command, "--help-all" if advanced else "--help", COLUMNS="200")
    assert run.returncode == 0
    text = " ".join(run.stdout.split())
    groups = re.split(r"\n\n(?=\S)", run.stdout)
    for name, declared in options_of(COMMANDS[command]).items():
        flag = (declared.flags or (f"--{name.replace('_', '-')}",))[0]
        assert declared.help in text, name
        assert all(choice in text for choice in choices_of(COMMANDS[command], name))
        group = next(group for group in groups if group.startswith(declared.panel))
        assert flag in group, name


def test_every_option_of_every_command_is_in_a_group() -> None:
    for name in COMMANDS_BY_NAME:
        options = [param for param in load_command(name).params if param.param_type_name == "option"]
        assert {param.rich_help_panel for param in options} <= set(PANELS), name


def test_a_value_that_the_class_refuses_is_a_usage_error(inside: Command) -> None:
    for arguments, facts in (
        (["score", "demo:minilm", "--gamma", "nan"], ["--gamma is", "nan"]),
        (["score", "demo:minilm", "--layers", "3-1"], ["--layers is", "3-1"]),
        (["analogy", "demo:minilm", "--n-draws", "1000000"], ["--n-draws is", "1,000,000", "100,000"]),
        (["analogy", "demo:minilm", "--memory", "much"], ["--memory is", "much"]),
        (["nearest", "demo:minilm", "king", "--remove-top", "-1"], ["--remove-top is", "-1"]),
        (["cbow", "text.txt", "-o", "v.vec", "--window", "0"], ["--window is", "0", "1"]),
    ):
        run = inside(*arguments)
        assert run.returncode == 2, arguments
        assert len(run.stderr.splitlines()) == 1
        assert all(fact in run.stderr for fact in facts), run.stderr
