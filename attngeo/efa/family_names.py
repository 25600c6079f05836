"""Families by the text that commands, recipes and saved models name them with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attngeo.errors import UsageError

if TYPE_CHECKING:
    from attngeo.efa.families import ExponentialFamily


@dataclass(frozen=True)
class FamilyName:
    """A family. kind: its name in `attngeo.efa.families`, or what makes it. parameter: its number; None for none.

    convert: text → that number. required: whether the number must be given. shift: what is subtracted from values.
    """

    kind: str | Callable[..., ExponentialFamily]
    parameter: str | None = None
    convert: Callable[[str], Any] = float
    required: bool = True
    shift: int = 0


FAMILY_NAMES: dict[str, FamilyName] = {
    "gaussian": FamilyName("Gaussian", "variance", required=False),
    "poisson": FamilyName("Poisson", "least", required=False),
    "poisson-from-1": FamilyName("Poisson", "least", required=False, shift=1),
    "bernoulli": FamilyName("Bernoulli"),
    "binomial": FamilyName("Binomial", "total_count", int),
    "negative-binomial": FamilyName("NegativeBinomial", "total_count"),
    "gamma": FamilyName("Gamma", "concentration"),
    "ordinal": FamilyName("Ordinal", "levels", int),
}


def register_family(
    name: str,
    kind: Callable[..., ExponentialFamily],
    parameter: str | None = None,
    *,
    convert: Callable[[str], Any] = float,
    required: bool = True,
) -> None:
    """Give a family of your own a name, which the option `family` then takes.

    A model with it can be saved. Python loads it once the name is registered; commands do not know it.

    kind: a subclass of `attngeo.efa.families.ExponentialFamily`, or a function that makes one. parameter: the name of
    its argument, if it has one, which is then given after a colon. convert: text → that argument. required: whether it
    must be given. Raises UsageError for a name that a family has, or that is no name, and for another class.
    """
    from attngeo.efa.families import ExponentialFamily

    if isinstance(kind, type) and not issubclass(kind, ExponentialFamily):
        raise UsageError(
            f"kind is the class {kind.__name__}, expected a subclass of attngeo.efa.families.ExponentialFamily"
        )
    if not isinstance(name, str) or not name.strip() or ":" in name:
        raise UsageError(f"name is {name!r}, expected a text without a colon")
    if name in FAMILY_NAMES and isinstance(FAMILY_NAMES[name].kind, str):
        raise UsageError(f"name is {name!r}, which is a family of attngeo; choose another name")
    FAMILY_NAMES[name] = FamilyName(kind, parameter, convert, required)


def parse_family(text: str) -> ExponentialFamily:
    """The family of a text such as "poisson", "gaussian:2" or "binomial:10". Raises UsageError.

    The number is the variance of a Gaussian (without it, the variance is learned), the least rate of a Poisson, the
    total count of a binomial or negative binomial, the concentration of a gamma, or the number of levels.

    >>> parse_family("binomial:10").total_count
    10
    """
    name, number = split_family(text)
    declared = FAMILY_NAMES[name]
    from attngeo.efa import families

    arguments = {}
    if number:
        assert declared.parameter is not None
        arguments[declared.parameter] = declared.convert(number)
    elif name == "gaussian":
        arguments["variance"] = None
    make = getattr(families, declared.kind) if isinstance(declared.kind, str) else declared.kind
    family: ExponentialFamily = make(**arguments)
    return families.Shifted(family, declared.shift) if declared.shift else family


def check_family(text: str) -> str:
    """The text, if it names a family. Raises UsageError. Loads nothing heavy."""
    split_family(text)
    return text


def split_family(text: str) -> tuple[str, str]:
    """The name of a family and its number, as text; "" without one. Raises UsageError."""
    name, colon, number = str(text).partition(":")
    known = ", ".join(_show(each, declared) for each, declared in FAMILY_NAMES.items())
    declared = FAMILY_NAMES.get(name)
    if declared is None:
        raise UsageError(f"family is {text!r:.60}, expected one of: {known}")
    if (colon and declared.parameter is None) or (not number and (colon or (declared.required and declared.parameter))):
        raise UsageError(f"family is {text!r:.60}, expected {_show(name, declared)}")
    if number:
        assert declared.parameter is not None
        try:
            declared.convert(number)
        except ValueError:
            kind = "whole number" if declared.convert is int else "number"
            raise UsageError(f"family is {text!r:.60}, expected a {kind} after the colon") from None
    return name, number


def _show(name: str, declared: FamilyName) -> str:
    if declared.parameter is None:
        return name
    number = declared.parameter.upper()
    return f"{name}:{number}" if declared.required else f"{name}[:{number}]"
