"""`tape sweep`: trains, evaluates and compares runs over values of settings and seeds.

Finished runs are not repeated: rerunning the command resumes the work, or prints.
"""

from __future__ import annotations

import re
import shlex
import sys

import hydra
from omegaconf import DictConfig, OmegaConf

from tape.settings.composition import call, is_expected, listed, refuse
from tape.settings.groups import CONFIG, options
from tape.sweep.compose import comparison, sweep_of
from tape.sweep.engine import perform

SETTINGS: list[str] = []  # of the runs: the words after --


@hydra.main(version_base=None, config_path=str(CONFIG), config_name="sweep")
def composed(cfg: DictConfig) -> None:
    try:
        if OmegaConf.is_missing(cfg, "name"):
            raise ValueError(f"sweep=null: choose one of {listed(options('sweep'))}")
        sweep = OmegaConf.to_container(cfg, resolve=True)
        runs = sweep_of(sweep, SETTINGS)
        if cfg.dry_run:
            commands = [*(words for run in runs for words in run.commands), comparison(sweep, runs)]
            print("\n".join(f"tape {shlex.join(words)}" for words in commands if words))
            return
        status = perform(sweep, runs)
    except Exception as error:
        if cfg.debug is True or not is_expected(error):
            raise
        refuse(error)
    sys.exit(status)


def main() -> None:
    SETTINGS.clear()
    if "--" in sys.argv:
        at = sys.argv.index("--")
        SETTINGS.extend(sys.argv[at + 1 :])
        del sys.argv[at:]
    # Any setting of a run may vary, and a cluster has its own.
    sys.argv = [re.sub(r"^(?=(vary|submitit)[.=])", "++", word) for word in sys.argv]
    call(composed, "sweep")


if __name__ == "__main__":
    main()
