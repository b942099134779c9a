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
    parser.add_argument("folder", type=Path, help="a run, one of its checkpoints, or a saved model")
    parser.add_argument("--out", type=Path, required=True, help="new folder to write")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="tape",
        help="tape: any encoding, with its code; llama: a plain Llama, for equivalent encodings "
        "(default: tape)",
    )
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()
    out = export(arguments.folder, arguments.out, arguments.format)
    print(f"{out}: complete, and its logits equal the model's")


if __name__ == "__main__":
    main()
