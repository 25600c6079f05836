"""The recipe of Table 3, with small stand-ins for its models and its files of vectors."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.vectors import checkpoint, word_piece, write_text

from attngeo.analogies.questions import load_questions
from attngeo.reporting.report import build_report

RECIPE = Path(__file__).parents[2] / "reports/word-vectors.toml"
# Stand-in → how many of the words of capitals it knows, as a share.
KNOWN = {"bert": 0.95, "glove.6B.300d.txt": 0.9, "GoogleNews-vectors-negative300.bin.gz": 0.9, "bart": 0.7}
SPECIAL = ("[PAD]", "[UNK]")


@pytest.mark.slow
def test_models_and_vectors_are_asked_what_all_of_them_know(tmp_path: Path) -> None:
    asked = load_questions("google").without_duplicates().questions
    fours = [(q.a, q.b, q.c, q.answers[0]) for q in asked]
    words = sorted({word for q, four in zip(asked, fours, strict=True) if "capital" in q.category for word in four})
    random = np.random.default_rng(0)
    known = {name: [word for word in words if random.random() < share] for name, share in KNOWN.items()}
    text = RECIPE.read_text("utf-8")
    for name, reference in (("bert", "google-bert/bert-base-uncased"), ("bart", "facebook/bart-base")):
        labels = [*SPECIAL, *dict.fromkeys(word.lower() for word in known[name])]
        word_piece(checkpoint(tmp_path / name, len(labels)) / "tokenizer.json", labels)
        text = text.replace(reference, f"./{name}")
    (tmp_path / "recipe.toml").write_text(text, "utf-8")
    glove, google = [*KNOWN][1:3]
    write_text(tmp_path / glove, [word.lower() for word in known[glove]], random.normal(size=(len(known[glove]), 8)))
    with gzip.open(tmp_path / google, "wb") as file:  # the format of word2vec
        file.write(b"%d 8\n" % len(known[google]))
        for word in known[google]:
            file.write(f"{word} ".encode() + random.normal(size=8).astype("<f4").tobytes())

    report = build_report(tmp_path / "recipe.toml", tmp_path / "out")
    assert report.failures == []
    rest, rows = [*KNOWN][:3], {}
    for result, models in (("with-bart", [*KNOWN]), ("without-bart", rest)):
        common = set.intersection(*(set(known[name]) for name in models))
        count = sum(common.issuperset(four) for four in fours)
        rows[result] = pd.read_csv(tmp_path / f"out/tables/{result}.csv").query("level == 'overall'")
        own = rows[result][rows[result]["questions"] == "common"]
        assert (own["known"].tolist(), set(own["asked"])) == ([count] * len(models), {len(asked)})
    published = rows["with-bart"].query("questions == 'published'")
    assert published["known"].tolist() == [9522] * 3
