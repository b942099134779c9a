"""`tape sweep`: trains, evaluates and compares runs over values of settings and seeds.

Finished runs are not repeated: rerunning the command resumes the work, or prints.
"""

from __future__ import annotations

import re
import shlex
import sys
from functools import partial

from omegaconf import OmegaConf

from tape.settings.composition import call, composed, listed
from tape.settings.groups import options
from tape.sweep.compose import comparison, sweep_of
from tape.sweep.engine import perform


def sweep(settings: list[str]) -> None:
    """Performs the sweep of the command line, with these settings for its runs."""
    cfg = composed(sys.argv[1:], "sweep")
    if OmegaConf.is_missing(cfg, "name"):
        raise ValueError(f"sweep=null: choose one of {listed(options('sweep'))}")
    values = OmegaConf.to_container(cfg, resolve=True)
    runs = sweep_of(values, settings)
    if not cfg.dry_run:
        sys.exit(perform(values, runs))
    commands = [*(words for run in runs for words in run.commands), comparison(values, runs)]
    print("\n".join(f"tape {shlex.join(words)}" for words in commands if words))


def main() -> None:
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    settings = sys.argv[at + 1 :]
    # Any setting of a run may vary, and a cluster has its own.
    sys.argv[1:] = [re.sub(r"^(?=(vary|submitit)[.=])", "++", word) for word in sys.argv[1:at]]
    call(partial(sweep, settings), "sweep")


if __name__ == "__main__":
    main()
