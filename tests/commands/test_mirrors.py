"""`attngeo mirrors`: what it prints, writes, draws and refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pandas as pd
import pytest
from attngeo.commands.mirrors import UNLIKELY, _describe_test
from support.checkpoints import CONFIG, weights, write_single
from support.messages import assert_fails

import attngeo as library
from attngeo.circuits.mirror_options import MIRROR_COLUMNS
from attngeo.errors import AttnGeoError, NetworkError

Run = Callable[..., CompletedProcess[str]]
COSINE = "antisymmetric_cosine"


@pytest.mark.parametrize("columns", ["40", "80"])
def test_the_terminal_shows_layers_the_strongest_pairs_and_the_sign_test(columns: str, inside: Run) -> None:
    done = inside("mirrors", "demo:minilm", "--top", "3", COLUMNS=columns)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    rows = library.mirrors("demo:minilm")
    strongest = rows[rows["mirror"] > 0].nsmallest(3, COSINE)
    for row in strongest.itertuples():
        assert f"{row.layer}.{row.head}–{row.other_layer}.{row.other_head}" in done.stdout
        assert f"{row.antisymmetric_cosine:+.3f}" in done.stdout
    for layer in rows.attrs["symmetries"]:
        assert f"{layer['symmetry']:+.3f}" in done.stdout
        assert f"{layer['own_symmetry']:+.3f}" in done.stdout
    text = " ".join(done.stdout.split())
    assert "36 disjoint pairs in 6 layers, 12 opposite and 24 alike" in text
    assert "no evidence" in text
    assert "no single pair" in text


@pytest.mark.parametrize(
    ("opposite", "alike", "p_value", "word"),
    [
        (9, 1, UNLIKELY * 0.99, "oriented as transposes more often"),
        (1, 9, UNLIKELY * 0.99, "and not as transposes"),
        (9, 1, UNLIKELY, "no evidence"),
        (0, 0, 1.0, "nothing to test"),
    ],
)
def test_the_sign_test_is_said_in_words(opposite: int, alike: int, p_value: float, word: str) -> None:
    counts = {"opposite": opposite, "alike": alike, "partners": opposite + alike, "layers": 1, "p_value": p_value}
    text = _describe_test(counts)
    assert word in text
    assert f"{opposite} opposite and {alike} alike" in text


def test_files_have_all_pairs_and_with_top_the_strongest(inside: Run, tmp_path: Path) -> None:
    done = inside("mirrors", "demo:minilm", "--layers", "4", "--format", "csv", "-o", tmp_path / "m.parquet", "-q")
    assert done.returncode == 0, done.stderr
    printed = pd.read_csv(io.StringIO(done.stdout))
    written = pd.read_parquet(tmp_path / "m.parquet")
    assert list(written.columns) == list(printed.columns) == list(MIRROR_COLUMNS)
    assert len(written) == len(printed) == 66
    top = inside("mirrors", "demo:minilm", "--layers", "4", "--top", "2", "--format", "csv", "-q")
    kept = pd.read_csv(io.StringIO(top.stdout))
    assert kept[["head", "other_head"]].values.tolist() == [[7, 9], [6, 7]]
    by_twin = inside("mirrors", "demo:minilm", "--layers", "4", "--top", "2", "--sort", "twin", "--format", "csv", "-q")
    largest = printed["twin"].nlargest(2).tolist()
    assert pd.read_csv(io.StringIO(by_twin.stdout))["twin"].tolist() == pytest.approx(largest)


def test_narrow_and_plain_terminals(inside: Run) -> None:
    done = inside("mirrors", "demo:encoder", "-q", COLUMNS="60", LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "".join(done.stdout.splitlines()[1:]).isascii()


def test_conditions_figures_and_notes(inside: Run, tmp_path: Path) -> None:
    """The figure is of the first layer that was read."""
    path = tmp_path / "map.json"
    done = inside("mirrors", "demo:minilm", "--layers", "4", "--plot", path, "--fail-if", "mirror.max > 0.5")
    assert done.returncode == 1
    assert "mirror.max is 0.69" in done.stderr
    assert "layer 4" in json.loads(path.read_text())["layout"]["title"]["text"]
    again = inside("mirrors", "demo:minilm", "--across", "--memory", "1KB")
    assert "--memory" in again.stderr


def test_layers_with_one_head_are_named(inside: Run, tmp_path: Path) -> None:
    one = {name: x for name, x in weights().items() if "q_proj" in name}
    one |= {name.replace("q_proj", letter): x.clone() for name, x in one.items() for letter in ("k_proj", "v_proj")}
    config = CONFIG | {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 24}
    path = write_single(tmp_path / "model", one, config)
    assert_fails(inside("mirrors", path), 4, "two heads", "--across")
    done = inside("mirrors", path, "--across")
    assert done.returncode == 0, done.stderr
    assert "one head, and so no pair" in done.stderr
    assert "nothing to test" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "code", "facts"),
    [
        (["demo:minilm", "--form", "rotary"], 2, ("--form", "plain")),
        (["demo:minilm", "--form", "both"], 2, ("--form", "both")),
        (["demo:minilm", "--layers", "7"], 2, ("layer 7",)),
        (["demo:minilm", "--top", "-1"], 2, ("--top",)),
        (["demo:minilm", "--sort", "mirrors"], 2, ("--sort", "mirror")),
        (["demo:minilm", "--fail-if", "symmetry.max > 1"], 2, ("mirror",)),
        (["nothing-here"], NetworkError, ("nothing-here",)),
    ],
)
def test_wrong_usage(
    arguments: list[str], code: int | type[AttnGeoError], facts: tuple[object, ...], inside: Run
) -> None:
    assert_fails(inside("mirrors", *arguments), code, *facts)


def test_a_recipe_asks_for_mirrors(inside: Run, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'title = "Heads"\n[[results]]\ncommand = "mirrors"\nname = "pairs"\nmodels = ["demo:encoder"]\n'
        'options = { form = "plain", across = true }\n'
        '[[section]]\ntitle = "Pairs"\ntables = [{ of = "pairs", show = "summary" }]\n'
        'figures = [{ kind = "mirror-map", of = "pairs", layer = 1 }]\n'
    )
    done = inside("report", recipe, "-o", tmp_path / "report", "-q")
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(tmp_path / "report/tables/pairs.csv")
    assert len(rows) == len(library.mirrors("demo:encoder", across=True))
    assert "opposite" in (tmp_path / "report/index.html").read_text("utf-8")
