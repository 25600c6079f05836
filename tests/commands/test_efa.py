"""`attngeo efa`: a user's own data, and the experiments, on the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from safetensors.torch import load_file
from support.messages import assert_fails, assert_states

from attngeo.errors import (
    CorruptCheckpointError,
    DataUnavailableError,
    ModelNotFoundError,
    TableError,
    UnknownColumnError,
)
from attngeo.papers.wibisono2025.experiments import load_split
from attngeo.papers.wibisono2025.synthetic import synthetic_ratings

pytestmark = pytest.mark.usefixtures("cache")
NAMES = ["Limes", "Lemon", "Tea", "Milk", "Bread"]
SMALL = ["--width", "4", "--epochs", "2", "--layers", "2"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `model` is saved."""
    return tmp_path_factory.mktemp("fitted") / "model"


@pytest.fixture
def model(inside: Command, baskets: Path, fitted: Path) -> Path:
    """The folder of a model of the values of the baskets, which is fitted once."""
    if not fitted.exists():
        run = inside("efa", "fit", baskets, "--family", "poisson", *SMALL, "--save", fitted, "-q")
        assert run.returncode == 0, run.stderr
    return fitted


def assert_shows(text: str, *facts: object) -> None:
    """A table or a page has each of these."""
    assert [fact for fact in facts if str(fact) not in text] == []


@pytest.fixture
def baskets(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    rows = [
        {"sequence": number, "item": item, "value": int(draw.poisson(2))}
        for number in range(20)
        for item in draw.permutation(NAMES)[: draw.integers(2, 5)]
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "baskets.csv", index=False)
    return tmp_path / "baskets.csv"


def test_a_model_of_values_is_fitted_saved_and_used(inside: Command, baskets: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    run = inside("efa", "fit", baskets, "--family", "poisson", *SMALL, "--test", baskets, "--save", model,
                 "-o", tmp_path / "fit.json")  # fmt: skip
    assert run.returncode == 0
    saved, *worse = run.stderr.splitlines()
    assert_states(saved, model, "attngeo efa predict", "attngeo score")
    # Of so few rows, the context says nothing.
    for line, part in zip(worse, ["held-out", "test"], strict=True):
        assert_states(line, part, "worse", "baseline")
    assert_shows(run.stdout, "train", "test", "poisson", "all other rows of its sequence")
    rows = pd.DataFrame(json.loads((tmp_path / "fit.json").read_text()))
    assert rows["data"].tolist() == ["train", "held-out", "test"]
    assert rows["sequences"].tolist() == [16, 4, 20]
    parts = rows.set_index("data")
    assert (parts["log_prob"] * parts["rows"])[["train", "held-out"]].sum() / parts["rows"]["test"] == pytest.approx(
        parts["log_prob"]["test"], rel=1e-5
    )  # of other batches, in single precision
    assert (rows["without_context"] < 0).all()
    predicted = pd.DataFrame(json.loads(inside("efa", "predict", model, baskets, "--format", "json").stdout))
    assert predicted["log_prob"].mean() == pytest.approx(parts["log_prob"]["test"], rel=1e-5)
    assert predicted["predicted_mean"].gt(0).all()
    drawn = pd.DataFrame(json.loads(inside("efa", "sample", model, "--data", baskets, "--format", "json").stdout))
    assert drawn["item"].tolist() == pd.read_csv(baskets)["item"].tolist()
    weights = inside("efa", "attention", model, baskets, "--format", "csv")
    assert weights.stdout.startswith("sequence,layer,head,row,attended_row")
    shown = inside("efa", "attention", model, baskets).stdout
    assert_shows(shown, "sequence 3", "And 16 more sequences; -o FILE writes all.")
    assert "sequence 4" not in shown
    assert_shows(inside("score", model).stdout, "symmetry")


def test_a_model_of_items_draws_ranks_and_attends(inside: Command, baskets: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    fit = inside("efa", "fit", baskets, "--part", "items", "--direction", "uni", *SMALL, "--save", model, "-q")
    assert (fit.returncode, fit.stderr) == (0, "")
    assert_shows(" ".join(fit.stdout.split()), "the rows of its sequence before it")
    drawn = inside("efa", "sample", model, "--sequences", "3", "--length", "2", "--format", "csv").stdout
    assert len(drawn.splitlines()) == 7
    in_file = inside("efa", "sample", model, "--sequences", "3", "--length", "2", "-o", tmp_path / "drawn.csv")
    assert in_file.stdout == "6 rows.\n"
    assert (tmp_path / "drawn.csv").read_text() == drawn
    similar = json.loads(inside("efa", "similar", model, "Limes", "--format", "json").stdout)
    assert {row["item"] for row in similar} == set(NAMES) - {"Limes"}
    assert [row["score"] for row in similar] == sorted((row["score"] for row in similar), reverse=True)
    shown = inside("efa", "attention", model, "Limes,Tea,Milk").stdout
    assert_shows(shown, "layer 0", "layer 1", "1 Limes", "3 Milk")
    assert max(map(len, shown.splitlines())) <= 80
    assert_shows(inside("efa", "predict", model, baskets).stdout, "predicted item", "probability")


def test_a_fit_says_how_the_training_of_each_part_ended(inside: Command, baskets: Path) -> None:
    both = ["efa", "fit", baskets, "--part", "both", "--value", "value:poisson", "--width", "4"]
    shown = inside(*both, "--epochs", "60", "--lr", "0.05", "--patience", "2").stdout
    line = r"(Items|Values): patience ended the training after epoch (\d+), with the weights of epoch (\d+)"
    ended = re.findall(line, " ".join(shown.split()))
    assert [part for part, _, _ in ended] == ["Items", "Values"]
    assert all(int(last) == int(best) + 2 < 60 for _, last, best in ended)
    assert_shows(shown, "accuracy", "popularity", "rmse", "item mean")
    whole = json.loads(inside(*both, "--epochs", "2", "--format", "json").stdout)
    assert [(row["epochs"], row["stopped_early"]) for row in whole[:3]] == [(2, False), (2, False), (None, None)]
    alone = inside("efa", "fit", baskets, "--part", "items", *SMALL, "--validation-fraction", "0").stdout
    assert_shows(" ".join(alone.split()), "Items: all 2 epochs, with the weights of the last", "no rows were held out")


def test_a_fit_says_that_its_baseline_is_better_on_rows_that_did_not_train(inside: Command, baskets: Path) -> None:
    fit = ["efa", "fit", baskets, "--part", "items", "--width", "4", "--heads", "1"]
    worse = inside(*fit, "--epochs", "2", "--lr", "20")
    assert_shows(" ".join(worse.stderr.split()), "the model is worse than", "items, held-out")
    (row,) = (row for row in json.loads(inside(*fit, "--epochs", "60", "--lr", "0.02", "--format", "json").stdout)[1:2])
    better = inside(*fit, "--epochs", "60", "--lr", "0.02").stderr
    assert ("is worse" in better) == (row["log_prob"] < max(row["without_context"], row["without_repeats"] or -9.0))


def test_errors_name_the_folders_of_both_parts(inside: Command, baskets: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    fit = ["efa", "fit", baskets, "--part", "both", "--value", "value:poisson", *SMALL, "--save", model]
    assert inside(*fit).returncode == 0
    assert_fails(
        inside("score", model), CorruptCheckpointError, "config.json", f"{model / 'items'} or {model / 'values'}"
    )
    assert_fails(
        inside("efa", "attention", model, "Limes,Tea"), 2, "no values", 'give the subfolder "items" of the model'
    )
    assert_shows(inside("efa", "attention", model / "items", "Limes,Tea").stdout, "1 Limes")


def test_several_values_covariates_and_both_parts_are_fitted_and_used(
    inside: Command, baskets: Path, tmp_path: Path
) -> None:
    rows, model, weights = pd.read_csv(baskets), tmp_path / "model", tmp_path / "weights.csv"
    days = pd.Timestamp("2024-02-28") + pd.to_timedelta(rows["sequence"], "D")
    table = tmp_path / "mixed.csv"
    rows = rows.assign(price=np.arange(len(rows)) % 7 + 0.5, shop=np.where(rows["sequence"] % 3, "01", "2"),
                       day=days.dt.strftime("%Y-%m-%d"))  # fmt: skip
    rows.assign(price=rows["price"].mask(rows.index == 1)).to_csv(table, index=False)
    options = [
        "--part=both",
        "--value=value:poisson",
        "--value=price:gaussian",
        "--covariates=shop",
        "--covariates=day:time",
    ]
    run = inside("efa", "fit", table, *options, *SMALL, "--save", model, "-o", tmp_path / "fit.csv")
    assert run.returncode == 0
    assert_shows(run.stdout, "items (categorical)", "(poisson)", "price (gaussian)", "all")
    fitted = pd.read_csv(tmp_path / "fit.csv", keep_default_na=False)
    assert fitted["part"].tolist() == ["items", "values", "values", "all"] * 2
    assert fitted["value"].tolist() == ["", "value", "price", ""] * 2
    sums = (fitted["log_prob"] * fitted["rows"]).groupby([fitted["data"], fitted["part"] == "all"]).sum().unstack()
    np.testing.assert_allclose(sums[True], sums[False], rtol=1e-6)
    assert fitted.loc[fitted["value"] == "price", "rows"].sum() == len(rows) - 1
    predicted = pd.DataFrame(json.loads(inside("efa", "predict", model, table, "--format", "json").stdout))
    assert predicted.filter(like="predicted").columns.tolist() == [
        "predicted_item", "predicted_mean_value", "predicted_mean_price",
    ]  # fmt: skip
    assert predicted["log_prob"].sum() == pytest.approx(sums[True].sum(), rel=1e-5)
    assert len(json.loads(inside("efa", "similar", model, "Limes", "--format", "json").stdout)) == len(NAMES) - 1
    drawn = pd.DataFrame(json.loads(inside("efa", "sample", model, "--data", table, "--format", "json").stdout))
    assert drawn["shop"].tolist() == rows["shop"].tolist()  # codes keep their zeros
    assert set(drawn["item"]) <= set(NAMES)
    assert inside("efa", "attention", model, table, "-o", weights).returncode == 0
    assert_shows(inside("efa", "attention", model, table).stdout, "sequence 0 items", "sequence 0 values")
    plot = ["plot", "item-attention", weights, "-o", tmp_path / "x.html", "--where", "sequence=1"]
    assert_fails(inside(*plot), 2, "one part", "--where", "part=items")
    assert inside(*plot, "--where", "part=items").returncode == 0
    for part in ("items", "values"):
        assert_shows(inside("score", model / part).stdout, "symmetry")
    for more, code, facts in (
        (["--value", "value:poisson", "--value", "price"], 2, ["--value", "'price' without a family", "--family"]),
        (["--value", "value:poison"], 2, ["--value", "did you mean poisson?"]),
        (["--value", "value:poisson", "--value", "value:gaussian"], 2, ["--value", "twice"]),
        (["--value", "value:poisson", "--value", "cost:gaussian"], UnknownColumnError, ["mixed.csv", "'cost'"]),
        (["--covariates", "shop:categry"], 2, ["--covariates", "did you mean category?"]),
        (["--covariates", "day:number"], TableError, ["row 1", "'day'", "expected a finite number"]),
    ):
        assert_fails(inside("efa", "fit", table, *more), code, *facts)
    for other, facts in ((rows.drop(columns="shop"), ["'shop'"]), (rows.assign(shop="mall"), ["row 1", "'mall'"])):
        other.to_csv(tmp_path / "other.csv", index=False)
        assert_fails(inside("efa", "predict", model, tmp_path / "other.csv"), TableError, "other.csv", *facts)
    assert_fails(inside("efa", "attention", model, "Limes,Tea"), 2, "no values")
    assert_fails(inside("efa", "sample", model), 2, "--data")


@pytest.fixture
def _few_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Synthetic ratings of 400 users."""
    monkeypatch.setattr("attngeo.papers.wibisono2025.datasets.synthetic_ratings", partial(synthetic_ratings, 400))
    load_split.cache_clear()
    yield
    load_split.cache_clear()


@pytest.mark.usefixtures("_few_users")
def test_an_experiment_prints_the_papers_numbers_beside_ours(inside: Command, tmp_path: Path) -> None:
    command = ["efa", "run", "synthetic", "--model", "fm", "--epochs", "1", "--direction", "bi"]
    first = inside(*command, "-o", tmp_path / "rows.csv")
    assert first.returncode == 0
    assert max(map(len, first.stdout.splitlines())) <= 80
    assert_shows(first.stdout, "mean-per-item", "bayes")
    assert "2.636" not in first.stdout  # the paper's number, of another number of epochs
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert set(rows["metric"]) == {"mse", "epochs"}
    assert_shows(first.stdout, *(f"{value:.3f}" for value in rows["value"][rows["metric"] == "mse"]))
    again = inside(*command)
    assert again.stdout == first.stdout
    assert_states(again.stderr, "3 of 3 runs", "--fresh")
    listed = inside("cache", "list", COLUMNS="100").stdout
    (row,) = (line for line in listed.splitlines() if "synthetic fm bi seed 0" in line)
    assert_states(row, "epochs=1")
    assert row.count("=") == 1  # what the experiment sets by itself is not shown
    assert not any(entry["outdated"] for entry in json.loads(inside("cache", "list", "--format", "json").stdout))


def test_a_value_may_be_the_name_of_an_argument(
    inside: Command, baskets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert inside("efa", "fit", baskets, *SMALL, "--save", "data").returncode == 0
    again = inside("efa", "fit", baskets, *SMALL, "--save", "data")
    assert_fails(again, 2, "folder data", "not empty")


def test_what_is_empty_is_predicted(inside: Command, baskets: Path, model: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(baskets)
    at = int((rows.groupby("sequence")["item"].transform("size") > 2).idxmax())
    rows.loc[at, "value"] = np.nan
    rows.to_csv(tmp_path / "rows.csv", index=False)
    found = json.loads(inside("efa", "predict", model, tmp_path / "rows.csv", "--format", "json").stdout)
    assert [at for at, row in enumerate(found) if row["log_prob"] is None] == [at]
    assert all(row["predicted_mean"] > 0 for row in found)
    rows.to_csv(tmp_path / "rows.csv", index=False, na_rep="unknown")
    command = ["efa", "predict", model, tmp_path / "rows.csv", "--format", "json"]
    unknown = json.loads(inside(*command, "--missing", "unknown", "--device", "cpu").stdout)
    predicted = ["log_prob", "predicted_mean"]
    assert [[row[name] for name in predicted] for row in unknown] == [
        [row[name] for name in predicted] for row in found
    ]
    assert unknown[at]["value"] == "unknown"
    assert_fails(inside(*command, "--missing", "unknown", "--device", "abacus"), 2, "--device", "'abacus'")


def test_predictions_that_a_file_has_are_summed_up(inside: Command, baskets: Path, tmp_path: Path) -> None:
    """Of values their range, of items how often each is predicted, and of both log p."""
    fit = ["efa", "fit", baskets, "--part", "both", "--value", "value:poisson", *SMALL, "--save", tmp_path / "both"]
    assert inside(*fit, "-q").returncode == 0
    run = inside("efa", "predict", tmp_path / "both", baskets, "-o", tmp_path / "p.csv")
    assert run.returncode == 0, run.stderr
    predicted = pd.read_csv(tmp_path / "p.csv")
    lines = run.stdout.splitlines()
    means = predicted["predicted_mean"]
    numbers = [str(len(means)), *(f"{number:.4g}" for number in (means.min(), means.mean(), means.max()))]
    assert lines[2].split() == ["predicted_mean", *numbers]
    counts = predicted["predicted_item"].value_counts()
    for item, count in counts.items():
        (line,) = (line for line in lines if line.split()[:1] == [item])
        probability = predicted.loc[predicted["predicted_item"] == item, "probability"].mean()
        assert line.split() == [item, str(count), f"{probability:.3f}"]
    assert_states(lines[-1], len(predicted), f"{predicted['log_prob'].mean():.3f}")
    assert len(lines) == 3 + 2 + len(counts) + 2


def test_each_command_of_a_saved_model_takes_the_form_of_a_file(
    inside: Command, baskets: Path, model: Path, tmp_path: Path
) -> None:
    """A file that cannot be read as it looks: a slash parts the columns, and a lone quotation mark is a text."""
    rows = pd.read_csv(baskets)
    form = ["--separator", "/", "--decimal", ",", "--encoding", "utf-16-le", "--no-quotes", "--format", "csv"]
    lines = rows.assign(shop='5" screws').to_csv(index=False, sep="/", quoting=csv.QUOTE_NONE)
    table = tmp_path / "odd.csv"
    table.write_text(lines, "utf-16-le")
    commands = {
        "predict": (model, None), "sample": (model, "--data", None), "compare": (model, model, None),
        "attention": (model, None),
    }  # fmt: skip
    for name, arguments in commands.items():
        outputs = []
        for path, options in ((baskets, ["--format", "csv"]), (table, form)):
            given = [path if argument is None else argument for argument in arguments]
            run = inside("efa", name, *given, *options)
            assert run.returncode == 0, run.stderr
            outputs.append(pd.read_csv(io.StringIO(run.stdout)).drop(columns="shop", errors="ignore"))
        pd.testing.assert_frame_equal(*outputs)
        assert inside("efa", name, *(table if argument is None else argument for argument in arguments)).returncode > 0


def test_names_that_look_like_markup_are_shown(inside: Command, tmp_path: Path) -> None:
    table, model = tmp_path / "rows.csv", tmp_path / "model"
    names = ["Milk [organic]", "Tea [/x]", "[bold]Jam"]
    pd.DataFrame({"sequence": np.arange(30) // 3, "item": names * 10}).to_csv(table, index=False)
    inside("efa", "fit", table, *SMALL, "--direction", "uni", "--save", model, "-q")
    for command in (["predict", model, table], ["similar", model, names[0]], ["sample", model, "--sequences", "20"],
                    ["attention", model, ",".join(names)]):  # fmt: skip
        run = inside("efa", *command)
        assert (run.returncode, run.stderr) == (0, "")
        assert_shows(run.stdout, *names[1:])


def test_wide_tables_keep_their_numbers_whole(inside: Command, tmp_path: Path) -> None:
    """Of a long sequence, the largest weights; of many columns, those that are the answer."""
    draw, model, table = np.random.default_rng(0), tmp_path / "model", tmp_path / "rows.csv"
    rows = pd.DataFrame({"sequence": np.arange(45) // 15, "item": [f"item {number}" for number in range(15)] * 3})
    given = {f"earlier_temperature_{number}": draw.normal(size=45) for number in range(6)}
    rows.assign(value=draw.normal(size=45), **given).to_csv(table, index=False)
    inside("efa", "fit", table, *SMALL, *(f"--lags={name}" for name in given), "--save", model, "-q")
    weights = pd.DataFrame(json.loads(inside("efa", "attention", model, table, "--format", "json").stdout))
    mean = weights.query("sequence == 0 and layer == 0 and row == 0").groupby(["lag", "attended_row"])["weight"].mean()
    shown = inside("efa", "attention", model, table).stdout
    first = next(line for line in shown.splitlines() if line.strip().startswith("1 item 0"))
    found = re.findall(r"(\d+) item \d+(?: t-(\d))?: (\d\.\d\d)", first)
    listed = [(mean[int(lag or 0), int(number) - 1], float(weight)) for number, lag, weight in found]
    assert len(listed) >= 2
    assert all(abs(weight - text) < 0.0051 for weight, text in listed)  # as a text, to two digits
    largest = mean.nlargest(len(listed))  # those that are equal but for rounding may be listed for each other
    np.testing.assert_allclose([weight for weight, _ in listed], largest, rtol=1e-5)
    predicted = inside("efa", "predict", model, table).stdout
    assert_shows(predicted, "item 14")
    assert {"log", "prob", "predicted", "mean"} <= {*predicted.split()}  # titles have several lines
    assert "…" not in predicted + shown
    assert max(map(len, (predicted + shown).splitlines())) <= 80


def test_rows_are_named_by_their_numbers_where_some_are_empty(inside: Command, model: Path, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    for text, code, facts in (
        ("sequence,item,value\n1,Limes,3\n1,Tea,\n1,Milk,abc\n", TableError, ["row 3", "'abc'"]),
        ("sequence,item,value\n1,Limes,3\n1,Tea,\n1,Beer,1\n", TableError, ["row 3", "'Beer'"]),
        ("sequence,item,value\n1,Limes,3\n2,Tea,\n2,Milk,1\n", TableError, ["sequence 1", "one row"]),
        ("sequence,item\n1,Limes\n1,Tea\n", TableError, ["'value'", "sequence, item"]),
    ):
        table.write_text(text)
        assert_fails(inside("efa", "predict", model, table), code, *facts)


def test_bad_input_is_one_line(inside: Command, baskets: Path, tmp_path: Path) -> None:
    model, values, broken, empty = (tmp_path / name for name in ("model", "values", "broken.csv", "empty.csv"))
    empty.touch()
    assert inside("efa", "fit", baskets, "--part", "items", *SMALL, "--save", model).returncode == 0
    assert inside("efa", "fit", baskets, "--part", "values", *SMALL, "--save", values).returncode == 0
    pd.read_csv(baskets).assign(value=-1).to_csv(broken, index=False)
    pd.read_csv(baskets).assign(value="soon").to_csv(tmp_path / "texts.csv", index=False)
    other = tmp_path / "rows.json"
    other.write_text("[]")
    for arguments, code, facts in (
        (["fit", tmp_path / "none.csv"], DataUnavailableError, ["none.csv"]),
        (["fit", baskets, "--sequence", "order"], UnknownColumnError, ["'order'"]),
        (["fit", baskets, "--value", "itemm"], UnknownColumnError, ["'itemm'", "did you mean item?"]),
        (["fit", baskets, "--family", "normal"], 2, ["family", "'normal'", "poisson"]),
        (["fit", broken, "--family", "poisson"], TableError, ["row 1", "'value': -1", "whole numbers from 0"]),
        (["fit", tmp_path / "texts.csv", "--value", "value"], TableError, ["row 1", "'soon'", "name another column"]),
        (["fit", baskets, "--save", model], 2, [model]),
        (["fit", baskets, "-o", baskets], 2, [baskets]),
        (
            ["predict", tmp_path / "none", baskets],
            ModelNotFoundError,
            ["none does not exist", "attngeo efa fit --save"],
        ),
        (["similar", model, "Limess"], 2, ["'Limess'", "Limes"]),
        (["attention", model, "Limes,Beer"], 2, ["'Beer'"]),
        (["attention", model, "Limes"], 2, ["'Limes'", "two or more"]),
        (["attention", model, other], 4, [other, ".csv .tsv .parquet"]),
        (["sample", model, "--length", "99"], 2, ["--length", 99, "no item occurs twice"]),
        (["similar", values, "Limes"], 2, ["attention model of values", "--part items", "--model fm"]),
        (["fit", baskets, "--part", "values", "--no-repeats"], 2, ["--no-repeats has no effect", "values"]),
        (["fit", baskets, "--part", "values", "--repeats"], 2, [" --repeats has no effect", "values"]),
        (["fit", baskets, "--part", "items", "--no-item-vectors"], 2, ["--no-item-vectors has no effect", "items"]),
        (["fit", baskets, "--layers", "99999"], 2, ["--layers", "99,999", "1,000"]),
        (["fit", empty], TableError, [empty, "is empty", "column names"]),
        (["predict", tmp_path, baskets], CorruptCheckpointError, [tmp_path, "config.json", "attngeo efa fit --save"]),
        (["sample", model, "--data", baskets], 2, ["data", "items"]),
        (["fit", baskets, "--save", baskets / "model"], 2, [baskets / "model"]),
        (["fit", baskets, "--resume", baskets], 2, [baskets]),
        (["fit", baskets, "--resume", tmp_path / "new", "--save", tmp_path / "new"], 2, [tmp_path / "new"]),
        (["run", "synthetic", "--save", baskets], 2, [baskets]),
        (["run", "books"], 2, ["books", "synthetic"]),
        (["run", "movielens-sequence"], DataUnavailableError, ["HF_HUB_OFFLINE", "--data"]),
        (["run", "synthetic", "--data", baskets], 2, ["synthetic", "--data"]),
        (["run", "temperature", "--n-neighbors", "0"], 2, ["n-neighbors", 0]),
        (["run", "temperature", "--n-neighbors", "44"], 2, ["n-neighbors", 44, 43]),
    ):
        assert_fails(inside("efa", *map(str, arguments)), code, *facts)


# The command, but that it keeps the state of a training after each epoch.
OFTEN = "import attngeo.training.loop as loop; loop.PAUSE_RATIO = 0; from attngeo.commands.app import main; main()"


@pytest.mark.slow
def test_ctrl_c_keeps_the_state_from_which_the_same_command_resumes(baskets: Path, tmp_path: Path) -> None:
    """A resumed training ends with the same numbers as one that was not interrupted."""
    state = tmp_path / "kept" / "state"

    def start(*more: object) -> subprocess.Popen[str]:
        command = ["efa", "fit", baskets, "--family", "poisson", "--width", 4, "--epochs", 100, *more]
        return subprocess.Popen(
            [sys.executable, "-c", OFTEN, *map(str, command)], env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    resumable = ["--save", tmp_path / "model", "--resume", state]
    process = start(*resumable)
    while not (state / "training.pt").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert_states(err.splitlines()[-1], "interrupted", 100, "resume")
    assert [path.name for path in state.iterdir()] == ["training.pt"]
    assert not (tmp_path / "model").exists()
    other = start(*resumable, "--seed", 1)
    assert_states(other.communicate()[1], state, "another folder")
    for process in (start(*resumable), start("--save", tmp_path / "whole")):
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    resumed, whole = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "whole"))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    assert not state.exists() or not list(state.iterdir())
