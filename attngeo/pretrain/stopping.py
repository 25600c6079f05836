"""Ctrl-C and SIGTERM during training: stop after the current step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attngeo.tables.atomic import SIGNALS


class StopOnSignal(TrainerCallback):
    """Saves and stops at the end of the step in which a signal arrives; calls `tell` when it arrives.

    It does the same after a step at which `asked` is true: no signal reaches a run on another machine.
    A second signal, and one before or after training, goes to the handler that was there before, or raises
    KeyboardInterrupt if there was none.
    """

    def __init__(self, tell: Callable[[], None] = lambda: None, asked: Callable[[], bool] = lambda: False) -> None:
        self.requested, self._training, self._tell, self._asked = False, False, tell, asked
        self._before: dict[int, Any] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals inside the block. Only the main thread can; in another, nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            for number in SIGNALS:
                signal.signal(number, self._on_signal)
            yield
        finally:
            for own, handler in self._before.items():
                signal.signal(own, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self._training:
            if callable(self._before[number]):
                self._before[number](number, frame)
            raise KeyboardInterrupt
        self.requested = True
        self._tell()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """From now on there is something to save."""
        self._training = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """From now on a signal stops at once."""
        self._training = False

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,  # noqa: ARG002 - the Trainer's signature
    ) -> TrainerControl:
        """Ask the Trainer to save and stop. All processes stop at the same step, or the others would wait for ever."""
        self.requested = self.requested or self._asked()
        if args.world_size > 1:
            flag = torch.tensor(int(self.requested), device=args.device)
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
            self.requested = bool(flag)
        if self.requested and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
        return control
