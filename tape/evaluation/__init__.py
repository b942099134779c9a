"""Measures of a trained model."""

DTYPES = ("float32", "bfloat16")  # to compute with
CONVENTIONS = ("sliding", "spread", "paper", "longlora", "disjoint")  # of windows (windows.py)
BATCH_TOKENS = 2048  # of windows, to run at once
LENGTHS = [1024, 2048, 4096, 8192]  # of windows
TEXTS = ("run", "local", "text", "english", "c4", "bigrams")  # texts.py
SPLITS = ("validation", "test")
TOKEN_DTYPES = ("uint16", "uint32")  # of files of token ids
# To longer texts (extension.py): methods of `extended`, and of RoPE's frequencies.
EXTENSIONS = ("self_extend", "rerope", "leaky_rerope", "dca", "string", "ntk", "yarn", "linear")
