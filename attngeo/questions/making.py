"""A result while it is made: what is said about it, and its finished parts, which are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from attngeo.tables.write import NOTES

if TYPE_CHECKING:
    from attngeo.attention.opened import Attention


Row = dict[str, Any]


class NoteText(str):
    """The text of several notes for a row of a table; it knows the notes it contains."""

    notes: tuple[str, ...]

    def __new__(cls, notes: Iterable[str]) -> NoteText:
        """The text of these notes, in this order."""
        notes = tuple(map(str, notes))
        text = super().__new__(cls, "; ".join(notes))
        text.notes = notes
        return text

    def __getnewargs__(self) -> tuple[tuple[str, ...]]:  # type: ignore[override]  # of `str`, one text
        """What a copy is made of."""
        return (self.notes,)


@dataclass
class Making:
    """A result in the making.

    Attributes:
        about: its description, for reports and for the list of kept results. The function that makes the rows adds to
            it.
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
        """A result about opened models. Results about an adapter are not kept: its base may change unnoticed."""
        first, *others = attentions
        about: dict[str, Any] = {
            **software(), **machine(), "model": first.ref, "revision": first.store.revision,
            "device": str(first.device), "layers": len(first.sites), "options": dict(options),
            "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        }  # fmt: skip
        if others:
            about |= {"other": others[0].ref, "other_revision": others[0].store.revision}
        if any(isinstance(attention.store, AdapterStore) for attention in attentions):
            record = None
        return cls(about, session, record)

    def take_finished(self, count: int, what: str) -> dict[int, list[Row]]:
        """The rows of the parts already finished on the same device, by their number.

        count: number of all parts. what: the parts, in the plural. If the session wants fresh results, finished parts
        are removed.
        """
        if self.record is None:
            return {}
        if self.session.results.fresh:
            self.record.forget_parts()
            return {}
        parts = self.record.load_parts(count)
        parts = {number: part for number, part in parts.items() if part.about.get("device") == self.about["device"]}
        rows = {number: part.rows for number, part in parts.items()}
        for part in parts.values():
            self._remember_notes(part.about.get(NOTES, {}))
        if rows:
            self.session.progress(Progress("kept", f"{len(rows)} of {count} {what} from kept results"))
        return rows

    def keep_part(self, number: int, rows: list[Row]) -> None:
        """Keep a finished part."""
        if self.record is not None:
            self.record.keep_part(number, self.finish(rows), self.about)

    def finish(self, rows: Iterable[Row]) -> list[Row]:
        """Rows whose texts can be written to every file. The notes that these are made of are said about the result."""
        finished = []
        for row in rows:
            note = row.get("note")
            if isinstance(note, NoteText):
                self._remember_notes({in_utf8(note): [in_utf8(text) for text in note.notes]})
            finished.append({name: in_utf8(value) if isinstance(value, str) else value for name, value in row.items()})
        return finished

    def _remember_notes(self, notes: Mapping[str, Sequence[str]]) -> None:
        """Say about the result which notes some texts are made of."""
        self.about.setdefault(NOTES, {}).update(notes)
