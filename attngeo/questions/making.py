"""A result while it is made: what is said about it, and its finished parts, which are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from attngeo.bounds.names import in_utf8
from attngeo.checkpoints.adapters import AdapterStore
from attngeo.options import Options
from attngeo.progress import Progress
from attngeo.provenance import machine, software
from attngeo.session import Session
from attngeo.studies.results import ResultRecord

if TYPE_CHECKING:
    from attngeo.attention.opened import Attention


Row = dict[str, Any]


@dataclass
class Making:
    """A result while it is made.

    Attributes:
        about: what is said about it, for reports and for the list of what is kept. What makes the rows adds to it.
        session: how it is made.
        record: keeps it; None if nothing is kept.
    """

    about: dict[str, Any]
    session: Session
    record: ResultRecord | None = None

    @classmethod
    def begin(
        cls, attentions: list[Attention], options: Options, session: Session, record: ResultRecord | None
    ) -> Making:
        """A result about models that are open. Nothing is kept of an adapter: its base may change unnoticed."""
        first, *others = attentions
        about: dict[str, Any] = {
            **software(), **machine(), "model": first.ref, "revision": first.store.revision,
            "device": str(first.device), "layers": len(first.sites), "options": dict(options),
            "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        }  # fmt: skip
        if others:
            about["other"] = others[0].ref
        if any(isinstance(attention.store, AdapterStore) for attention in attentions):
            record = None
        return cls(about, session, record)

    def take_finished(self, count: int, what: str) -> dict[int, list[Row]]:
        """The rows of those of so many parts that were finished before on the same device, by their number.

        what: the parts are. If the session wants fresh results, they are removed.
        """
        if self.record is None:
            return {}
        if self.session.results.fresh:
            self.record.forget_parts()
            return {}
        parts = self.record.load_parts(count)
        rows = {number: part.rows for number, part in parts.items() if part.about.get("device") == self.about["device"]}
        if rows:
            self.session.progress(Progress("kept", f"{len(rows)} of {count} {what} from the result store"))
        return rows

    def keep_part(self, number: int, rows: list[Row]) -> None:
        """Keep a finished part."""
        if self.record is not None:
            self.record.keep_part(number, encode_texts(rows), self.about)


def encode_texts(rows: Iterable[Row]) -> list[Row]:
    """Rows whose texts can be written to every file."""
    return [{name: in_utf8(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows]
