"""A question about models, as CONTRIBUTING.md says to add one: its options, its rows, its entry and its command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attngeo.commands.asking import ask_models
from attngeo.commands.declare import with_options
from attngeo.commands.models import ModelOutputs, Models, list_all
from attngeo.commands.outputs import Verbosity
from attngeo.commands.study import deliver
from attngeo.commands.tables import print_frame

from attngeo.attention.opened import Attention
from attngeo.attention.options import ModelReading, ReadingOptions, SourceOptions
from attngeo.checkpoints.access import HubAccess
from attngeo.options import COMPUTATION, option
from attngeo.questions.conditions import Checkable
from attngeo.questions.frames import join_frames
from attngeo.questions.making import Making
from attngeo.questions.question import Question
from attngeo.questions.table import FORM
from attngeo.session import ResultOptions, Session, StudyOptions

COLUMNS = ("model", "stack", "layer", "size", "note")


class SizeOptions(SourceOptions):
    """How sizes are measured."""

    power: int = option(2, "Power of the entries", panel=COMPUTATION, least=1)

    def readings(self) -> tuple[ModelReading]:
        """What is read of the model."""
        return (ModelReading(ReadingOptions.of(self)),)


def measure_sites(attention: Attention, options: SizeOptions, making: Making) -> Iterator[list[dict[str, Any]]]:
    """The sum of a power of the query weights of each layer."""
    making.about["skipped"] = attention.left_out
    for site, _, query_key, *_ in attention.read():
        assert query_key is not None
        size = query_key.q.double().pow(options.power).sum().item()
        yield [attention.name() | {"stack": site.stack, "layer": site.layer, "size": size, "note": ""}]


SIZE = Question(
    "size",
    SizeOptions,
    COLUMNS,
    Checkable(("size",), units=("layers",)),
    title="Sizes of queries",
    rows=measure_sites,
    keeps="sizes",
    form=FORM,
)


@with_options
def size(
    *,
    options: SizeOptions,
    models: Models = None,
    outputs: ModelOutputs,
    hub: HubAccess,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Measure the size of the queries of every layer."""
    listed = list_all(models, None, hub, command="size")
    outputs.check(*listed)
    outputs.check_labels(listed)
    outcomes = ask_models(SIZE, listed, Session(hub, study, results), verbosity, options=options)
    rows = join_frames([outcome.result for outcome in outcomes if outcome.result is not None])
    deliver(rows, outcomes, outputs, print_frame)
