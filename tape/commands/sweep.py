"""`tape sweep`: trains, evaluates and compares runs over values of settings and seeds.

Finished runs are not repeated: rerunning the command resumes the work, or prints.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace

import hydra
from omegaconf import DictConfig, OmegaConf

from tape.settings.composition import call, is_expected, listed, refuse
from tape.settings.groups import CONFIG, options
from tape.sweep.checks import SUBMITTED
from tape.sweep.compose import sweep_of
from tape.sweep.engine import perform
from tape.sweep.estimate import estimate

SETTINGS: list[str] = []  # of the runs: the words after --


@hydra.main(version_base=None, config_path=str(CONFIG), config_name="sweep")
def composed(cfg: DictConfig) -> None:
    try:
        if OmegaConf.is_missing(cfg, "name"):
            raise ValueError(f"sweep=null: choose one of {listed(options('sweep'))}")
        sweep = sweep_of(OmegaConf.to_container(cfg, resolve=True), SETTINGS)
        unfinished = [run for run in sweep.runs if run.finished(sweep.config) is None]
        if cost := estimate(unfinished):
            print(cost, file=sys.stderr)
        if cfg.dry_run:
            print("\n".join(shlex.join(command) for command in sweep.commands()))
            return
        if cfg.cluster in SUBMITTED:
            from tape.sweep.cluster import executor_of

            parameters = OmegaConf.to_container(cfg.submitit, resolve=True)
            executor = executor_of(cfg.cluster, sweep.out / ".jobs", parameters)
            sweep = replace(sweep, cluster=executor)
        status = perform(sweep)
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
    # Any setting of train.py may vary, and a cluster has its own.
    sys.argv = [re.sub(r"^(?=(vary|submitit)[.=])", "++", word) for word in sys.argv]
    call(composed, "sweep")


if __name__ == "__main__":
    main()
