"""Lines of keys in TOML files."""

from __future__ import annotations

import pytest

from attngeo.reporting.toml_lines import line_of


@pytest.mark.parametrize(
    ("text", "place", "line"),
    [
        ('# write """ here\na = 1\n[[check]]\nof = 1\n', ("check", 0, "of"), 4),
        ('a = """abc""" # """ x\nb = 1\n', ("b",), 2),
        ("a = \"x ''' y\"\nb = 1\n", ("b",), 2),
        ('a = """\n[[check]]\nof = 1\n"""\n[[check]]\nof = 2\n', ("check", 0, "of"), 6),
        ('f = [{ k = 1, w = { m = "x" } },\n { k = 2 }]\n', ("f", 1, "k"), 2),
        ('f = [{ k = "{a}" },\n { k = 2 },\n { k = 3 }]\n', ("f", 2), 3),
        ("f = [ # {old}\n { k = 1 },\n { k = 2 },\n]\n", ("f", 1), 3),
        ("f = [\n { k = 1 }, { k = 2 },\n { k = 3 },\n]\ng = 1\n", ("f", 2), 3),
        ("f = [\n { k = [1, 2] }, { k = 2 },\n]\ng = 1\n", ("g",), 4),
        ('a = "x\u2028y"\nb = 1\n', ("b",), 2),
    ],
)
def test_the_line_of_a_key(text: str, place: tuple[str | int, ...], line: int) -> None:
    """Whatever stands in strings and comments, and however tables are laid out."""
    assert line_of(text, place) == line
