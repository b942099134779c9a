"""The logits of an exported folder, from a process that cannot import the package.

Run as a script, by path: `check.py FOLDER TOKENS LOGITS DTYPE THREADS`.
"""

import sys


def main(folder: str, tokens: str, logits: str, dtype: str, threads: str) -> None:
    sys.modules["tape"] = None  # importing it fails from here on
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(int(threads))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, trust_remote_code=True
    )
    with torch.no_grad():
        save_file({"logits": model.eval()(**load_file(tokens)).logits}, logits)


if __name__ == "__main__":
    main(*sys.argv[1:])
