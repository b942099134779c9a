"""What cost and speed are measured of: shapes of decoders, and methods that are no encodings."""

Shape = dict[str, int | None]
# The paper's model trained from scratch, and the sequence length of its Table 3.
SHAPE: Shape = {
    "layers": 12,
    "hidden": 768,
    "heads": 12,
    "kv_heads": None,
    "mlp": 3072,
    "vocabulary": 32000,
    "length": 1024,
}
BASE = {name: value for name, value in SHAPE.items() if name != "length"}  # the paper's model
SMALL = BASE | {"layers": 4, "hidden": 256, "heads": 4, "mlp": 1024, "vocabulary": 4096}
SHAPES = {
    "tiny": SMALL | {"layers": 2, "hidden": 64, "mlp": 128, "vocabulary": 256},
    "small": SMALL,
    "base": BASE,
    "smollm2": {
        "layers": 30,
        "hidden": 576,
        "heads": 9,
        "kv_heads": 3,
        "mlp": 1536,
        "vocabulary": 49152,
    },
    "llama2_7b": BASE | {"layers": 32, "hidden": 4096, "heads": 32, "mlp": 11008},
}

LLAMA = "llama"  # transformers' with the weights and outputs of rope (tested)
WITHOUT = " without its update"  # a layer of TAPE whose state stays as it is
ADAPTERS = ("lora", "longlora", "adape", "adape_lora", "ft")  # of config/peft
