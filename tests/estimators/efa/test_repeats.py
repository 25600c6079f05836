"""Items that occur once in a sequence: those of the context have probability 0; and rows that others do not see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.messages import refuses
from support.sequences import make_efa

from attngeo.errors import CorruptCheckpointError, TableError, UsageError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.shared.paths import CONFIG

ITEMS = list("abcdef")
SMALL: dict[str, Any] = {"width": 4, "max_epochs": 2, "validation_fraction": 0, "device": "cpu", "part": "items"}
KINDS: dict[str, dict[str, Any]] = {"attention": {"n_layers": 2}, "factors": {"model": "fm"}}


def draw_baskets(sequences: int = 12) -> pd.DataFrame:
    """Baskets of two to five of six items, each once."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(sequences):
        chosen = draw.choice(ITEMS, draw.integers(2, 6), replace=False)
        rows += [{"sequence": number, "item": item} for item in chosen]
    return pd.DataFrame(rows)


ROWS = draw_baskets()
REPEATED = pd.concat([ROWS, ROWS[:1]], ignore_index=True)


def find_context(rows: pd.DataFrame, at: int, direction: str) -> set[str]:
    """The items that a row sees."""
    is_seen = (rows["sequence"] == rows["sequence"][at]) & (rows.index != at) & rows["item"].notna()
    if direction == "uni":
        is_seen &= rows.index < at
    return set(rows["item"][is_seen])


@pytest.mark.parametrize("direction", ["bi", "uni"])
@pytest.mark.parametrize("kind", KINDS)
def test_items_of_the_context_have_probability_0_and_the_others_are_as_likely_to_each_other(
    kind: str, direction: str
) -> None:
    options = {**SMALL, **KINDS[kind], "direction": direction}
    model = make_efa(**options).fit(ROWS)
    free = make_efa(**options, repeats=True).fit(ROWS)
    free.model_.load_state_dict(model.model_.state_dict())
    asked = ROWS.assign(item=ROWS["item"].mask(ROWS.index == 4))
    for rows in (ROWS, asked):
        expected = free.predict_proba(rows).to_numpy(copy=True)
        for at in range(len(rows)):
            expected[at, [ITEMS.index(item) for item in find_context(rows, at, direction)]] = 0
        expected /= expected.sum(1, keepdims=True)
        np.testing.assert_allclose(model.predict_proba(rows).to_numpy(), expected, atol=1e-6)
    own = model.predict_proba(ROWS).to_numpy()[range(len(ROWS)), [ITEMS.index(item) for item in ROWS["item"]]]
    np.testing.assert_allclose(model.log_prob(ROWS), np.log(own), rtol=1e-5)


@pytest.mark.parametrize("direction", ["bi", "uni"])
def test_drawn_sequences_have_each_item_once(direction: str) -> None:
    model = make_efa(**SMALL, direction=direction).fit(ROWS)
    drawn = model.sample(sequences=40, length=5, sweeps=3, seed=1)
    assert not drawn.duplicated(["sequence", "item"]).any()
    free = make_efa(**SMALL, direction=direction, repeats=True).fit(ROWS)
    assert free.sample(sequences=40, length=5, sweeps=3, seed=1).duplicated(["sequence", "item"]).any()
    longer = make_efa(**SMALL, direction=direction, longest=9).fit(ROWS)
    with refuses(UsageError, "length is 7", "at most 6", "no item occurs twice"):
        longer.sample(length=7)


def test_repeats_are_allowed_if_training_rows_have_one_and_refused_otherwise(tmp_path: Path) -> None:
    model = make_efa(**SMALL).fit(ROWS)
    assert not model.model_.shape.repeats
    assert make_efa(**SMALL).fit(REPEATED).model_.shape.repeats
    assert make_efa(**SMALL).fit(ROWS, validation=REPEATED).model_.shape.repeats
    last = len(REPEATED)
    for rows, use in (
        (REPEATED, model.log_prob),
        (REPEATED, make_efa(**SMALL, repeats=False).fit),
        (REPEATED, lambda rows: make_efa(**SMALL).fit(ROWS, test=rows)),
    ):
        with refuses(TableError, f"row {last}", "'item'", f"'{ROWS['item'][0]}'", "twice", "--repeats"):
            use(rows)
    with refuses(UsageError, "repeats has no effect on a model of values"):
        make_efa(**SMALL | {"part": "values"}, repeats=False).fit(ROWS.assign(value=1.0))
    model.save(tmp_path)
    loaded = ExponentialFamilyAttention.load(tmp_path)
    assert loaded.log_prob(ROWS).equals(model.log_prob(ROWS))
    config = json.loads((tmp_path / CONFIG).read_text())
    config["options"]["repeats"] = True
    (tmp_path / CONFIG).write_text(json.dumps(config))
    with refuses(CorruptCheckpointError, "repeats is False, expected True"):
        ExponentialFamilyAttention.load(tmp_path)
    for keys in (config["options"], config["shape"]):  # as those of models that were saved before
        del keys["repeats"]
    (tmp_path / CONFIG).write_text(json.dumps(config))
    assert ExponentialFamilyAttention.load(tmp_path).model_.shape.repeats


def test_a_row_that_others_do_not_see_is_one_that_is_not_known() -> None:
    """Training reads numbers of fewer rows, and predicts all; afterwards all rows are seen."""
    for part in ("items", "values"):
        rows = ROWS.assign(value=np.arange(len(ROWS)) % 3)
        model = make_efa(**SMALL | {"part": part}, context_dropout=0.5).fit(rows)
        network = model.model_
        (sequences,) = model.read(rows)
        batch = network.batch(sequences)
        whole = network.natural(batch)
        network.train()
        dropped = network.natural(batch)
        network.context_dropout = 0.0
        assert torch.equal(network.natural(batch), whole)
        hidden = network._drop_context(batch)
        assert hidden is batch
        is_other = dropped != whole
        assert is_other.any()
        assert torch.equal(torch.isinf(dropped), torch.isinf(whole))
        total, count = network(batch)
        assert int(count) == len(rows)
        assert total.isfinite()
