"""How fast a stream of C4 feeds a training run: tokens per second by threads of the tokenizer.

python benchmarks/stream.py --documents 20000 --windows 20
"""

import gzip
import json
import os
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import parser, publish
from tape.command import expected_errors
from tape.data import C4Corpus, LocalCorpus, StreamedBlocks, train_tokenizer
from tape.evaluation.tables import markdown_table

WORDS = 320  # of a document: C4's mean
LENGTH, WINDOW = 1024, 256


def write_shard(folder: Path, documents: int) -> None:
    """Writes a training shard as C4's, of text from Python's library, and one for validation."""
    texts = cycle([*LocalCorpus().documents("train")])
    words = (word for text in texts for word in text.split(" ") if word)
    for name, count in (("train.00000-of-01024", documents), ("validation.00000-of-00008", 9)):
        with gzip.open(folder / f"c4-{name}.json.gz", "wt", compresslevel=6) as file:
            for _ in range(count):
                file.write(json.dumps({"text": " ".join(islice(words, WORDS))}) + "\n")


def feed(folder: Path, windows: int) -> float:
    """Returns the tokens per second of these windows, read as a run reads them."""
    corpus = C4Corpus(folder, window=WINDOW)
    tokenizer = train_tokenizer(LocalCorpus(), 4096, Path("cache"))
    with TemporaryDirectory() as cache:
        blocks = iter(StreamedBlocks(corpus, tokenizer, LENGTH, Path(cache)))
        next(blocks)  # starts the tokenizer's threads
        began = time.perf_counter()
        count = sum(1 for _ in islice(blocks, windows * WINDOW))
        return count * LENGTH / (time.perf_counter() - began)


@expected_errors()
def main() -> None:
    counts = {
        "documents": (20_000, 1, "of a shard"),
        "windows": (20, 1, f"of {WINDOW} blocks of {LENGTH} tokens to read"),
    }
    found = parser(__doc__, rounds=None, **counts)
    found.add_argument("--feed", type=Path, help="for the processes of this command")
    arguments = found.parse_args()
    if arguments.feed is not None:
        print(feed(arguments.feed, arguments.windows))
        return
    rows, cores = [["tokenizer threads", "tokens per second", "per thread"]], os.cpu_count()
    with TemporaryDirectory() as folder:
        write_shard(Path(folder), arguments.documents)
        for used in sorted({1, cores}):
            words = [sys.executable, __file__, "--feed", folder]
            words += ["--windows", str(arguments.windows)]
            own = {**os.environ, "RAYON_NUM_THREADS": str(used)}
            done = subprocess.run(words, env=own, capture_output=True, text=True, check=True)
            speed = float(done.stdout.split()[-1])
            rows.append([str(used), f"{speed:,.0f}", f"{speed / used:,.0f}"])
    publish("stream", arguments, markdown_table(rows))


if __name__ == "__main__":
    main()
