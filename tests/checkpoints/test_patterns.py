"""A pattern matches what Python's own engine matches, or it is refused."""

from __future__ import annotations

import re
import warnings
from random import Random

import pytest

from attngeo.checkpoints.patterns import Pattern, PatternError, Steps

PIECES = [
    "a", "b", "1", ".", r"\.", r"\d", r"\w", "[ab]", "[^a]", "[a-b1]", "[]a]", "^", "$", r"\b", r"\B", r"\A", r"\Z",
    "(", "(?:", "(?=", "(?!", "(?P<x>", ")", ")", "|", "*", "+", "?", "{2}", "{1,2}", "{,1}", "{1,}", "{,}", "*?", "+?",
    "{", "}", "{}", "]", "[", "-", "\\", "ab",
]  # fmt: skip
TEXTS = ["", "a", "b", "ab", "aab", "a.b", "1", "a1b", "ab.ab.1", "aaaa", "b.a\n", "{", "a{2}", "]", "a}"]


def test_random_patterns_match_what_python_matches() -> None:
    rng = Random(0)
    accepted = 0
    for _ in range(6000):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 8)))
        try:
            pattern = Pattern(text, Steps())
        except PatternError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            expected = re.compile(text)  # which raises nothing
        accepted += 1
        for example in TEXTS:
            assert pattern.matches(example) == bool(expected.fullmatch(example)), (text, example)
            assert pattern.matches_start(example) == bool(expected.match(example)), (text, example)
    assert accepted > 1000


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("(.|.)*!", False), ("(a+)+b", False), ("((((.*)*)*)*)*_proj", True), ("(.{0,1000}){1000}!", False),
        ("|".join(f"model.layers.{i}.self_attn.{letter}_proj" for i in range(80) for letter in "qk"), True),
        (r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:k_proj|q_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn)"
         r"\.(?:(?:k_proj|q_proj)))", True),
        (r"^(model(?=\.).*\.(k_proj|q_proj))$", True),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_match_takes_few_steps(pattern: str, *, matches: bool) -> None:
    assert Pattern(pattern, Steps(400_000)).matches("model.layers.10.self_attn.q_proj") == matches


@pytest.mark.parametrize(
    ("pattern", "fact"),
    [
        ("x{99999999999}", "at most 1,000"), ("x{1001}", "at most 1,000"), ("x{3,2}", "3,2"), ("(" * 5000, "40 groups"),
        ("(", "without its ')'"), (")", "without its '('"), ("[a", "without its ']'"), ("*a", "repeats nothing"),
        ("a**", "repeats a repetition"), ("^*", "repeats a place"), (r"(a)\1", "not followed"),
        ("(?<=a)b", "not followed"),
        ("(?i)a", "not followed"), ("(?>a)", "not followed"), ("a*+", "gives nothing back"), ("[b-a]", "invalid"),
        ("[[a]", "another way"), ("(?P<x>a)(?P<x>b)", "two groups"), (r"\q", "not followed"), ("\\", "not followed"),
    ],
)  # fmt: skip
def test_what_is_not_followed_is_refused(pattern: str, fact: str) -> None:
    with pytest.raises(PatternError) as refused:
        Pattern(pattern, Steps())
    assert fact in str(refused.value)
    assert len(str(refused.value)) < 200


def test_the_steps_are_bounded() -> None:
    pattern = Pattern("(?=.*(?=.*(?=.*(?=.*q))))", Steps(10_000))
    with pytest.raises(PatternError, match="too many steps"):
        pattern.matches("model.layers.10.self_attn.k_proj" * 3)
    with pytest.raises(PatternError, match="too many steps"):
        Pattern("a" * 100, Steps(99))
