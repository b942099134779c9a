"""Passkey retrieval of a model: python eval_retrieval.py --base_model output/passkey_tape_0."""

import sys

from tape.cli.__main__ import main

if __name__ == "__main__":
    main("evaluate", "--task", "passkey", *sys.argv[1:])
