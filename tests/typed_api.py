"""Public functions as people call them, for `make lint`: mypy sees the keywords with their types.

It is not run. Each wrong call has a comment with the error that mypy reports; a comment without its error is an error.
"""

from collections.abc import Sequence
from pathlib import Path

import attngeo
from attngeo.pretrain import compare_runs, make_options
from attngeo.scores.options import ScoreOptions


def call_public_functions() -> None:
    rows = attngeo.score("demo:minilm", per_head=True, gamma=3, layers=[0, 1], offline=True, fresh=True)
    rows.attrs  # noqa: B018
    attngeo.score("demo:minilm", per_haed=True)  # type: ignore[call-arg]
    attngeo.score("demo:minilm", per_head="yes")  # type: ignore[arg-type]
    attngeo.score("demo:minilm", convention="correct")  # type: ignore[arg-type]
    attngeo.score()  # type: ignore[call-arg]
    attngeo.score(["demo:minilm", "demo:decoder"], jobs=2)
    attngeo.score(["org/name@step*"], allow_repeats=True)
    attngeo.score(3)  # type: ignore[arg-type]
    rows[list(attngeo.columns("score", circuit="ov"))]

    for site, wq, _ in attngeo.attention_sites("demo:minilm", layers=[0], with_bias=True):
        print(site.layer, wq.mT)
    for weights in attngeo.attention_sites("demo:minilm", circuit="both"):
        print(weights.wv @ weights.wo)
    attngeo.attention_sites("demo:minilm", circuit="vo")  # type: ignore[arg-type]
    attngeo.attention_sites("demo:minilm", layer=0)  # type: ignore[call-arg]
    attngeo.attention_sites("org/base", adapter="org/adapter", config="org/base")
    attngeo.attention_sites("org/base", adapter=["org/adapter=0.5", "./other"])
    attngeo.attention_sites("org/base", adapter=1)  # type: ignore[arg-type]
    attngeo.attention_sites("org/base", layers="0-3,7", config=Path("folder"), adapter=[Path("a"), "org/b"])
    attngeo.score("demo:minilm", layers="0-3,7", memory="1GB", adapter=Path("folder"), config=Path("folder"))
    attngeo.score("demo:minilm", memory=1.5)  # type: ignore[arg-type]
    attngeo.score("demo:minilm", layers=3)  # type: ignore[arg-type]
    layers: Sequence[int] | None = ScoreOptions(layers="0-3").layers
    memory: int | None = ScoreOptions(memory="1GB").memory
    print(layers, memory)
    attngeo.compose("demo:minilm", from_layers="0-3", to_layers=[4], memory="1GB")
    attngeo.words("demo:minilm", tokens=Path("words.txt"), tokenizer=None)
    attngeo.open_embedding("demo:minilm", tokeniser=None)  # type: ignore[call-arg]
    attngeo.gradients("demo:encoder", text=Path("novel.txt"))

    attngeo.inspect("org/base", adapter=["org/adapter"], offline=True)["sites"]
    attngeo.inspect(["org/base"])  # type: ignore[arg-type]
    attngeo.verify("demo:minilm", retries=1)
    attngeo.verify("demo:minilm", retries="1")  # type: ignore[arg-type]

    attngeo.analogy(["demo:minilm"], method="3cosmul", n_draws=10).rows  # noqa: B018
    attngeo.analogy("demo:minilm", method="cos")  # type: ignore[arg-type]
    attngeo.nearest("demo:minilm", "king - man", top=3)
    attngeo.nearest("demo:minilm")  # type: ignore[call-arg]
    attngeo.words("demo:minilm", layer=1, head=2, top=3)
    attngeo.words("demo:minilm", layer="all", head="all", directions=2)
    attngeo.words("demo:minilm", circuit="kq")  # type: ignore[arg-type]
    attngeo.compare(["demo:encoder", "demo:decoder"], per_head=True, rope_offset=1, jobs=2).attrs  # noqa: B018
    attngeo.compare(["demo:encoder", "demo:decoder"], offset=1)  # type: ignore[call-arg]
    attngeo.compose("demo:minilm", kind="k", from_layers=[0], fold_norm=True)
    attngeo.compose("demo:minilm", fold_norms=True)  # type: ignore[call-arg]
    attngeo.lineage("demo:encoder", ["demo:decoder"], n_permutations=99, align=True, jobs=2)
    attngeo.lineage("demo:encoder", "demo:decoder", permutation=99)  # type: ignore[call-arg]
    attngeo.open_embedding("demo:minilm", table="output", offline=True)
    attngeo.open_embedding("demo:minilm", table="middle")  # type: ignore[arg-type]

    attngeo.query_key_matrix("demo:minilm", layer=1, head=2).cells  # noqa: B018
    attngeo.query_key_matrix("demo:minilm", layer="first")  # type: ignore[arg-type]

    figure = attngeo.plot("heatmap", rows, score="symmetry", where={"layer": 2})
    attngeo.save_figure(figure.update_layout(width=600), "figure.html")
    attngeo.plot("heatmap", rows, width="3.4in", height=300, font_size="8pt", title="")
    attngeo.plot("heatmap", rows, width=["3.4in"])  # type: ignore[arg-type]
    attngeo.plot("layers", rows, label={"org/name": "BERT"})
    attngeo.plot("layers", rows, label={"org/name": 3})  # type: ignore[dict-item]
    attngeo.save_figure(figure, "figure.html", widht=600)  # type: ignore[call-arg]

    attngeo.AttentionClassifier(max_epochs=3).fit(rows, rows["layer"])
    attngeo.AttentionClassifier(max_epochs="3")  # type: ignore[arg-type]
    attngeo.ExponentialFamilyAttention(max_epochs=3)
    attngeo.ExponentialFamilyAttention(max_epochs="3")  # type: ignore[arg-type]

    compare_runs(make_options("tiny"), "folder", compare=["default", "symmetric"], seeds=2, jobs=2)
    compare_runs(make_options("tiny"), "folder", seeds="2")  # type: ignore[arg-type]
    attngeo.gradients("demo:encoder", text="novel.txt", objective="clm", sequences=8).rows.attrs  # noqa: B018
    attngeo.gradients("demo:encoder", objective="image")  # type: ignore[arg-type]
    attngeo.mirrors("demo:minilm", layers="0-3", across=True, form="plain", memory="1GB")
    attngeo.mirrors("demo:minilm", form="both")  # type: ignore[arg-type]
    attngeo.positions("demo:decoder", layers=[0], fold_norm=True, fresh=True).attrs  # noqa: B018
    attngeo.positions("demo:decoder", layer=0)  # type: ignore[call-arg]
