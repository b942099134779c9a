"""tape export FOLDER --out DIR [--format tape|llama]"""

from pathlib import Path

import transformers

from tape.command import Parser, expected_errors
from tape.export import FORMATS, export


@expected_errors()
def main() -> None:
    parser = Parser(
        prog="tape export",
        description="Export a trained model to a folder that loads without this package.",
    )
    add = parser.add_argument
    add("folder", type=Path, help="a run, one of its checkpoints, or a saved model")
    add("--out", type=Path, required=True, help="new folder to write")
    about = "tape: any encoding, with its code; llama: a plain Llama, for equivalent encodings"
    add("--format", choices=FORMATS, default="tape", help=f"{about} (default: tape)")
    given = parser.parse_args()
    transformers.logging.disable_progress_bar()
    out = export(given.folder, given.out, given.format)
    print(f"{out}: complete, and its logits equal the model's")


if __name__ == "__main__":
    main()
