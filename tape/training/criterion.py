"""Training to a criterion: it ends soon after the model has learned its task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerCallback

MORE = 0.2  # of the steps before the criterion was reached


def reached(rows: Iterable[Mapping[str, Any]], criterion: float | None) -> int | None:
    """Returns the step of the second of the first two successive validations whose `accuracy in` is
    at least `criterion`, from logged rows; None if there is none.

    >>> rows = [{"step": n, "eval_accuracy_in": x} for n, x in enumerate((1, 0.98, 0.99, 1))]
    >>> reached(rows, 0.99)
    3
    """
    found = {row["step"]: row["eval_accuracy_in"] for row in rows if "eval_accuracy_in" in row}
    before = False
    for step in sorted(found) if criterion is not None else ():
        if before and found[step] >= criterion:
            return step
        before = found[step] >= criterion
    return None


def last_step(step: int | None, most: int) -> int:
    """Returns the last step of a run that reached the criterion at `step`: 20 % more, and `most` at
    most. A run that did not reach it (None) uses all steps, and has failed."""
    return most if step is None else min(most, math.ceil(step * (1 + MORE)))


class ToCriterion(TrainerCallback):
    """Ends training at `last_step`; until then a factor of the scheduled learning rate decreases
    linearly to 0.

    It depends on nothing but the logged rows, which checkpoints hold, so that a resumed run equals
    an uninterrupted one.
    """

    def __init__(self, criterion: float):
        self.criterion = criterion

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        self._end(state, lr_scheduler)

    def on_step_end(self, args, state, control, lr_scheduler=None, **kwargs):
        if state.global_step >= self._end(state, lr_scheduler):
            control.should_training_stop = control.should_save = control.should_evaluate = True

    def _end(self, state: Any, schedule: LRScheduler) -> int:
        """Returns the last step, and sets the learning rate of the next one."""
        begin = reached(state.log_history, self.criterion)
        end = last_step(begin, state.max_steps)
        if begin is not None and begin < end:
            left = max(0, end - state.global_step) / (end - begin)
            for group in schedule.optimizer.param_groups:
                group["lr"] *= left
            schedule._last_lr = [group["lr"] for group in schedule.optimizer.param_groups]
        return end
