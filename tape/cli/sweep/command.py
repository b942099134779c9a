"""`tape sweep`: trains, evaluates and compares runs over values of settings and seeds."""

import re
import shlex
import sys

from omegaconf import OmegaConf

from tape.cli.settings.composition import call, composed
from tape.cli.settings.groups import options
from tape.cli.sweep.compose import changes_note, comparison, rates_note, sweep_of
from tape.cli.sweep.engine import perform


def sweep(settings: list[str]) -> None:
    """Performs the sweep of the command line, with these settings for its runs."""
    cfg = composed(sys.argv[1:], "sweep")
    if OmegaConf.is_missing(cfg, "name"):
        raise ValueError(f"sweep=null: choose one of {', '.join(sorted(options('sweep')))}")
    values = OmegaConf.to_container(cfg, resolve=True)
    if values["cluster"] is not None:
        from tape.cli.sweep import cluster  # of an extra

        cluster.check(values)
    elif any(word.startswith("submitit.") for word in sys.argv):
        raise ValueError("submitit.* are parameters of jobs: give cluster=slurm, or omit them")
    runs = sweep_of(values, settings)
    if note := rates_note(values, runs):
        lines = note.splitlines()
        print(*("# " * cfg.dry_run + line for line in lines), sep="\n", file=sys.stderr)
    if changed := changes_note(runs):
        if not cfg.dry_run:
            raise ValueError(changed)
        print(f"# {changed}", file=sys.stderr)
    if not cfg.dry_run:
        sys.exit((cluster.submit if values["cluster"] else perform)(values, runs))
    commands = [*(command for run in runs for command in run.commands), comparison(values, runs)]
    lines = [f"tape {shlex.join(command)}" for command in commands if command]
    if values["cluster"] == "slurm":
        from tape.cli.sweep.dry_run import scripts_of

        lines += ["\n# The scripts for sbatch, if no job is in the queue:\n"]
        lines += scripts_of(values, runs)
    print("\n".join(lines))


def main() -> None:
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    settings = sys.argv[at + 1 :]
    if {"-h", "--help"} & {*settings}:  # as of a script that puts its own arguments there
        at, settings = at + 1, []
        sys.argv[at:] = ["--help"]
    # Any setting of a run may vary.
    sys.argv[1:] = [re.sub(r"^(?=vary[.=])", "++", word) for word in sys.argv[1:at]]
    call(lambda: sweep(settings), "sweep")
