"""Ctrl-C and SIGTERM during training: stop after the current step, with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attngeo.pretrain.signals import SignalListener


class StopOnSignal(SignalListener, TrainerCallback):
    """Saves and stops at the end of the step in which a signal arrives; calls `tell` when it arrives.

    It does the same after a step at which `asked` is true: no signal reaches a run on another machine.
    """

    def __init__(self, tell: Callable[[], None] = lambda: None, asked: Callable[[], bool] = lambda: False) -> None:
        super().__init__(tell)
        self._asked = asked

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """From now on there is something to save."""
        self.saves = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """From now on a signal stops at once."""
        self.saves = False

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
