"""Seeded tables with the columns, the kinds of cells and the sizes of five public data sets.

Their relations are made up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd


def _flip(draw: np.random.Generator, logits: np.ndarray, no: str = "no", yes: str = "yes") -> np.ndarray:
    """A text for each row, the second one with the probability of its logit."""
    return np.where(draw.random(len(logits)) < 1 / (1 + np.exp(-logits)), yes, no)


def _choose(draw: np.random.Generator, names: list[str], rows: int, decay: float = 0.7) -> np.ndarray:
    """A name for each row; each is less frequent than the one before it."""
    shares = decay ** np.arange(len(names))
    return draw.choice(names, rows, p=shares / shares.sum())


def _hide(draw: np.random.Generator, values: np.ndarray, share: float, text: object = None) -> np.ndarray:
    """The values, of which a share is missing."""
    hidden = values.astype(object)
    hidden[draw.random(len(values)) < share] = text
    return hidden


def make_adult(draw: np.random.Generator, rows: int = 50_000) -> pd.DataFrame:
    """Census rows with many rare categories, mostly zero gains, and "?" for a missing cell."""
    age = np.clip(draw.gamma(6, 6.5, rows), 17, 90).astype(int)
    years = np.clip(draw.normal(10, 2.6, rows), 1, 16).astype(int)
    job = _choose(draw, [f"job {number}" for number in range(14)], rows, 0.85)
    pay_of_job = dict(zip(sorted(set(job)), draw.normal(0, 0.8, 14), strict=False))
    relation = _choose(draw, ["husband", "single", "child", "divorced", "wife", "other"], rows)
    hours = np.clip(draw.normal(40, 11, rows), 1, 99).astype(int)
    gain = np.where(draw.random(rows) < 0.08, np.exp(draw.normal(8.5, 1, rows)), 0).astype(int)
    is_couple = np.isin(relation, ["husband", "wife"])
    logits = (
        -3.1
        + 2.2 * is_couple
        + 0.3 * (years - 10) * (1 + 0.4 * is_couple)
        - 0.0018 * (age - 47) ** 2
        + 0.9
        + 0.03 * (hours - 40)
        + 3 * (gain > 6000)
        + np.array([pay_of_job[name] for name in job])
    )
    return pd.DataFrame(
        {
            "age": age,
            "workclass": _hide(
                draw, _choose(draw, ["private", "self", "local", "state", "federal", "none"], rows, 0.4), 0.05, "?"
            ),
            "fnlwgt": draw.integers(12_000, 1_500_000, rows),
            "education": np.array([f"level {number}" for number in years]),
            "education-num": years,
            "marital-status": np.where(is_couple, "married", _choose(draw, ["never", "divorced", "widowed"], rows)),
            "occupation": _hide(draw, job, 0.05, "?"),
            "relationship": relation,
            "sex": np.where(
                relation == "husband",
                "male",
                np.where(relation == "wife", "female", _choose(draw, ["male", "female"], rows, 1)),
            ),
            "capital-gain": gain,
            "capital-loss": np.where(draw.random(rows) < 0.05, draw.integers(150, 4000, rows), 0),
            "hours-per-week": hours,
            "native-country": _choose(draw, [f"country {number}" for number in range(41)], rows, 0.6),
            "income": _flip(draw, logits, "<=50K", ">50K"),
        }
    )


def make_titanic(draw: np.random.Generator, rows: int = 891) -> pd.DataFrame:
    """Passengers with numbers of rows, names, tickets that few share, and cabins that most lack."""
    level = draw.choice([1, 2, 3], rows, p=[0.24, 0.21, 0.55])
    sex = draw.choice(["male", "female"], rows, p=[0.65, 0.35])
    age = np.clip(draw.normal(33 - 3 * level + 5, 14, rows), 0.4, 80).round(1)
    siblings = draw.choice([0, 1, 2, 3, 4, 5, 8], rows, p=[0.68, 0.23, 0.03, 0.02, 0.02, 0.01, 0.01])
    fare = np.exp(draw.normal(4.6 - 0.75 * level, 0.5, rows)).round(4)
    logits = (
        0.4
        + 2.6 * (sex == "female") * (level < 3)
        + 1.3 * (sex == "female")
        - 0.8 * (level - 1)
        + 1.6 * (age < 10)
        - 0.4 * siblings
        - 1
    )
    return pd.DataFrame(
        {
            "PassengerId": np.arange(1, rows + 1),
            "Survived": (_flip(draw, logits) == "yes").astype(int),
            "Pclass": level,
            "Name": [
                f"Passenger {number:04d}, {title}"
                for number, title in zip(draw.permutation(rows), np.where(sex == "male", "Mr.", "Mrs."), strict=True)
            ],
            "Sex": sex,
            "Age": _hide(draw, age, 0.2),
            "SibSp": siblings,
            "Parch": draw.choice([0, 1, 2, 5, 6], rows, p=[0.76, 0.13, 0.09, 0.01, 0.01]),
            "Ticket": [f"T {number}" for number in draw.integers(0, 1400, rows)],
            "Fare": fare,
            "Cabin": _hide(draw, np.array([f"C{number}" for number in draw.integers(0, 150, rows)]), 0.77),
            "Embarked": _hide(draw, _choose(draw, ["S", "C", "Q"], rows, 0.4), 0.003),
        }
    )


def make_churn(draw: np.random.Generator, rows: int = 7043) -> pd.DataFrame:
    """Customers with an id of letters, services that depend on each other, and blank totals of new customers."""
    tenure = np.clip(draw.exponential(32, rows), 0, 72).astype(int)
    internet = draw.choice(["fibre", "dsl", "none"], rows, p=[0.44, 0.34, 0.22])
    contract = np.where(
        tenure > 45,
        draw.choice(["month", "one year", "two years"], rows, p=[0.2, 0.3, 0.5]),
        draw.choice(["month", "one year", "two years"], rows, p=[0.75, 0.17, 0.08]),
    )
    services = {}
    for name in ("security", "backup", "protection", "support", "television", "films"):
        services[name] = np.where(internet == "none", "no internet", draw.choice(["no", "yes"], rows, p=[0.6, 0.4]))
    extras = sum((values == "yes").astype(int) for values in services.values())
    monthly = (20 + 30 * (internet == "dsl") + 50 * (internet == "fibre") + 5 * extras + draw.normal(0, 2, rows)).round(
        2
    )
    payment = draw.choice(["electronic", "mailed", "transfer", "card"], rows, p=[0.34, 0.22, 0.22, 0.22])
    logits = (
        -0.6
        + 1.5 * (contract == "month")
        - 1.2 * (contract == "two years")
        - 0.035 * tenure
        + 0.9 * (internet == "fibre")
        + 0.5 * (payment == "electronic")
        - 0.6 * (services["support"] == "yes")
        + 0.8 * (tenure < 4) * (internet == "fibre")
    )
    totals = [" " if months == 0 else f"{months * charge:.2f}" for months, charge in zip(tenure, monthly, strict=True)]
    return pd.DataFrame(
        {
            "customerID": [
                f"{number:04d}-{'ABCDEFGHJK'[number % 10]}{number % 97:02d}X" for number in draw.permutation(rows)
            ],
            "gender": draw.choice(["Female", "Male"], rows),
            "SeniorCitizen": draw.choice([0, 1], rows, p=[0.84, 0.16]),
            "Partner": draw.choice(["no", "yes"], rows),
            "tenure": tenure,
            "InternetService": internet,
            **services,
            "Contract": contract,
            "PaymentMethod": payment,
            "MonthlyCharges": monthly,
            "TotalCharges": totals,
            "Churn": _flip(draw, logits),
        }
    )


def make_credit(draw: np.random.Generator, rows: int = 30_000) -> pd.DataFrame:
    """Card holders with a number of the row, skewed amounts of six months, and states of payment from -2 to 8."""
    limit = (np.exp(draw.normal(11.7, 0.8, rows)) // 10_000 * 10_000 + 10_000).astype(int)
    risk = draw.normal(0, 1, rows) - 0.3 * np.log(limit / 1e5)
    months = {}
    for number in range(6):
        late = np.floor(risk + draw.normal(0.0, 0.8, rows))
        months[f"PAY_{number}"] = np.clip(late, -2, 8).astype(int)
    for number in range(6):
        months[f"BILL_AMT{number + 1}"] = (
            limit * np.clip(0.35 + 0.2 * risk + draw.normal(0, 0.25, rows), -0.1, 1.2)
        ).astype(int)
    for number in range(6):
        paid = months[f"BILL_AMT{number + 1}"] * np.clip(draw.beta(0.6, 3, rows), 0, 1)
        months[f"PAY_AMT{number + 1}"] = np.maximum(paid, 0).astype(int)
    logits = (
        -2.2
        + 0.9 * (months["PAY_0"] >= 1)
        + 0.9 * (months["PAY_0"] >= 2)
        + 0.4 * (months["PAY_1"] >= 2)
        + 0.35 * risk
        - 0.2 * np.log(limit / 1e5)
    )
    return pd.DataFrame(
        {
            "ID": np.arange(1, rows + 1),
            "LIMIT_BAL": limit,
            "SEX": draw.choice([1, 2], rows),
            "EDUCATION": draw.choice([1, 2, 3, 4], rows, p=[0.35, 0.47, 0.16, 0.02]),
            "MARRIAGE": draw.choice([1, 2, 3], rows, p=[0.45, 0.53, 0.02]),
            "AGE": draw.integers(21, 75, rows),
            **months,
            "default": (_flip(draw, logits) == "yes").astype(int),
        }
    )


def make_bikes(draw: np.random.Generator, rows: int = 10_886) -> pd.DataFrame:
    """Hours of two years with their weather, and the demand of the hour in three classes."""
    when = pd.date_range("2011-01-01", periods=17_520, freq="h")[np.sort(draw.choice(17_520, rows, replace=False))]
    hour, day = when.hour.to_numpy(), when.dayofweek.to_numpy()
    is_work = day < 5
    warmth = 14 - 11 * np.cos(2 * np.pi * (when.dayofyear.to_numpy() - 20) / 365)
    temperature = (warmth + 4 * np.sin(2 * np.pi * (hour - 9) / 24) + draw.normal(0, 3, rows)).round(2)
    weather = draw.choice([1, 2, 3, 4], rows, p=[0.66, 0.26, 0.078, 0.002])
    rush = 90 * np.exp(-((hour - 8) ** 2) / 3) + 120 * np.exp(-((hour - 17.5) ** 2) / 6)
    leisure = 110 * np.exp(-((hour - 14) ** 2) / 20)
    demand = (
        (np.where(is_work, rush, leisure) + 8) * (0.3 + np.clip(temperature, 0, 30) / 20) * (1 - 0.25 * (weather > 2))
    )
    demand = draw.poisson(demand * (1 + 0.4 * (when.year == 2012)) * np.exp(draw.normal(0, 0.35, rows)))
    return pd.DataFrame(
        {
            "datetime": when.strftime("%Y-%m-%d %H:%M:%S"),
            "season": (when.month.to_numpy() % 12) // 3 + 1,
            "holiday": draw.choice([0, 1], rows, p=[0.97, 0.03]),
            "workingday": is_work.astype(int),
            "weather": weather,
            "temp": temperature,
            "atemp": (temperature * 1.2 + draw.normal(0, 1, rows)).round(2),
            "humidity": np.clip(draw.normal(62, 19, rows), 0, 100).astype(int),
            "windspeed": draw.gamma(2.5, 5, rows).round(4),
            "demand": pd.cut(demand, [-1, 20, 90, 10**6], labels=["low", "middle", "high"]).astype(str),
        }
    )


TABLES: dict[str, tuple[Callable[[np.random.Generator], pd.DataFrame], str]] = {
    "adult": (make_adult, "income"),
    "titanic": (make_titanic, "Survived"),
    "churn": (make_churn, "Churn"),
    "credit": (make_credit, "default"),
    "bikes": (make_bikes, "demand"),
}


def make_table(name: str, seed: int) -> tuple[pd.DataFrame, str]:
    """The rows of a table, and the name of its response."""
    make, target = TABLES[name]
    return make(np.random.default_rng(seed)), target
