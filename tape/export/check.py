"""Computes the logits of an exported folder, and the token ids of a text, in a process that cannot
import the package.

Run as a script, by path: `check.py FOLDER TOKENS ANSWER DTYPE THREADS`.
"""

import os
import sys

TEXT = "Naïve sheep,  3 + 4 = 7.\n\tdef f(x): return x  # ☃"


def main(folder: str, tokens: str, answer: str, dtype: str, threads: str) -> None:
    sys.modules["tape"] = None  # makes importing it fail
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(int(threads))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, trust_remote_code=True
    )
    with torch.no_grad():
        given = {"logits": model.eval()(**load_file(tokens)).logits}
    if os.path.exists(os.path.join(folder, "tokenizer_config.json")):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        given["ids"] = tokenizer(TEXT, return_tensors="pt").input_ids
    save_file(given, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
