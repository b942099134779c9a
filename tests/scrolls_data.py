"""Files of SCROLLS' tasks in the official format, small, made of sentences that can be answered."""

import json
import random
import shutil
from pathlib import Path

ANIMALS = ("heron", "otter", "badger", "lynx", "adder", "raven", "marten", "stoat")
PLACES = ("the mill", "an old quarry", "Lake Würm", "the North-West tower", "a reed bed")
FILLER = "The survey went on for years, and most of what it wrote down was of no use to anybody."


def _asked(task: str, split: str, number: int) -> tuple[str, list[str]]:
    """The input of one id, and its golds: for tasks with several, every second id has two."""
    generator = random.Random(f"{task} {split} {number}")
    seen = {animal: generator.choice(PLACES) for animal in generator.sample(ANIMALS, 4)}
    facts = [f"A {animal} was seen at {place}." for animal, place in seen.items()]
    filler = [FILLER] * generator.randrange(2, 12)
    document = " ".join(generator.sample([*facts, *filler], len(facts) + len(filler)))
    document = f"Report {number}\n\n{document}\n\nEnd of the report."
    animal, place = [*seen.items()][number % 4]
    if task in ("gov_report", "summ_screen_fd"):
        return document, [" ".join(facts)]
    if task == "quality":
        choices = "".join(f"\n ({mark}) {one}" for mark, one in zip("ABCD", seen, strict=True))
        return f"Which of them was at {place}?\n{choices}\n\n{document}", [animal]
    golds = [f"At {place}.", f"It was {place}"]
    several = number % 2 and task in ("qasper", "narrative_qa", "qmsum")
    return f"Where was the {animal} seen?\n\n{document}", golds[: 2 if several else 1]


def write_rows(file: Path, rows: list[tuple[str, str, str | None]]) -> Path:
    """Writes a row for each id, input and output."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fields = (
        {"id": x[0], "pid": f"{n}", "input": x[1], "output": x[2]} for n, x in enumerate(rows)
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in fields))
    return file


def write_task(folder: Path, task: str, train=4, validation=3, zipped=True) -> Path:
    """Writes `folder`/<task>.zip, or what it holds: so many ids per split, three in the test split,
    which has no golds. Returns the zip or the folder with the splits."""
    for split, ids in {"train": train, "validation": validation, "test": 3}.items():
        rows = []
        for n in range(ids):
            asked, golds = _asked(task, split, n)
            golds = [None] if split == "test" else golds
            rows += [(f"{task}-{split}-{n}", asked, gold) for gold in golds]
        write_rows(folder / task / f"{split}.jsonl", rows)
    if not zipped:
        return folder / task
    shutil.make_archive(str(folder / task), "zip", folder, task)
    shutil.rmtree(folder / task)
    return folder / f"{task}.zip"
