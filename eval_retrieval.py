"""Passkey retrieval of a model: python eval_retrieval.py --base_model output/passkey_tape_0."""

import sys

from tape.tasks.evaluate import main

if __name__ == "__main__":
    main(["--task", "passkey", *sys.argv[1:]])
