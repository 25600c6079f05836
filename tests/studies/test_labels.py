"""Names of models in tables for people."""

from __future__ import annotations

import pandas as pd
import pytest

from attngeo.errors import UsageError
from attngeo.studies.labels import list_named, name_models, parse_labels, resolve_labels

MODELS = ["org/one", "org/two@step10", "org/two@step20", "runs/lr=0.1"]


def test_a_label_is_parted_at_the_equals_sign_behind_a_model() -> None:
    parsed = parse_labels(["org/one=A=B", "runs/lr=0.1=slow"])
    assert resolve_labels(parsed, MODELS) == {"org/one": "A=B", "runs/lr=0.1": "slow"}
    assert resolve_labels({"runs/lr=0.1": "slow"}, MODELS) == {"runs/lr=0.1": "slow"}
    two = parse_labels(["runs/lr=0.1=slow", "runs/lr=0.2=fast"])
    assert resolve_labels(two, [*MODELS, "runs/lr=0.2"]) == {"runs/lr=0.1": "slow", "runs/lr=0.2": "fast"}
    assert resolve_labels(None, MODELS) == {}


def test_a_repository_labels_its_revisions_and_a_revision_itself() -> None:
    labels = resolve_labels({"org/two": "T", "org/two@step20": "last"}, MODELS)
    assert labels == {"org/two@step10": "T@step10", "org/two@step20": "last"}


def test_what_checkpoints_have_in_common_labels_them_and_a_checkpoint_itself() -> None:
    models = ["runs/a/checkpoint-0", "runs/a/checkpoint-20/", "runs/a", "checkpoint-5", "runs/b-step1", "runs/b-step2"]
    assert resolve_labels({"./runs/a/": "A", ".": "C", "runs/b": "B", "./runs/b-step2": "last"}, models) == {
        "runs/a/checkpoint-0": "A/checkpoint-0", "runs/a/checkpoint-20/": "A/checkpoint-20", "runs/a": "A",
        "checkpoint-5": "C/checkpoint-5", "runs/b-step1": "B-step1", "runs/b-step2": "last",
    }  # fmt: skip
    parsed = parse_labels(["./runs/lr=0.1=slow"])
    assert resolve_labels(parsed, MODELS) == {"runs/lr=0.1": "slow"}


def test_a_folder_and_a_repository_of_one_name_have_labels_of_their_own() -> None:
    labels = {"base": "Hub", "./base": "folder"}
    assert resolve_labels(labels, ["./base", "base"]) == {"base": "Hub", "./base": "folder"}


@pytest.mark.parametrize(
    ("labels", "facts"),
    [
        ({"org/on": "A"}, "no model org/on; did you mean org/one"),
        ({"org/tw": "A"}, "no model org/tw; did you mean org/two"),
        ({"org/one": "A", "org/two@step10": "A"}, "org/one and org/two@step10 would both be 'A'"),
        ({"org/one": "runs/lr=0.1"}, "org/one and runs/lr=0.1 would both be"),
    ],
)
def test_labels_of_no_model_and_labels_of_two_are_refused(labels: dict[str, str], facts: str) -> None:
    with pytest.raises(UsageError, match=facts):
        resolve_labels(labels, MODELS)


@pytest.mark.parametrize("texts", [["A"], ["=A"], ["org/one="], ["org/one= "], ["a=A", "a=B"], 3, {"a": 3}, {"a": ""}])
def test_what_is_no_label_is_refused(texts: object) -> None:
    with pytest.raises(UsageError, match="label"):
        parse_labels(texts)


def test_every_column_that_names_a_model_has_labels_and_the_table_itself_stays() -> None:
    rows = pd.DataFrame({"model": ["org/one", None], "other": ["a", "org/one"], "note": ["org/one", "b"]})
    rows.attrs = {"model": "org/one", "other": "a", "title": "org/one"}
    assert list_named(rows) == ["org/one", "a"]
    named = name_models(rows, {"org/one": "One"})
    assert named["model"].tolist()[0] == "One"
    assert named["other"].tolist() == ["a", "One"]
    assert named["note"].tolist() == ["org/one", "b"]
    assert named.attrs == {"model": "One", "other": "a", "title": "org/one"}
    assert rows["model"][0] == rows.attrs["model"] == "org/one"
    bare = pd.DataFrame({"cells": [1]})
    bare.attrs = {"model": "org/one"}
    assert list_named(bare) == ["org/one"]
