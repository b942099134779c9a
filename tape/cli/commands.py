"""The table of all commands: their modules and arguments. Plug-ins add theirs by entry points of
the group `tape.commands`."""

from importlib.metadata import entry_points

from tape.cli import analyse, compare, evaluate, models
from tape.core.command import Command

GROUPS = ("train", "evaluate", "compare", "analyse", "models", "develop")


def train(words: list[str]) -> None:
    """Pre-train, fine-tune or extend a model; Hydra settings."""


def sweep(words: list[str]) -> None:
    """Train, evaluate and compare runs over settings, seeds."""


COMMANDS = {
    "train": Command("train", train, "tape.cli.train"),
    "sweep": Command("train", sweep, "tape.cli.sweep.command"),
    "perplexity": Command(
        "evaluate", evaluate.perplexity, "tape.evaluation.perplexity", resumes=True
    ),
    "evaluate": Command("evaluate", evaluate.evaluate, "tape.tasks.evaluate", resumes=True),
    "lm-eval": Command("evaluate", evaluate.lm_eval, "tape.evaluation.lm_eval", resumes=True),
    "compare": Command("compare", compare.compare, "tape.results.compare"),
    "suite": Command("compare", compare.suite, "tape.tasks.synthetic.suite"),
    "leaderboard": Command("compare", compare.leaderboard, "tape.cli.leaderboard"),
    "ladder": Command("compare", compare.ladder, "tape.analysis.ladder"),
    "rates": Command("compare", compare.rates, "tape.results.rates"),
    "report": Command("compare", compare.report, "tape.results.report"),
    "stability": Command("analyse", analyse.stability, "tape.analysis.stability"),
    "visualize": Command("analyse", analyse.visualize, "tape.analysis.visualize"),
    "state": Command("analyse", analyse.state, "tape.analysis.state"),
    "gallery": Command("analyse", analyse.gallery, "tape.analysis.gallery"),
    "cost": Command("analyse", analyse.cost, "tape.analysis.cost"),
    "speed": Command("analyse", analyse.speed, "tape.analysis.speed", resumes=True),
    "import": Command("models", models.import_, "tape.imports.models"),
    "verify": Command("models", models.verify, "tape.analysis.verify"),
    "new-encoding": Command("develop", models.new_encoding, "tape.cli.new_encoding"),
    "export": Command("develop", models.export, "tape.export"),
}


def all_commands() -> dict[str, Command]:
    """Returns the commands by name, in groups."""
    added = {entry.name: entry.load() for entry in entry_points(group="tape.commands")}
    commands = sorted((COMMANDS | added).items(), key=lambda item: GROUPS.index(item[1].group))
    return dict(commands)
