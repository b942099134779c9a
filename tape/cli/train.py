"""`tape train`: composes and checks the settings of a run, then trains (tape/training/run.py)."""

import atexit
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import hydra
from omegaconf import DictConfig

from tape.cli.settings.composition import (
    NAMED,
    call,
    instantiate,
    is_expected,
    refuse,
    settings_of,
)
from tape.core.config import CONFIG
from tape.core.files import write_text
from tape.core.validation import check_no_gguf
from tape.training.settings import RunSettings

if TYPE_CHECKING:
    from tape.training.plan import RunPlan

STOPPED = os.EX_TEMPFAIL  # 75: the run was told to stop, and the same command continues it
log = logging.getLogger(__name__)


class Terminated(BaseException):
    """SIGTERM arrived before the first step or after the last one."""


def resolve(cfg: DictConfig) -> "RunPlan":
    """Returns the plan of a run, or raises a ValueError for settings that are wrong or in conflict.
    A base model with a short name is imported first."""
    settings = settings_of(cfg)
    base = settings["base_model"]
    if base and Path(base).name in NAMED and not Path(base).exists():
        from tape.imports.models import import_once

        import_once(Path(base))
    if base:
        check_no_gguf(base)
    if base and base.split("/")[0] in ("output", ".", "..", "") and not Path(base).is_dir():
        raise ValueError(f"base_model={base}: there is no such folder; give that of a model")
    from tape.training.plan import plan_of  # takes seconds: wrong types are refused before

    return plan_of(RunSettings(**settings), instantiate)


def run(cfg: DictConfig) -> str:
    """Carries out a run; returns the text of its report."""
    plan = resolve(cfg)
    from tape.training.run import run

    return run(plan)


@hydra.main(version_base=None, config_path=str(CONFIG), config_name="train")
def composed(cfg: DictConfig) -> None:
    try:
        run(cfg)
    except KeyboardInterrupt:
        log.info("interrupted: the same command continues from the last checkpoint, if any")
        leave(130)
    except Exception as error:
        if is_expected(error) and cfg.debug is not True:
            refuse(error)
        from tape.training.callbacks import NonFiniteLoss, Stopped  # takes seconds

        if isinstance(error, Stopped):
            log.info("%s: the same command continues", error)
            leave(STOPPED)
        if isinstance(error, NonFiniteLoss) and cfg.debug is not True:
            refuse(error)
        raise


def leave(status: int) -> NoReturn:
    """Exits. The file TAPE_STATUS is given the status, because torchrun replaces it.

    One of several processes ends without Python's last clean-up: threads of gloo that are still
    there when it begins abort the process now and then, and the run would count as failed.
    """
    if status and (told := os.environ.get("TAPE_STATUS")):
        write_text(Path(told), str(status))
    distributed = sys.modules.get("torch.distributed")  # not imported for help
    if distributed is not None and distributed.is_initialized():
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def main() -> None:
    """Exits with STOPPED on SIGTERM, except during the steps, where `StopAndNaNCallback` answers
    it: they are saved first."""
    process = os.getpid()

    def end(number, frame) -> None:
        if os.getpid() == process:
            raise Terminated
        signal.signal(number, signal.SIG_DFL)  # in a forked worker, which has nothing to tell
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        call(composed, "train")
    except Terminated:
        print("stopped outside of its steps: the same command continues", file=sys.stderr)
        leave(STOPPED)
    finally:
        signal.signal(signal.SIGTERM, before)
    leave(0)
