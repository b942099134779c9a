"""What this experiment leaves behind, on the page of all results."""

from __future__ import annotations

from tape.evaluation.compare import check_weights

from retrieval.results import Retrieval, read_results
from tape.report.blocks import Block, Details, Pictures, Table
from tape.report.experiment import Experiment, Kind, Read
from tape.report.finding import Folder
from tape.report.training import encoding_of, percent, runs, task_of
from tape.report.written import comparisons


def show(found: Read[Retrieval]) -> list[Block]:
    """A row per evaluation and a column per length, with 95 % (Wilson) intervals, and the
    pictures."""
    lengths = sorted({length for _, results in found for length in results.lengths})
    rows = []
    for folder, results in found:
        evaluated, name = results.evaluated, encoding_of(folder.path.parent)
        asked = f"{evaluated['keys']} x {evaluated['values']}"
        shares = (percent(results.at(length)) for length in lengths)
        rows.append([str(folder.path), name, asked, str(evaluated["trained"]), *shares])
    head = ["evaluation", "encoding", "keys x values", "trained length"]
    drawn = [path for folder, _ in found for path in folder.pictures]
    return [
        Table([*head, *(f"{length}, %" for length in lengths)], rows, "Pass keys found by length"),
        Details("The pictures of these evaluations", [Pictures(drawn)]),
    ]


def read(folder: Folder) -> Retrieval:
    """Raises a ValueError if they are not of the weights beside them."""
    results = read_results(folder.path)
    check_weights(folder.path.parent, folder.path.name, results.evaluated)
    return results


EXPERIMENT = Experiment(
    name="retrieval",
    title="Retrieval",
    about="Whether a key is found in prompts of any length, wherever it stands. The paper has a "
    "figure of this (Fig. 3), and no table.",
    kinds=[
        comparisons({"encoding", "seed", "length", "accuracy"}, "bash script/compare_passkey.sh"),
        Kind(
            title="evaluations",
            command="python eval_retrieval.py --base_model output/llama_adape",
            holds=lambda folder: folder.has("passkey.csv"),
            read=read,
            show=show,
        ),
        runs(
            lambda run: task_of(run).startswith("retrieval.") and "peft.name" not in run,
            "python train.py experiment=passkey position=tape name=passkey_adape",
        ),
    ],
)
