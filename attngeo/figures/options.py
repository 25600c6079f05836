"""The options of a figure, each declared once: `attngeo.plot`, the command and recipes read them here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attngeo.errors import UsageError
from attngeo.options import DRAWING, Options, option
from attngeo.scores.spec import score_names

# Pixels of a side of an image; a smaller one has no room for titles.
SMALLEST, LARGEST = 300, 10_000
# Not a score, but drawn like one by the kinds that show training.
LOSS = "loss"


def drawable_scores() -> tuple[str, ...]:
    """What the option `score` may name: every score, and the loss."""
    return (*score_names(), LOSS)


def parse_where(texts: Any) -> Mapping[str, Any]:
    """Column → its values, of texts such as "layer=2"; a mapping stays as it is. Raises UsageError.

    >>> parse_where(["layer=2", "note=a=b", "layer=3"])
    {'layer': ['2', '3'], 'note': ['a=b']}
    """
    if isinstance(texts, Mapping):
        return texts
    if not isinstance(texts, list | tuple):
        raise UsageError(f"$where is {texts!r:.60}, expected a column and its value, such as {{'layer': 2}}", "where")
    values: dict[str, list[str]] = {}
    for text in texts:
        column, equals, value = text.partition("=")
        if not (column and equals and value):
            raise UsageError(f"$where is {text!r}, expected COLUMN=VALUE", "where")
        values.setdefault(column, []).append(value)
    return values


class PlotOptions(Options):
    """What a figure shows of its inputs. Raises UsageError for a value that is no choice or outside its limits."""

    score: str = option(
        "symmetry", "Score to draw; the kind training also draws loss", panel=DRAWING,
        choices=drawable_scores,
    )  # fmt: skip
    layer: int = option(0, "Layer of the matrix", panel=DRAWING, metavar="N", least=0)
    head: int | None = option(
        None, "Head of the matrix", panel=DRAWING, metavar="N", shown_default="the whole layer", least=0
    )
    stack: str | None = option(
        None, "Draw only this stack: encoder, decoder, cross, vision …", panel=DRAWING, metavar="NAME"
    )
    where: Mapping[str, object] | None = option(
        None, "Draw only the rows with this value; may be repeated, for another column or value", panel=DRAWING,
        metavar="COLUMN=VALUE", parse=parse_where, repeated=True,
    )  # fmt: skip
    published: bool = option(
        True,
        "Show published numbers: the 223 models (kind size), those of experiments (shift, test-errors)",
        panel=DRAWING,
        shown_default="published",
    )


class ImageSize(Options):
    """Pixels of an image. Raises UsageError for a value outside its limits."""

    width: int | None = option(
        None, "Width of an image, which is drawn with twice as many pixels", panel=DRAWING, metavar="PIXELS",
        shown_default="that of the figure, else 1000", least=SMALLEST, most=LARGEST,
    )  # fmt: skip
    height: int | None = option(
        None, "Height of an image", panel=DRAWING, metavar="PIXELS", shown_default="that of the figure, else 600",
        least=SMALLEST, most=LARGEST,
    )  # fmt: skip
