"""Passkey retrieval of a trained model over lengths and depths: tape evaluate RUN --task passkey.

python eval_retrieval.py --base_model output/llama_adape --max_tokens 8192 --interval 1000
python eval_retrieval.py --base_model output/passkey_tape_0    # trained by experiment=passkey
"""

import sys

from tape.tasks.evaluate import main

if __name__ == "__main__":
    main(["--task", "passkey", *sys.argv[1:]])
