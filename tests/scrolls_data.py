"""Files of SCROLLS' tasks in the official format, small, made of sentences that can be answered."""

import json
import random
import shutil
from pathlib import Path

ANIMALS = ("heron", "otter", "badger", "lynx", "adder", "raven", "marten", "stoat")
PLACES = ("the mill", "an old quarry", "Lake Würm", "the North-West tower", "a reed bed")
FILLER = "The survey went on for years, and most of what it wrote down was of no use to anybody."
SUMMARIES = ("gov_report", "summ_screen_fd")
SEVERAL_GOLDS = ("qasper", "narrative_qa", "qmsum")


def _rows(task: str, split: str, number: int) -> list[dict]:
    """The rows of one id: of tasks with several golds, every second id has two."""
    generator = random.Random(f"{task} {split} {number}")
    animals = generator.sample(ANIMALS, 4)
    facts = [f"A {animal} was seen at {generator.choice(PLACES)}." for animal in animals]
    filler = [FILLER] * generator.randrange(2, 12)
    document = " ".join(generator.sample([*facts, *filler], len(facts) + len(filler)))
    document = f"Report {number}\n\n{document}\n\nEnd of the report."
    animal = animals[number % 4]
    place = next(fact for fact in facts if animal in fact).removesuffix(".").split(" at ")[1]
    golds = [f"At {place}.", f"It was {place}"]
    if task in SUMMARIES:
        text, golds = document, [" ".join(facts)]
    elif task == "quality":
        golds = [animal]
        choices = "".join(f"\n ({mark}) {one}" for mark, one in zip("ABCD", animals, strict=True))
        text = f"Which of them was at {place}?\n{choices}\n\n{document}"
    else:
        text = f"Where was the {animal} seen?\n\n{document}"
    golds = golds[: 1 + number % 2 if task in SEVERAL_GOLDS else 1]
    return [
        {
            "id": f"{task}-{split}-{number}",
            "pid": f"{task}-{split}-{number}_{count}",
            "input": text,
            "output": None if split == "test" else gold,
        }
        for count, gold in enumerate(golds)
    ]


def write_task(
    folder: Path, task: str, train: int = 4, validation: int = 3, zipped: bool = True
) -> Path:
    """Writes `folder`/<task>.zip, or what it holds: so many ids per split, three in the test split,
    which has no golds. Returns the zip or the folder with the splits."""
    place, archive = folder / task, folder / f"{task}.zip"
    place.mkdir(parents=True, exist_ok=True)
    for split, ids in {"train": train, "validation": validation, "test": 3}.items():
        rows = (row for number in range(ids) for row in _rows(task, split, number))
        (place / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not zipped:
        return place
    shutil.make_archive(str(folder / task), "zip", folder, task)
    shutil.rmtree(place)
    return archive
