"""Speed of one stream of bytes beside the other streams of a process.

Single servers behind one address may be capped, and a new connection reaches another one.
"""

from __future__ import annotations

# Bytes of a stream that are progress: failures before them do not count.
PROGRESS = 2**20
# A stream is slow if its speed in a window of WINDOW seconds is less than the share TOO_SLOW of that of the fastest
# other one in the last RECENT seconds, and has not grown by the factor FASTER since the window before, as that of a new
# connection does.
WINDOW = 0.25
TOO_SLOW = 0.2
RECENT = 10
FASTER = 1.5

# Thread → the last speed of its streams in bytes per second, and when that was.
speeds: dict[int, tuple[float, float]] = {}


class Speed:
    """The speed of one stream.

    Args:
        others: thread → speed and time, as in `speeds`.
        lane: the thread of this stream.
        now: start time in seconds.
    """

    def __init__(self, others: dict[int, tuple[float, float]], lane: int, now: float) -> None:
        self._others = others
        self._lane = lane
        self._begun = now
        self._total = 0
        # The window that has not ended: its first second and its bytes. The speed in the one before it.
        self._window_begun = now
        self._window_nbytes = 0
        self._speed_before: float | None = None

    def is_slow(self, nbytes: int, left: int, now: float) -> bool:
        """Whether to drop the stream, after more bytes have arrived.

        Args:
            nbytes: bytes since the last call.
            left: bytes still to come.
            now: the time in seconds.
        """
        self._total += nbytes
        self._window_nbytes += nbytes
        if not left:
            if self._total >= PROGRESS and now > self._begun:
                self._others[self._lane] = self._total / (now - self._begun), now
            return False
        seconds = now - self._window_begun
        if seconds < WINDOW:
            return False
        speed = self._window_nbytes / seconds
        before = self._speed_before
        self._speed_before = speed
        self._window_begun = now
        self._window_nbytes = 0
        self._others[self._lane] = speed, now
        recent = [
            other
            for lane, (other, measured) in list(self._others.items())
            if lane != self._lane and now - measured <= RECENT
        ]
        is_slower = speed < TOO_SLOW * max(recent, default=0)
        is_worth_a_new_connection = left > speed * WINDOW
        has_not_grown = before is not None and speed < FASTER * before
        return is_slower and is_worth_a_new_connection and has_not_grown
