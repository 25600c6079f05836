"""The search of the baselines gives the model of a plain GridSearchCV."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import OneHotEncoder

from attngeo.errors import DataError
from attngeo.estimators.tabular.baselines import BASELINES, fit_baseline, forecast_seconds
from attngeo.papers.wibisono2023.data import ShiftedTable, simulate
from attngeo.papers.wibisono2023.options import ShiftSetting

# Small values of the parameters that appendix E searches.
SMALL: dict[str, Any] = {
    "lr": {},
    "rf": {"criterion": ("gini", "entropy"), "n_estimators": (1, 2, 3, 5, 8, 12), "max_depth": (1, None)},
    "gb": {"learning_rate": (0.1, 1), "n_estimators": (1, 2, 3, 4, 5, 6, 8), "max_depth": (1, 3)},
    "mlp": {"hidden_layer_sizes": ((5,),), "alpha": (0.0001, 1.0), "learning_rate": ("constant", "adaptive")},
}


def make_table(rows: int = 150, seed: int = 3) -> ShiftedTable:
    return simulate(ShiftSetting(2, 0.0, 0.9), seed, features=3, classes=3, rows=rows)


def search_plainly(name: str, table: ShiftedTable, seed: int, grid: dict[str, Any]) -> Any:
    """GridSearchCV on one-hot columns that are made before, and the matrix of test rows."""
    levels = [sorted(set(column)) for column in table.train.x.T]
    train, test = (
        np.column_stack([rows.x[:, i] == level for i, own in enumerate(levels) for level in own[1:]]) for rows in table
    )
    if BASELINES[name].sparse:  # equally good splits of a tree are taken in another order
        train, test = csr_matrix(train, dtype=float), csr_matrix(test, dtype=float)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    search = GridSearchCV(
        BASELINES[name].make(seed), {k: list(v) for k, v in grid.items()}, scoring="accuracy", cv=folds
    )
    return search.fit(train, table.train.y), test


def assert_equal_to_plain(name: str, table: ShiftedTable, seed: int, grid: dict[str, Any]) -> None:
    plain, test = search_plainly(name, table, seed, grid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BASELINES, name, replace(BASELINES[name], grid=grid))
        found = fit_baseline(name, table.train.x, table.train.y, seed=seed)
    assert found.parameters == plain.best_params_
    np.testing.assert_array_equal(found.predict(table.test.x), plain.predict(test))
    np.testing.assert_array_equal(found.predict_proba(table.test.x), plain.predict_proba(test))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_search_is_that_of_grid_search(name: str) -> None:
    for seed in range(1 if name == "mlp" else 3):
        assert_equal_to_plain(name, make_table(seed=seed), seed, SMALL[name])


def test_grids_are_those_of_appendix_e() -> None:
    """Of Wibisono and Wang 2023, but for what changes nothing with the solver of scikit-learn's MLP."""
    trees = {"n_estimators": [50, 100, 200]}
    grids = {name: {option: list(values) for option, values in BASELINES[name].grid.items()} for name in BASELINES}
    assert grids["lr"] == {}
    assert grids["rf"] == {"criterion": ["gini", "entropy"], "max_depth": [1, 3, None]} | trees
    assert grids["gb"] == {"learning_rate": [0.01, 0.1, 1], "max_depth": [1, 3, 5]} | trees
    assert grids["mlp"]["hidden_layer_sizes"] == [(50,), (100,), (100, 50)]
    assert grids["mlp"]["alpha"] == [0.0001, 0.001, 0.01]


@pytest.mark.explore
@pytest.mark.parametrize("name", BASELINES)
def test_the_search_of_the_appendix_is_that_of_grid_search(name: str) -> None:
    assert_equal_to_plain(name, make_table(200), 7, dict(BASELINES[name].grid))


@pytest.mark.parametrize("name", ["rf", "gb"])
def test_a_model_of_few_trees_is_the_beginning_of_one_of_many(name: str) -> None:
    table = make_table(60)
    encoded = OneHotEncoder(sparse_output=False).fit_transform(table.train.x)
    many = BASELINES[name].make(1).set_params(n_estimators=6).fit(encoded, table.train.y)
    stages = BASELINES[name].stages
    assert stages is not None
    for count, predicted in enumerate(stages(many, encoded), 1):
        few = BASELINES[name].make(1).set_params(n_estimators=count).fit(encoded, table.train.y)
        np.testing.assert_array_equal(predicted, few.predict(encoded))


def test_the_grids_are_those_of_the_appendix() -> None:
    grids = {name: BASELINES[name].grid for name in SMALL}
    assert {name: len(grid) for name, grid in grids.items()} == {"lr": 0, "rf": 3, "gb": 3, "mlp": 3}
    counts = {name: int(np.prod([len(values) for values in grid.values()])) for name, grid in grids.items()}
    assert counts == {"lr": 1, "rf": 18, "gb": 27, "mlp": 9}


def test_an_unknown_category_counts_as_the_first() -> None:
    table = make_table()
    model = fit_baseline("lr", table.train.x, table.train.y, seed=0)
    first, unknown = table.test.x.copy(), table.test.x.copy()
    first[:, 0], unknown[:, 0] = 0, 99
    np.testing.assert_array_equal(model.predict(unknown), model.predict(first))


def test_fits_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    table, seen = make_table(60), []
    monkeypatch.setitem(BASELINES, "gb", replace(BASELINES["gb"], grid=SMALL["gb"] | {"n_estimators": (1, 2)}))
    fit_baseline("gb", table.train.x, table.train.y, seed=0, report=lambda *step: seen.append(step))
    assert seen == [(done, 4) for done in range(1, 5)]


def test_a_forecast_is_the_time_of_two_candidates_for_all_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(60)
    grid = {"n_estimators": (1, 2), "max_depth": (1, 2, 3)}
    fitted = []

    def make(seed: int) -> Any:
        fitted.append(seed)
        return BASELINES["gb"].make(seed)

    clock = iter([10.0, 16.0])
    monkeypatch.setattr("attngeo.estimators.tabular.baselines.time.monotonic", lambda: next(clock))
    monkeypatch.setitem(BASELINES, "rf", replace(BASELINES["gb"], grid=grid, make=make))
    assert forecast_seconds("rf", table.train.x, table.train.y, seed=0) == 3 * (3 * 5 + 1)  # a fit takes 3 s
    assert len(fitted) == 2
    fit_baseline("rf", table.train.x, table.train.y, seed=0)
    assert len(fitted) == 2 + 3 * 5 + 1
    assert forecast_seconds("lr", table.train.x, table.train.y, seed=0) == 0


def test_ctrl_c_ends_a_method_that_would_only_warn_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the MLP of scikit-learn, which goes on with the weights so far."""
    table = make_table(60)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MLPClassifier, "_backprop", interrupt)
    for fit in (fit_baseline, forecast_seconds):
        with pytest.raises(KeyboardInterrupt):
            fit("mlp", table.train.x, table.train.y, seed=0)


@pytest.mark.parametrize("y", [np.zeros(20, int), np.arange(20)])
def test_a_table_that_cannot_be_divided_is_refused(y: np.ndarray) -> None:
    x = make_table().train.x[:20]
    with pytest.raises(DataError, match=r"expected at least 2 classes, and 5 rows"):
        fit_baseline("gb", x, y, seed=0)
