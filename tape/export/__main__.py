"""tape export FOLDER --out DIR [--format tape|llama]"""

import transformers

from tape import parsers
from tape.command import expected_errors
from tape.export import export


@expected_errors()
def main() -> None:
    given = parsers.export()
    transformers.logging.disable_progress_bar()
    out = export(given.folder, given.out, given.format)
    print(f"{out}: complete, and its logits equal the model's")


if __name__ == "__main__":
    main()
