"""Options and keywords of both estimators; beside it, files of fitted models (`saving`) and of users (`files`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from attngeo.keywords import build_signature, fill_in, refuse_unknown
from attngeo.options import OPTIMISATION, Options, device_option, option
from attngeo.training import TrainingOptions

Keywords = ParamSpec("Keywords")
Estimator = TypeVar("Estimator")


class EstimatorOptions(Options):
    """Options for training an estimator, with the names of scikit-learn."""

    max_epochs: int = option(200, "Passes over the training data", panel=OPTIMISATION, flags=("--epochs",), least=1)
    learning_rate: float = option(1e-3, "Learning rate of Adam", panel=OPTIMISATION, flags=("--lr",), least=0)
    device: str = device_option()

    def training(self, **more: Any) -> TrainingOptions:
        """The options of the training loop. more: options with another name or default there, and further options."""
        shared: dict[str, Any] = {"epochs": self.max_epochs, "learning_rate": self.learning_rate, "device": self.device}
        return TrainingOptions(**shared | more)


def takes_keywords(
    keywords: Callable[Keywords, Options],
) -> Callable[[Callable[[Estimator], None]], Callable[Concatenate[Estimator, Keywords], None]]:
    """A decorator of `__init__`: its keywords are the fields of an options class, with their types and defaults.

    They become attributes of the estimator, unchecked, as scikit-learn requires; `fit` checks them. The help texts of
    the options replace {options} in the section `Args:` of the docstring. Raises UnknownOptionError for an unknown
    keyword.
    """
    options: Any = keywords
    defaults = {name: field.default for name, field in options.model_fields.items()}

    def decorate(function: Callable[[Estimator], None]) -> Any:
        @wraps(function)
        def init(self: Any, **values: Any) -> None:
            refuse_unknown(type(self).__name__, values, defaults)
            vars(self).update(defaults | values)

        init.__signature__ = build_signature(function, options, {})  # type: ignore[attr-defined]
        init.__doc__ = fill_in(inspect.cleandoc(function.__doc__ or ""), "options", options)
        return init

    return decorate
