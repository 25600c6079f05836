"""Scores against the number of parameters."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from support.frames import one_model
from support.messages import refuses

import attngeo
from attngeo.errors import DataError, UsageError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.sizes import (
    LINE,
    MARKER,
    MOST_STACKS_LABELLED,
    PANEL,
    POSITIONS,
    Box,
    draw_sizes,
    place_labels,
    place_numbers,
)
from attngeo.papers.saponati2025.published import published_scores

SYMMETRY, ALONE = PlotOptions(), PlotOptions(published=False)


def test_medians_are_drawn_with_quartiles_before_the_published_models(rows: pd.DataFrame) -> None:
    figure = draw_sizes(rows, published_scores(), SYMMETRY)
    assert [trace.name for trace in figure.data] == ["published encoders", "published decoders", "encoder", "decoder"]
    named = {trace.name: trace for trace in figure.data}
    own = named["encoder"]
    encoders = named["published encoders"]
    decoders = named["published decoders"]
    layers = one_model(rows, "demo:minilm").query("head.isna()")["symmetry"]
    assert own.x[0] == one_model(rows, "demo:minilm")["parameters"].iloc[0]
    assert own.y[0] == pytest.approx(layers.median())
    assert own.error_y.array[0] == pytest.approx(layers.quantile(0.75) - layers.median())
    assert own.error_y.arrayminus[0] == pytest.approx(layers.median() - layers.quantile(0.25))
    published = published_scores()
    for at in (0, 40):
        row = published[published["role"] == "encoder"].iloc[at]
        bar = encoders.error_y
        assert (bar.array[at], bar.arrayminus[at]) == pytest.approx(
            (row["symmetry_upper"] - row["symmetry"], row["symmetry"] - row["symmetry_lower"])
        )
    place = published[published["role"] == "encoder"]["model"].tolist().index("bert-base-uncased")
    assert (encoders.x[place], round(encoders.y[place], 2)) == (109_482_240, 0.51)
    assert encoders.marker.symbol[place] == "circle"
    assert "circle-open" in decoders.marker.symbol
    assert decoders.marker.symbol[0] == "circle"  # the legend shows the first one
    assert len(draw_sizes(rows, published_scores(), ALONE).data) == 2
    assert figure.layout.xaxis.type == "log"


def test_a_few_models_are_named_and_those_of_unknown_size_left_out(rows: pd.DataFrame) -> None:
    figure = draw_sizes(rows, published_scores(), SYMMETRY)
    named = {trace.name: trace for trace in figure.data}
    assert list(named["encoder"].text) == ["demo:minilm", "demo:encoder"]
    assert "hollow" in figure.layout.title.text
    assert figure.layout.xaxis.exponentformat == "B"
    assert min(named["published decoders"].y) >= -1
    rows = rows.assign(parameters=rows["parameters"].where(rows["model"] != "demo:minilm"))
    encoder, decoder = draw_sizes(rows, published_scores(), ALONE).data
    assert (list(encoder.text), list(decoder.text)) == (["demo:encoder"], ["demo:decoder"])
    assert "hollow" not in draw_sizes(rows, published_scores(), ALONE).layout.title.text


def test_models_whose_names_would_cover_each_other_are_numbered(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder")
    several = pd.concat([own.assign(model=f"organisation/model-{number}") for number in range(6)])
    traces = draw_sizes(several, published_scores(), ALONE).data
    assert [trace.name for trace in traces] == [f"{number} organisation/model-{number - 1}" for number in range(1, 7)]
    assert [trace.text[0] for trace in traces if trace.text[0]] == ["1–6"]
    both = pd.concat([several, several.assign(stack="cross")])
    names = [trace.name for trace in draw_sizes(both, published_scores(), ALONE).data]
    assert names[:2] == ["1 organisation/model-0 · encoder", "2 organisation/model-1 · encoder"]
    many = pd.concat([own.assign(model=f"m{number}") for number in range(MOST_STACKS_LABELLED + 1)])
    (points,) = draw_sizes(many, published_scores(), ALONE).data
    assert points.text is None


def test_the_axis_has_two_ticks_or_more_and_numbers_stand_beside_their_points(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder")
    sizes = {name: own.assign(model=name, parameters=size) for name, size in zip("abcd", (2, 5, 40, 300), strict=True)}

    def choose(*names: str) -> object:
        return draw_sizes(pd.concat([sizes[name] for name in names]), published_scores(), ALONE).layout.xaxis.dtick

    assert choose("a", "b", "c", "d") == 1  # 10 and 100
    assert choose("a", "c") == "D2"  # of 2 and 40, a power of ten may be the only one
    assert choose("a", "b") is choose("a") is None
    close = [own.assign(model=f"organisation/model-{n}", parameters=(10 + 3 * n) * 10**6) for n in range(8)]
    traces = draw_sizes(pd.concat(close), published_scores(), ALONE).data
    assert [(trace.text[0], trace.textposition[0]) for trace in traces] == [
        (str(number), "middle right") for number in range(1, 9)
    ]


def test_labels_cover_neither_labels_nor_points() -> None:
    draw = np.random.default_rng(0)
    for count in (2, 5, 7):
        points = [(float(x), float(y)) for x, y in draw.uniform((0, 0), PANEL, (count, 2))]
        positions = place_labels(points, [40.0] * count)
        assert positions is not None
        labels = [surround(point, position) for point, position in zip(points, positions, strict=True)]
        for number, label in enumerate(labels):
            others = points[:number] + points[number + 1 :]
            assert not any(label.overlaps(other) for other in labels[number + 1 :])
            assert not any(label.overlaps(Box(x - MARKER, y - MARKER, x + MARKER, y + MARKER)) for x, y in others)
            assert label.left + 2 * MARKER >= 0
            assert label.right <= PANEL[0] + 2 * MARKER
    assert place_labels([(0.0, 0.0), (200.0, 0.0)], [40.0, 40.0]) == ["middle right", "middle right"]
    assert place_labels([(PANEL[0], 0.0)], [40.0]) == ["middle left"]
    close = [(100.0, 75.0), (118.0, 75.0)]  # a label between them would cover the edge of a point
    assert place_labels(close, [10.0, 10.0]) == ["middle left", "middle right"]
    crowd = [(100.0, 100.0)] * 12
    assert place_labels(crowd, [40.0] * 12) is None
    assert place_labels(crowd, [40.0] * 12, must_fit=False) is not None


def test_points_in_a_clump_share_a_label() -> None:
    above, below = [(10.0, 20.0 + y) for y in range(6)], [(10.0, 100.0 + y) for y in range(6)]
    labels, positions = place_numbers([*above, (200.0, 20.0), *below])
    assert [label for label in labels if label] == ["1–6", "7", "8–13"]
    assert set(positions) == {"middle right"}
    mixed = [above[0], below[0], above[1], below[1], above[2], below[2]]
    assert [label for label in place_numbers(mixed)[0] if label] == ["1, 3, 5", "2, 4, 6"]
    apart = [(100.0 * x, 50.0) for x in range(4)]
    assert place_numbers(apart)[0] == ["1", "2", "3", "4"]
    draw = np.random.default_rng(0)
    for count in (2, 8, MOST_STACKS_LABELLED):  # each number is in one label
        labels, _ = place_numbers([(float(x), float(y)) for x, y in draw.uniform((0, 0), (90.0, 40.0), (count, 2))])
        numbers = [read_range(part) for part in ", ".join(filter(None, labels)).split(", ")]
        assert sorted(itertools.chain(*numbers)) == [*range(1, count + 1)]


def read_range(text: str) -> range:
    """The numbers of "3" or "1–6"."""
    ends = [int(end) for end in text.split("–")]
    return range(ends[0], ends[-1] + 1)


def surround(point: tuple[float, float], position: str) -> Box:
    """The box of a label of 40 pixels."""
    right, down = POSITIONS[position]
    x = point[0] + right * (MARKER + 20)
    y = point[1] + down * (MARKER + LINE / 2)
    return Box(x - 20, y - LINE / 2, x + 20, y + LINE / 2)


def test_published_models_without_the_score_are_left_out(rows: pd.DataFrame) -> None:
    published = published_scores().drop(columns="symmetry")
    assert len(draw_sizes(rows, published, SYMMETRY).data) == 2


def test_the_title_says_which_points_follow_which_convention(rows: pd.DataFrame) -> None:
    """Each mixture of two conventions is stated, and a picture of one convention says nothing."""
    options = PlotOptions(score="directionality")
    alone = options.replace(published=False)
    reproduced = pd.concat([attngeo.score(name, convention="published") for name in ("demo:minilm", "demo:encoder")])
    mixed = pd.concat([one_model(rows, "demo:minilm"), one_model(reproduced, "demo:encoder")])

    def title(frame: pd.DataFrame, chosen: PlotOptions) -> str:
        return str(draw_sizes(frame, published_scores(), chosen).layout.title.text)

    assert "faint points: published convention, models: corrected</sup>" in title(rows, options)
    assert "models: corrected and published</sup>" in title(mixed, options)
    assert "both conventions" in title(mixed, alone)
    for frame, chosen in ((reproduced, options), (reproduced, alone), (rows, alone)):
        assert "convention" not in title(frame, chosen)
    (points,) = draw_sizes(mixed, published_scores(), alone).data
    assert {row[0]: row[3] for row in points.customdata} == {"demo:minilm": "corrected", "demo:encoder": "published"}
    assert "models: corrected" in title(rows.drop(columns="note"), options)


def test_published_models_are_selected_by_their_own_columns(rows: pd.DataFrame) -> None:
    vision = attngeo.plot("size", rows, where={"modality": "vision", "model": "demo:minilm"})
    published = published_scores().query("modality == 'vision'")
    faint = [len(trace.x) for trace in vision.data if trace.name.startswith("published")]
    assert sum(faint) == len(published) < 223
    [own] = vision.select_traces({"name": "encoder"})
    assert list(own.text) == ["demo:minilm"]
    with refuses(UsageError, "modality", "sound", "audio"):
        attngeo.plot("size", rows, where={"modality": "sound"})
    with refuses(UsageError, "modality", "published"):
        attngeo.plot("size", rows, where={"modality": "audio"}, published=False)
    with refuses(UsageError, "modality"):
        attngeo.plot("layers", rows, where={"modality": "audio"})


def test_rows_without_sizes_are_refused(rows: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="parameters"):
        draw_sizes(rows.assign(parameters=pd.NA), published_scores(), SYMMETRY)
