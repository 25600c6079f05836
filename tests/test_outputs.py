"""What every command prints on fixed inputs is what it has always printed: tests/golden/outputs."""

from __future__ import annotations

import pytest
from conftest import Command
from support.outputs import COMMANDS, GOLDEN, compare, make_outputs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outputs(attngeo: Command, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("outputs")

    def run(arguments: list[str]) -> str:
        ran = attngeo(*arguments, cwd=folder, OMP_NUM_THREADS="1")
        assert ran.returncode == 0, (arguments, ran.stderr)
        return ran.stdout

    return make_outputs(folder, run)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_it_has_always_printed(name: str, outputs: dict[str, str]) -> None:
    compare(name, outputs[name], (GOLDEN / name).read_text("utf-8"))


def test_other_words_and_other_numbers_are_noticed() -> None:
    golden = "model,symmetry\nbert,0.512\n"
    compare("same", golden.replace("0.512", "0.51201"), golden)
    for other in (golden.replace("0.512", "0.513"), golden.replace("bert", "gpt2"), golden + "bert,0.1\n"):
        with pytest.raises(AssertionError, match="other"):
            compare("other", other, golden)
