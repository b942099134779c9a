"""Stops a run before a step with a non-finite loss, and after SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import TrainerCallback


class NonFiniteLoss(RuntimeError):
    """The loss became infinite or not a number."""


class Stopped(Exception):
    """The run was told to stop and has saved; rerunning the command resumes it."""


class StopAndNaNCallback(TrainerCallback):
    """Ends a run before a step with a non-finite loss; on SIGTERM (sent by SLURM before the time
    limit) saves a checkpoint after the current step and ends it.

    All processes of a run agree on both once per step, so that none waits for one that has exited.
    A GPU would have to finish its work for an answer at once: there it is read one step later.
    Weights that are not finite are never saved (`tape.training.trainer`).

    Attributes:
        stopped: whether the run stopped because of SIGTERM.
    """

    def __init__(self, late: bool = False):
        self.late = late
        self.losses: list[Tensor] = []  # of the current step's batches
        # Of steps whose answers are on the way: each returns whether to stop, or raises.
        self.pending: list[Callable[[], bool]] = []
        self.sigterm = self.stopped = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Records SIGTERM inside this context instead of exiting."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _note(self, number, frame) -> None:
        self.sigterm = True

    def on_pre_optimizer_step(self, args, state, control, lr_scheduler=None, **kwargs):
        losses = torch.stack(self.losses)
        self.losses.clear()
        broken = ~torch.isfinite(losses).all()
        answers = torch.stack((broken, torch.full_like(broken, self.sigterm))).int()
        if args.world_size > 1:
            torch.distributed.all_reduce(answers, torch.distributed.ReduceOp.MAX)
        arriving, arrived = answers.to("cpu", non_blocking=True), None
        if answers.is_cuda:
            arrived = torch.cuda.Event()
            arrived.record()
        step, rate = state.global_step + 1, lr_scheduler.get_last_lr()[0]

        def told() -> bool:
            if arrived is not None:
                arrived.synchronize()
            not_finite, stop = map(bool, arriving.tolist())
            if not_finite:
                when = "found one step later, before it was saved" if self.late else "not applied"
                raise NonFiniteLoss(
                    f"the loss is {losses.tolist()} at step {step}, with learning rate {rate:.3g}; "
                    f"the step was {when}. The checkpoints before it are good. Try a lower "
                    f"trainer.learning_rate, a longer trainer.warmup_steps, or bf16 in place of "
                    f"fp16."
                )
            return stop

        self.pending.append(told)
        self.stopped = len(self.pending) > self.late and self.pending.pop(0)()

    def on_train_end(self, args, state, control, **kwargs):
        for told in self.pending:
            told()

    def on_step_end(self, args, state, control, **kwargs):
        self.stopped &= state.global_step < state.max_steps  # otherwise the run is finished
        if self.stopped:
            # Skip evaluation during shutdown: it is made up for when the run resumes.
            control.should_evaluate = False
            control.should_save = control.should_training_stop = True


def ignore_sigterm(worker_id: int) -> None:
    """For data-loader workers: a cluster signals them too, but the run still needs them."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
