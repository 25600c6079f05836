"""Every option of every command is an option of a recipe, or has a reason why not."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from attngeo.commands.app import app

from attngeo.options import options_of
from attngeo.questions.table import QUESTIONS
from attngeo.reporting.recipe import FigureBlock, Recipe

# Options about one run of a command, not about the question: a recipe is offline, quiet or verbose as a whole.
RUNNING = {
    "offline": "option of attngeo report",
    "download": "option of attngeo report",
    "retries": "option of attngeo report",
    "jobs": "option of attngeo report",
    "cluster": "option of attngeo report",
    "fail_fast": "option of attngeo report",
    "quiet": "option of attngeo report",
    "verbose": "option of attngeo report",
    "help": "shows the help",
    "help_all": "shows the help",
}
OUTPUT = {
    "output": "a report writes every table as CSV and Parquet",
    "format": "a report writes every table as CSV and Parquet",
    "label": "key of the recipe, for all results",
    "summary": 'a table shows it: show = "summary"',
}
OF_ROWS = {
    "plot": "figures of a section",
    "fail_if": "key of a check",
    "checks": "a page shows its checks, and report.md",
    "columns": "key of a table",
    "sort": "readers sort the tables of a page",
    "top": "readers sort the tables of a page",
}
OF_MODELS = {
    "models": "key of the results",
    "models_file": "key of the results",
    "fresh": "attngeo cache clear removes the kept results that a report would use",
} | OF_ROWS
# Command → option → why a recipe does not have it under `options`.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "score": OF_MODELS
    | {
        "allow_repeats": "a recipe names each revision, so that none is there by a pattern",
        "baseline": "a recipe reads earlier scores as a file, beside those of today",
        "verify": "checks a model before it is scored, and not its scores",
    },
    "analogy": {name: reason for name, reason in OF_MODELS.items() if name != "fresh"}
    | {
        "questions_output": "a file for other programs",
        "comparisons_output": "a file for other programs",
        "explain": "trains small models of its own; a recipe reads its file",
        "dimensions": "option of --explain",
        "positions": "option of --explain",
    },
    "gradients": {name: reason for name, reason in OF_MODELS.items() if name != "fresh"}
    | {"pairs_output": "a file for the figure `pairs`; a recipe reads it"},
    "positions": OF_MODELS,
    "mirrors": OF_MODELS,
    "compare": OF_MODELS | {"allow_repeats": "a recipe names each revision, so that none is there by a pattern"},
    "theory": {"names": "key `statements` of the results", "text": "counts tokens; a recipe reads its file"},
    "pretrain": {"resume": "an interrupted report always resumes its runs"},
    "simulate": {"fresh": "attngeo cache clear removes the kept results that a report would use"},
    "auto-mpg": {"fresh": "attngeo cache clear removes the kept results that a report would use"},
    "run": {
        "experiment": "key of the results",
        "fresh": "attngeo cache clear removes the kept results that a report would use",
        "save": "writes models; a report has a folder of its own",
    },
    "compose": {name: reason for name, reason in OF_MODELS.items() if name != "plot"},
    "lineage": {name: reason for name, reason in OF_MODELS.items() if name not in ("models", "plot")}
    | {
        "model": "the first of the key `models` of the results",
        "candidates": "the others of the key `models` of the results",
    },
    "plot": {
        "inputs": "key `of` or `model` of a figure",
        "width": "figures of a page have the width of the window",
        "height": "figures of a page have the height that they need",
    },
}
# Commands that answer one question on the terminal, or are about recipes themselves.
NOT_IN_RECIPES = {
    "inspect": "looks at one model before it is scored",
    "nearest": "one analogy by hand",
    "words": "looks at one head",
    "cbow": "writes word vectors; a recipe names them with cbow:TEXT",
    "report": "runs the recipe",
    "fit": "fits a table of the user's own, and saves a model for predict",
    "predict": "writes predictions for rows",
    "cache": "shows what is kept on this machine",
    "attention": "writes what a saved model attends to; a recipe reads its file",
    "sample": "draws rows from a saved model",
    "similar": "one item by hand",
    "efa compare": "reads two saved models of the user's own",
    "impute": "writes the user's own table with its empty cells filled",
}
# Commands of `attngeo efa` whose results have another name in a recipe.
RENAMED = {"efa": "run"}


def options_of_commands() -> dict[str, set[str]]:
    """Command → the names of its parameters, as the parser has them.

    Those of a group have their own names, with the group's in front if a command outside of groups has this name.
    """
    found: dict[str, set[str]] = {}

    def collect(group: Any) -> None:
        for name in group.commands:
            command = group.get_command(None, name)
            if hasattr(command, "commands"):
                collect(command)
            else:
                is_taken = group is not root and name in root.commands
                full_name = f"{group.name} {name}" if is_taken else name
                found[full_name] = {param.name for param in command.params}

    root: Any = typer.main.get_command(app)
    collect(root)
    return found


def keys_of_recipes() -> dict[str, set[str]]:
    questions = {RENAMED.get(name, name): question for name, question in QUESTIONS.items() if name != "file"}
    keys = {name: {*options_of(question.make_options_class())} for name, question in questions.items()}
    return keys | {"plot": set(FigureBlock.model_fields)}


COMMANDS = options_of_commands()


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in NOT_IN_RECIPES])
def test_every_option_is_a_key_or_has_a_reason(command: str) -> None:
    missing = COMMANDS[command] - keys_of_recipes()[command] - RUNNING.keys() - OUTPUT.keys()
    assert missing == EXCEPTIONS[command].keys()


@pytest.mark.parametrize("command", sorted(keys_of_recipes()))
def test_every_key_is_an_option_of_the_command(command: str) -> None:
    own = {"of", "model", "models", "caption"} if command == "plot" else set()
    assert keys_of_recipes()[command] - COMMANDS[command] == own


def test_commands_and_exceptions_exist() -> None:
    assert NOT_IN_RECIPES.keys() < COMMANDS.keys()
    assert all(reasons.keys() <= COMMANDS[command] for command, reasons in EXCEPTIONS.items())
    assert {"results", "section", "check"} < Recipe.model_fields.keys()
