"""Measure what README.md beside it says of words, of a text and of other seeds: three tables beside this file.

    python reports/theory/measure.py WIKITEXT    # test.txt.gz of WikiText-2; five minutes on one core

terms.csv is the table of `attngeo analogy --explain toy`, words.csv the rows of usual words of `attngeo theory --text`,
and seeds.csv Proposition 9 with seeds 0 to 9.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

import pandas as pd

from attngeo.papers.saponati2025.roles import count_roles
from attngeo.papers.statements import check_statements
from attngeo.papers.wibisono2023.analogies import explain

HERE = Path(__file__).parent
SEEDS = range(10)
WORDS = ["The", "In", "was", "and", "."]


def read_paragraphs(wikitext: str) -> list[str]:
    """The paragraphs of a file of WikiText, without headings."""
    with gzip.open(wikitext, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    return [line for line in lines if line and not line.startswith("=")]


def measure_words(paragraphs: list[str]) -> pd.DataFrame:
    """Words as contexts and as predicted, with a paragraph a sequence; `paragraphs` and `tokens` are those of all."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "paragraphs.txt"
        text.write_text("\n".join(paragraphs), "utf-8")
        roles = count_roles(text)
    tokens = sum(len(paragraph.split()) for paragraph in paragraphs)
    usual = roles.set_index("token").loc[WORDS].reset_index()
    return usual.assign(paragraphs=len(paragraphs), tokens=tokens)


def repeat_proposition_9() -> pd.DataFrame:
    """The row of Proposition 9 for each seed."""
    frames = [check_statements(["proposition-9"], seed=seed).assign(seed=seed) for seed in SEEDS]
    return pd.concat(frames)[["seed", "statement", "computed", "tolerance", "residual", "holds"]]


def write(frame: pd.DataFrame, name: str) -> None:
    """Write a table beside this file."""
    frame.to_csv(HERE / name, index=False, float_format="%.5g")


if __name__ == "__main__":
    write(explain("toy"), "terms.csv")
    write(measure_words(read_paragraphs(sys.argv[1])), "words.csv")
    write(repeat_proposition_9(), "seeds.csv")
