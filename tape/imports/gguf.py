"""Reads a .gguf file: configuration, weights in float32, and tokenizer of a checkpoint of
transformers. The package `gguf` reads the file and undoes the quantization; transformers makes the
tokenizer of a byte-level vocabulary.

The weights are written one at a time, so that memory holds one of them and the file's pages.
"""

import json
import os
import re
import struct
from collections import Counter
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer, pre_tokenizers
from tqdm import tqdm
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tape.core.files import read_object, reading
from tape.model.sentencepiece import BYTE, CONTROL, NORMAL, USER_DEFINED, tokenizer_of
from tape.positions.schedules import ORIGINAL, inverse_frequencies

MAGIC = b"GGUF"
# Architectures of .gguf files, and the `model_type` of their checkpoints. Mistral's are "llama".
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
# Fields of config.json, by the metadata behind the name of the architecture.
FIELDS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
NEEDED = frozenset(FIELDS)
FIELDS |= {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "vocab_size": "vocab_size",
}
OF_HEADS = ("attention.value_length", "rope.dimension_count")  # must equal head_dim
SCALING = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}
SCHEDULES = ("default", "linear", "yarn")
# Any other metadata of the architecture might change the model, and is refused.
KNOWN = {*FIELDS, *OF_HEADS, *SCALING, "rope.freq_base", "attention.sliding_window"}
KNOWN |= {"rope.scaling.finetuned", "expert_count", "expert_used_count"}
# A weight with divisors of the frequencies, of Llama 3.1 and later: llama.cpp does not say of which
# schedule they are. All these models have the same but for the factor, the greatest divisor.
FREQUENCIES = "rope_freqs.weight"
OF_LLAMA31 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OF_LLAMA31 |= {ORIGINAL: 8192}
SPECIAL = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
ADDS = ("add_bos_token", "add_eos_token")
# Tokens that end an answer beside EOS: those of metadata, and in a file with a chat template those
# that llama.cpp knows by their names, of which most files say nothing.
ENDS = ("eot_token_id", "eom_token_id")
END_NAMES = {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"}
TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# How byte-level vocabularies split a text before they merge (`tokenizer.ggml.pre`): those that
# transformers makes, and those that first set digits apart, which it does not. Files from before
# llama.cpp wrote this do not say how, nor does "default", which SentencePiece's vocabularies have.
SPLITS = {"gpt-2", "llama-bpe", "llama3", "llama-v3", "tekken", "qwen2", "deepseek-r1-qwen"}
DIGITS_APART = {"smollm", "starcoder", "refact"}
PIECES, NO_SPLIT = "llama", "default"
# Those that add BOS unless the file says otherwise, and take a whole word that is a token as it is,
# whatever its merges: llama.cpp knows both by the name, and writes neither.
OF_LLAMA3 = {"llama-bpe", "llama3", "llama-v3", "tekken"}


class Piece(NamedTuple):
    """A token of SentencePiece (`tape.model.sentencepiece.Piece`)."""

    piece: str
    score: float
    type: int


class Contents(NamedTuple):
    """What a .gguf file held."""

    config: dict[str, Any]
    tokenizer: PreTrainedTokenizerBase
    stored: dict[str, int]  # number of weights in each storage type, such as Q4_1


def is_gguf(path: Path) -> bool:
    """Returns whether a file is a .gguf file, by its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def check_reader(file: str) -> None:
    """Raises a ValueError about a file if the package that reads .gguf files is not installed."""
    if find_spec("gguf") is None:
        raise ValueError(
            f"{file}: to read a .gguf file, the package gguf is needed: EXTRAS=gguf bash "
            "script/setup.sh, or pip install gguf"
        )


def convert(path: Path, folder: Path) -> Contents:
    """Writes configuration, weights and tokenizer of a .gguf file to a folder.

    Raises:
        ValueError: for a file that is cut off, of another architecture, without a tokenizer, or
            with settings or weights that have no place in the checkpoint.
    """
    check_reader(str(path))
    from gguf import GGUFReader

    with reading(path):
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    with reading(path):
        own = [tensor for tensor in reader.tensors if tensor.name == FREQUENCIES]
        divisors = np.array(own[0].data) if own else None
    config = read_config(path, metadata, {tensor.name for tensor in reader.tensors}, divisors)
    tokenizer = read_gguf_tokenizer(path, metadata, config["max_position_embeddings"])
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    # Of Mistrals, too: their files have the architecture of a Llama.
    rotated_in_pairs = metadata["general.architecture"] == "llama"
    weights = []
    for tensor in reader.tensors:
        if tensor.name == FREQUENCIES:
            continue
        part = tensor.name.split(".")[-2]
        split = heads.get(part) if rotated_in_pairs else None
        weights.append((name_of(path, tensor.name), tensor, split))
    with reading(path):
        write_weights(weights, folder / "model.safetensors")
    family = CONFIG_MAPPING[config["model_type"]].__name__.removesuffix("Config")
    config["architectures"] = [f"{family}ForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    special = {name: config[name] for name in SPECIAL if config.get(name) is not None}
    if (ends := end_tokens(metadata)) and ends != [special.get("eos_token_id")]:
        special["eos_token_id"] = ends
    (folder / "generation_config.json").write_text(json.dumps(special, indent=2) + "\n")
    tokenizer.save_pretrained(folder)
    about = read_object(folder / "tokenizer_config.json")
    about["tokenizer_class"] = "PreTrainedTokenizerFast"  # reads tokenizer.json as it is
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")
    stored = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    return Contents(config, tokenizer, dict(stored.most_common()))


def read_config(
    path: Path, metadata: dict[str, Any], tensors: set[str], divisors: np.ndarray | None = None
) -> dict[str, Any]:
    """Returns the fields of config.json; raises a ValueError for what it could not express. The
    `divisors` (D / 2,) are those of `FREQUENCIES`."""
    kind = metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"{path} has the architecture {kind!r}; allowed: {', '.join(ARCHITECTURES)}; give a "
            "model of one of these"
        )
    own = {name.partition(".")[2]: x for name, x in metadata.items() if name.startswith(f"{kind}.")}
    if missing := sorted(NEEDED - own.keys()):
        raise ValueError(f"{path} lacks {kind}.{missing[0]}: give the file of a whole model")
    config = {field: own[name] for name, field in FIELDS.items() if name in own}
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    width = config["hidden_size"] // config["num_attention_heads"]
    config.setdefault("head_dim", own.get("rope.dimension_count", width))
    config.setdefault("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())))
    rope = {"rope_type": "default", "rope_theta": own.get("rope.freq_base", 10_000.0)}
    if own.get("rope.scaling.type", "none") != "none":
        rope |= {field: own[name] for name, field in SCALING.items() if name in own}
    window = own.get("attention.sliding_window")
    refused = {name: own[name] for name in sorted(own.keys() - KNOWN)}
    refused |= {x: own[x] for x in OF_HEADS if own.get(x, config["head_dim"]) != config["head_dim"]}
    if rope["rope_type"] not in SCHEDULES:
        refused["rope.scaling.type"] = rope["rope_type"]
    if window and kind != "llama":
        refused["attention.sliding_window"] = window
    if own.get("expert_count"):
        refused["expert_count"] = own["expert_count"]
    names = {f"{kind}.{name}": value for name, value in refused.items()}
    if divisors is not None:
        plain = rope["rope_type"] == "default"
        schedule = llama31(rope["rope_theta"], config["head_dim"], divisors) if plain else None
        if schedule is None:
            names[FREQUENCIES] = "divisors of frequencies, not those of Llama 3.1"
        rope = schedule or rope
    for name, value in names.items():
        raise ValueError(
            f"{path} has {name} ({value}), which cannot be read from a .gguf file; import the "
            "model's original checkpoint"
        )
    config |= {"model_type": ARCHITECTURES[kind], "rope_parameters": rope, "dtype": "float32"}
    if window:
        config |= {"model_type": "mistral", "sliding_window": window}
    if kind != "qwen2":  # whose queries, keys and values always have one
        config["attention_bias"] = any(name.endswith("attn_output.bias") for name in tensors)
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in SPECIAL.items()}
    return config | ids | {"tie_word_embeddings": "output.weight" not in tensors}


def end_tokens(metadata: dict[str, Any]) -> list[int]:
    """Returns the ids of all tokens that end an answer, EOS first."""
    given = (metadata.get(f"tokenizer.ggml.{name}") for name in ("eos_token_id", *ENDS))
    ends = [n for n in given if n is not None]
    if "tokenizer.chat_template" in metadata:
        names = metadata.get("tokenizer.ggml.tokens", ())
        kinds = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(names)
        pairs = enumerate(zip(names, kinds, strict=True))
        ends += [n for n, (name, kind) in pairs if kind == CONTROL and name in END_NAMES]
    return [*dict.fromkeys(ends)]


def llama31(theta: float, D: int, divisors: np.ndarray) -> dict[str, Any] | None:
    """Returns the `rope_parameters` of Llama 3.1 with which heads of D channels have frequencies
    with these divisors (D / 2,); None if they have others."""
    rope = OF_LLAMA31 | {"rope_theta": theta, "factor": float(divisors.max())}
    if divisors.shape != (D // 2,) or not rope["factor"] >= 1:
        return None
    frequencies, _ = inverse_frequencies(LlamaConfig(head_dim=D, rope_parameters=rope))
    expected = theta ** -(np.arange(0, D, 2) / D) / frequencies.numpy()
    return rope if np.allclose(divisors, expected, rtol=1e-4) else None


def name_of(path: Path, tensor: str) -> str:
    """Returns the name of a weight in a checkpoint, given that in the file."""
    found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", tensor)
    if found is None or found[2] not in TENSORS:
        raise ValueError(f"{path} has a weight {tensor}, which the model has no place for")
    layer = "" if found[1] is None else f"model.layers.{found[1]}."
    return f"{layer}{TENSORS[found[2]]}.{found[3]}"


def write_weights(weights: list[tuple[str, Any, int | None]], target: Path) -> None:
    """Writes tensors of a .gguf file as float32 to a .safetensors file, one at a time. Those with a
    number of heads have the two channels of a rotation next to each other, and get them half a head
    apart."""
    from gguf import dequantize

    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor, _ in weights:
        shape = [int(size) for size in reversed(tensor.shape)]
        begin, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with target.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor, heads in tqdm(weights, "weights", leave=False, disable=None):
            shape = header[name]["shape"]
            rows = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype="<f4")
            rows = rows.reshape(shape)
            if heads is not None:
                pairs = rows.reshape(heads, -1, 2, *shape[1:])
                rows = pairs.swapaxes(1, 2).reshape(shape)
            file.write(np.ascontiguousarray(rows).data)
        file.flush()
        os.fsync(file.fileno())


def read_gguf_tokenizer(
    path: Path, metadata: dict[str, Any], length: int
) -> PreTrainedTokenizerBase:
    """Returns the tokenizer in a .gguf file, with its chat template."""
    if not metadata.get("tokenizer.ggml.tokens"):
        raise ValueError(f"{path} has no tokenizer; give a .gguf file with one")
    of_pieces = metadata.get("tokenizer.ggml.model") == PIECES
    split = metadata.get("tokenizer.ggml.pre", NO_SPLIT)
    allowed = SPLITS | DIGITS_APART | ({NO_SPLIT} if of_pieces else set())
    if split not in allowed:
        raise ValueError(
            f"{path} has tokenizer.ggml.pre: {split!r}, a way to split texts that is not known; "
            f"allowed: {', '.join(sorted(allowed))}; take the original checkpoint"
        )
    adds = {name: metadata.get(f"tokenizer.ggml.{name}") for name in ADDS}
    with reading(path):
        made = _of_pieces(metadata) if of_pieces else _of_bytes(path, metadata)
    begins = of_pieces or split in OF_LLAMA3
    if split in DIGITS_APART:
        digits = pre_tokenizers.Digits(individual_digits=True)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    elif split in OF_LLAMA3:
        made.model.ignore_merges = True
    names = metadata["tokenizer.ggml.tokens"]
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in NAMED.items()}
    named = {name: names[n] for name, n in ids.items() if n is not None}
    template = metadata.get("tokenizer.chat_template")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template, **named)
    if adds["add_bos_token"] is None and begins and tokenizer.bos_token is not None:
        adds["add_bos_token"] = True
    for name, value in adds.items():
        if value is not None:
            setattr(tokenizer, name, value)
    tokenizer.model_max_length = length
    return tokenizer


def _of_pieces(metadata: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer of a vocabulary of SentencePiece, with byte pairs as llama.cpp makes
    them: transformers would leave out the space before a text that begins with one, and add it
    whatever the file says."""
    fields = ("tokens", "scores", "token_type")
    names, scores, kinds = (metadata[f"tokenizer.ggml.{name}"] for name in fields)
    pieces = [Piece(*each) for each in zip(names, scores, kinds, strict=True)]
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    return tokenizer_of(pieces, prefix, fallback=BYTE in kinds)


def _of_bytes(path: Path, metadata: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer of a byte-level vocabulary, with the tokens of the file alone:
    transformers adds those that its class has by default, beyond the model's vocabulary, and spells
    added ones in bytes if their names have other characters."""
    made = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    written, names = json.loads(made.to_str()), metadata["tokenizer.ggml.tokens"]
    kinds = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(names)
    apart = {n: kind for n, kind in enumerate(kinds) if kind in (CONTROL, USER_DEFINED)}
    vocabulary = {n: word for word, n in written["model"]["vocab"].items()}
    vocabulary |= {n: names[n] for n in apart}
    written["model"]["vocab"] = {word: n for n, word in vocabulary.items()}
    written |= {"added_tokens": [], "post_processor": None}
    tokenizer = Tokenizer.from_str(json.dumps(written))
    how = {CONTROL: tokenizer.add_special_tokens, USER_DEFINED: tokenizer.add_tokens}
    for n, kind in apart.items():
        how[kind]([AddedToken(names[n], normalized=False)])
    return tokenizer
