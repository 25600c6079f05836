"""A pattern matches what Python's own engine matches, or it is refused in bounded time."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from random import Random

import pytest

from attngeo.checkpoints.patterns import PatternError, matches, matches_start

# Not "\B", which matches the empty text only from Python 3.14 on.
PIECES = [
    "a", "b", "1", ".", r"\.", r"\d", r"\w", "[ab]", "[^a]", "[a-b1]", "[]a]", "^", "$", r"\b", r"\A", r"\Z", "(", ")",
    "(?:", "(?=", "(?!", "(?<=a)", "(?>", "(?i)", "(?P<x>", ")", "|", "*", "+", "?", "{2}", "{1,2}", "{,1}", "{1,}",
    "{,}", "*?", "+?", "*+", r"\1", r"\p{L}", r"\h", "(?|", "--", "&&", "{", "}", "{}", "]", "[", "-", "\\", "ab",
]  # fmt: skip
TEXTS = ["", "a", "b", "ab", "aab", "a.b", "1", "a1b", "ab.ab.1", "aaaa", "b.a\n", "{", "a{2}", "]", "a}"]
MODULE = "model.layers.10.self_attn.q_proj"


def test_random_patterns_match_what_python_matches() -> None:
    rng = Random(0)
    accepted = 0
    for _ in range(6000):
        pattern = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 8)))
        try:
            found = [(matches(pattern, text), matches_start(pattern, text)) for text in TEXTS]
        except PatternError:
            continue
        accepted += 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            python = re.compile(pattern)
        assert found == [(bool(python.fullmatch(text)), bool(python.match(text))) for text in TEXTS], pattern
    assert accepted > 1000


@pytest.mark.parametrize(
    "pattern",
    [
        "|".join(f"model.layers.{layer}.self_attn.{letter}_proj" for layer in range(80) for letter in "qk"),
        r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:k_proj|q_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn)"
        r"\.(?:(?:k_proj|q_proj)))",
        r"^(model(?=\.).*\.(k_proj|q_proj))$",
        r"^(?!.*visual).*\.(?:q_proj|k_proj)",
    ],
    ids=lambda pattern: pattern[:20],
)
def test_patterns_that_people_write_match(pattern: str) -> None:
    assert matches(pattern, MODULE)
    assert not matches(pattern, MODULE.replace("q_proj", "o_proj"))


@pytest.mark.parametrize("pattern", ["(.|.)*!", "(a+)+b", "((a*)*)*!", "a?" * 30 + "a" * 30 + "!"])
def test_a_search_ends(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attngeo.checkpoints.patterns.SECONDS", 0.05)
    with suppress(PatternError):
        assert not matches(pattern, "a" * 60)


def test_a_search_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attngeo.checkpoints.patterns.SECONDS", 0.05)
    with pytest.raises(PatternError, match=r"takes more than 0\.05 s"):
        matches(r"(a|aa)+\1?(a|aa)+!", "a" * 400)


@pytest.mark.parametrize(
    ("pattern", "fact"),
    [
        ("x{99999999999}", "regular expression"), ("((x{99}){99}){99}", "10,000 repetitions"),
        ("(.{0,1000}){1000}!", "10,000 repetitions"), ("(" * 5000, "regular expression"),
        ("a" * 100_001, "100,000 characters"), ("(", "unterminated"), ("a**", "multiple repeat"),
        (r"\p{L}", "bad escape"), ("[[a]", "nested set"),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern: str, fact: str) -> None:
    with pytest.raises(PatternError) as refused:
        matches(pattern, MODULE)
    assert fact in str(refused.value)
    assert len(str(refused.value)) < 200
