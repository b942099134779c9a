"""Callbacks of the Trainer: progress on the console, early ends, and resuming."""

import ctypes
import math
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from tqdm import tqdm
from transformers import Trainer, TrainerCallback

from tape.core.metrics import validated
from tape.core.progress import track

MORE = 0.2  # further steps, of those until the criterion was reached


class NonFiniteLoss(RuntimeError):
    """The loss became infinite or not a number."""


class Stopped(Exception):
    """The run was told to stop and has saved; rerunning the command resumes it."""


def peak_memory(device: torch.device) -> int:
    """Returns the peak memory of a GPU, otherwise the peak resident size of this process, in bytes
    since `reset_peak_memory`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak_memory(device: torch.device) -> None:
    """Begins a new peak: what came before, such as training a tokenizer, is not of the run, but for
    freed memory that the allocator cannot return. Where a CPU's system is not Linux, or does not
    permit it, the peak is that of the whole process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(AttributeError):  # of other C libraries than glibc
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class Console(TrainerCallback):
    """Prints a line per log event with tokens/s and time left; logs speed and peak memory."""

    def __init__(self):
        # Since the last log event:
        self.tokens = 0  # of all processes, including padding
        # With waiting for data, without evaluation and saving:
        self.seconds, self.steps = 0.0, 0
        self.began = None
        self.bar: tqdm | None = None  # of the evaluation that is under way

    def on_train_begin(self, args, state, control, **kwargs):
        reset_peak_memory(args.device)

    def on_step_begin(self, args, state, control, **kwargs):
        # The first one follows the sequences that a resumed run skips.
        self.began = self.began or time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self.seconds, self.steps, self.began = self.seconds + now - self.began, self.steps + 1, now
        if state.global_step == state.max_steps:
            control.should_log = True  # also the steps after the last multiple of logging_steps

    def on_log(self, args, state, control, logs, **kwargs):
        if "loss" in logs and self.steps:
            speed = self.tokens / self.seconds
            logs["tokens_per_second"] = round(speed, 1)
            logs["peak_memory_gib"] = round(peak_memory(args.device) / 2**30, 3)
            left = (state.max_steps - state.global_step) * self.seconds / self.steps
            line = f"loss {logs['loss']:.4f}  lr {logs['learning_rate']:.2e}  {speed:,.0f} tokens/s"
            line += f"  {tqdm.format_interval(left)} left"
            self.tokens, self.seconds, self.steps = 0, 0.0, 0
        elif measured := {key: logs[key] for key in logs if key.startswith("eval_")}:
            measured = {"eval_loss": measured["eval_loss"]} if "eval_loss" in logs else measured
            named = (f"{key[5:].replace('_', ' ')} {x:.4f}" for key, x in measured.items())
            line = f"validation {', '.join(named)}"
            self.began = time.perf_counter()
        else:
            return
        if state.is_world_process_zero:
            print(f"step {state.global_step}/{state.max_steps}  {line}", flush=True)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        if state.is_world_process_zero:
            self.bar = self.bar or track(desc="validation", total=len(eval_dataloader), leave=False)
            self.bar.update()

    def on_evaluate(self, args, state, control, **kwargs):
        if self.bar is not None:
            self.bar.close()
        self.bar = None

    def on_save(self, args, state, control, **kwargs):
        self.began = time.perf_counter()


class _Answer(NamedTuple):
    """What the processes of a run agree on in a step, on its way from the device."""

    step: int
    rate: float
    losses: Tensor
    arriving: Tensor  # whether a loss is not finite, and whether a process is to stop
    arrived: torch.cuda.Event | None

    def stops(self, late: bool) -> bool:
        """Returns whether the run stops; raises NonFiniteLoss. `late`: it is read a step later."""
        if self.arrived is not None:
            self.arrived.synchronize()
        not_finite, stop = map(bool, self.arriving.tolist())
        if not_finite:
            when = "found one step later, before it was saved" if late else "not applied"
            raise NonFiniteLoss(
                f"the loss is {self.losses.tolist()} at step {self.step}, with learning rate "
                f"{self.rate:.3g}; the step was {when}. The checkpoints before it are good. Try a "
                "lower trainer.learning_rate, or more trainer.warmup_steps."
            )
        return stop


class StopAndNaNCallback(TrainerCallback):
    """Ends a run before a step with a non-finite loss, and on SIGTERM (sent by SLURM before the
    time limit) after the current step, which is saved; then it is `stopped`.

    All processes of a run agree on both once per step, so that none waits for one that has exited.
    A GPU would have to finish its work for an answer at once: there it is read one step later.
    """

    def __init__(self, late: bool = False):
        self.late = late
        self.losses: list[Tensor] = []  # of the current step's batches
        self.pending: list[_Answer] = []
        self.sigterm = self.stopped = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Records SIGTERM inside this context instead of exiting."""

        def note(number, frame) -> None:
            self.sigterm = True

        before = signal.signal(signal.SIGTERM, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

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

        self.pending.append(_Answer(step, rate, losses, arriving, arrived))
        self.stopped = len(self.pending) > self.late and self.pending.pop(0).stops(self.late)

    def on_train_end(self, args, state, control, **kwargs):
        for answer in self.pending:
            answer.stops(self.late)

    def on_step_end(self, args, state, control, **kwargs):
        self.stopped &= state.global_step < state.max_steps  # otherwise the run is finished
        if self.stopped:
            # Skip evaluation during shutdown: it is made up for when the run resumes.
            control.should_evaluate = False
            control.should_save = control.should_training_stop = True


def ignore_sigterm(worker_id: int) -> None:
    """For data-loader workers: a cluster signals them too, but the run still needs them."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def reached(rows: Iterable[Mapping[str, Any]], criterion: float | None) -> int | None:
    """Returns the step of the second of the first two successive validations whose `accuracy in` is
    at least `criterion`, from logged rows; None if there is none.

    >>> rows = [{"step": n, "eval_accuracy_in": x} for n, x in enumerate((1, 0.98, 0.99, 1))]
    >>> reached(rows, 0.99)
    3
    """
    if criterion is None:
        return None
    found = {row["step"]: row["eval_accuracy_in"] for row in rows if "eval_accuracy_in" in row}
    pairs = pairwise(sorted(found.items()))
    return next((step for (_, one), (step, two) in pairs if min(one, two) >= criterion), None)


def last_step(step: int | None, most: int) -> int:
    """Returns the last step of a run that reached the criterion at `step`: 20 % more, up to `most`;
    `most` for one that did not reach it (None), and has failed."""
    return most if step is None else min(most, math.ceil(step * (1 + MORE)))


def _set_rates(schedule: LRScheduler, rates: Iterable[float]) -> None:
    """Sets the learning rates of the next step."""
    schedule._last_lr = [*rates]
    for group, rate in zip(schedule.optimizer.param_groups, schedule._last_lr, strict=True):
        group["lr"] = rate


class ToCriterion(TrainerCallback):
    """Ends training at `last_step`; until then a factor of the scheduled learning rate decreases
    linearly to 0. Both follow from the logged rows, which checkpoints hold."""

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
            _set_rates(schedule, (group["lr"] * left for group in schedule.optimizer.param_groups))
        return end


class Continued(TrainerCallback):
    """Corrects how transformers resumes a run: intervals and learning rate follow the current
    settings; losses since the last log entry before the checkpoint count in the next one; a
    validation that was skipped because the run was told to stop is made up for. The last step is
    always saved, so that a finished run is known to be finished."""

    KEY = "losses_to_log"

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    def record(self) -> None:
        total = self.trainer.accelerator.gather(self.trainer._tr_loss).mean().item()
        since = self.trainer._globalstep_last_logged
        self.trainer.state.stateful_callbacks[self.KEY] = {"total": total, "since": since}

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        state.compute_steps(args, state.max_steps)
        if left := state.stateful_callbacks.get(self.KEY):
            self.trainer._tr_loss += left["total"]
            self.trainer._globalstep_last_logged = left["since"]
        if isinstance(lr_scheduler, LambdaLR):
            schedules = zip(lr_scheduler.base_lrs, lr_scheduler.lr_lambdas, strict=True)
            step = lr_scheduler.last_epoch
            _set_rates(lr_scheduler, (base * schedule(step) for base, schedule in schedules))
        if step := state.global_step:
            due = args.eval_strategy == "steps" and step % state.eval_steps == 0
            args.eval_on_start = due and step >= args.eval_delay and not validated(state)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save |= state.global_step >= state.max_steps
