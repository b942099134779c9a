"""A text is given to a model in any allowed way, and each of its documents as alone: configurations
and calls drawn at random, against the plain forward pass of the same float64 model.

A failing draw is printed as the line of code that repeats it: `check(Case(...))`.
"""

import random
from dataclasses import asdict, dataclass, field

import pytest
import torch
import torch.nn.functional as F
from conftest import (
    CACHES,
    COUNTED,
    GROUPED,
    POSITIONS,
    VOCABULARY,
    WITHOUT_SOFTMAX,
    make_cache,
    make_model,
    random_tokens,
)

EXACT = {"atol": 1e-9, "rtol": 1e-9}
GENERATED = 5
EMPTY = 2  # slots of a static cache that stay empty
MIXTURES = ("mixed", "mixed_tape", "mixed_read")
LONGEST = 40  # indices, gaps and generated tokens included
# Their indices are read from the text; their maps are over all query heads; parts of a mixture.
READING = [name for name in POSITIONS if name not in COUNTED]
UNGROUPED = [name for name in POSITIONS if name not in GROUPED]
MIXABLE = [
    name
    for name in GROUPED
    if name in COUNTED
    and "sampler" not in POSITIONS[name]
    and name not in (*MIXTURES, *WITHOUT_SOFTMAX, "randpe")
]
GENERATIONS = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "lookup": {"prompt_lookup_num_tokens": 2},
    "static": {"cache_implementation": "static"},
    "chunks": {"prefill_chunk_size": 3},
}


@dataclass(frozen=True)
class Case:
    """
    Attributes:
        rows: texts of one batch, a character per slot: "." is padding, others are documents.
        calls: the numbers of tokens that the model is given in each call, with `cache`.
        given: what else the caller gives: "embeddings" in place of ids, "gaps" in position_ids,
            "4-D" masks of booleans, or of numbers to add ("additive").
        generate: how the text is continued, in place of `calls`.
    """

    position: str | dict
    rows: tuple[str, ...]
    kernel: str = "sdpa"
    calls: tuple[int, ...] = ()
    cache: str | None = None
    given: tuple[str, ...] = ()
    generate: str | None = None
    changes: dict = field(default_factory=dict)

    def __repr__(self):
        default = asdict(Case("", ()))
        told = (f"{name}={x!r}" for name, x in asdict(self).items() if x != default[name])
        return f"Case({', '.join(told)})"


def drawn(seed: int) -> Case:
    rng = random.Random(seed)
    position = rng.choice([*POSITIONS, *["mixture"] * 6])
    counts, grouped = position not in READING, position not in UNGROUPED
    if position == "mixture":
        entries = [POSITIONS[name] for name in rng.sample(MIXABLE, 2)]
        entries[0] = entries[0] | {"window": rng.randint(1, 5)}
        position = {"name": "mixed", "pattern": entries}
    how = rng.choice(["whole", "documents", "cached", "cached", "generated"])
    changes = {
        "sliding_window": rng.choice([None, None, 1, 3, 6]),
        "num_recurrences": rng.choice([1, 1, 2]),
        "qk_norm": rng.random() < 0.3,
        "attention_sink": rng.random() < 0.3,
        "scalable_softmax": rng.choice([False, False, True, {"length": 3}]),
        "gated_attention": rng.random() < 0.3,
        "query_temperature": rng.choice([None, None, {"scale": 0.5, "length": 3}]),
        "num_key_value_heads": rng.choice([4, 2, 1]) if grouped else 4,
    }
    if position in WITHOUT_SOFTMAX:
        changes |= {"attention_sink": False, "scalable_softmax": False}
    if not counts:
        changes["query_temperature"] = None
    length = rng.randint(2, 14)
    rows = tuple(row(rng, length, 3 if how == "documents" else 1) for _ in range(rng.randint(1, 3)))
    given = {rng.choice([None, "embeddings", "gaps"])} if counts else set()
    if how == "generated":
        rows, given = tuple(text.replace(".", "").rjust(length, ".") for text in rows), set()
    elif all("." not in text for text in rows) and counts:
        given.add(rng.choice([None, "4-D", "additive"]))
    if how == "documents" and not given & {"4-D", "additive"}:
        given.discard("gaps")  # position_ids with document_ids are refused
    return Case(
        position,
        rows,
        kernel=rng.choice(["eager", "sdpa"]),
        calls=pieces(rng, length) if how == "cached" else (),
        cache=rng.choice(CACHES) if how == "cached" else None,
        given=tuple(sorted(given - {None})),
        generate=rng.choice([*GENERATIONS]) if how == "generated" else None,
        changes={name: value for name, value in changes.items() if value},
    )


def row(rng: random.Random, length: int, documents: int) -> str:
    """At least one token, and padding anywhere or nowhere."""
    padding = rng.choice([0, 0, 0.3])
    cuts = sorted(rng.randint(0, length) for _ in range(documents - 1))
    slots = ["abc"[sum(cut <= slot for cut in cuts)] for slot in range(length)]
    kept = rng.randrange(length)
    return "".join(
        "." if slot != kept and rng.random() < padding else slots[slot] for slot in range(length)
    )


def pieces(rng: random.Random, length: int) -> tuple[int, ...]:
    found = []
    while sum(found) < length:
        found.append(min(rng.choice([1, 1, 2, 3, 5, 8]), length - sum(found)))
    return tuple(found)


def index_of(text: str, gaps: bool) -> torch.Tensor:
    """Indices of the tokens of a row, each document's from 0 (with gaps, from 2)."""
    found, last, before = [], -1, None
    for slot, document in enumerate(text):
        if document != ".":
            last = (2 if gaps else 0) if document != before else last + 1 + gaps * (slot % 3 == 0)
            before = document
        found.append(max(last, 0))
    return torch.tensor(found)


def outputs_of(case: Case, model, tokens, real, index):
    """Logits of all slots as the case asks for them."""
    documents = torch.tensor([[*text.encode()] for text in case.rows])
    padding, masks = real.long(), "4-D" in case.given or "additive" in case.given
    if masks:
        same = documents[:, :, None] == documents[:, None]
        mask = (same & real[:, None]).tril()[:, None]
        if "additive" in case.given:
            mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
        if case.cache == "static":  # a mask is as wide as the cache, whose last slots are empty
            mask = F.pad(mask, (0, EMPTY), value=-torch.inf if mask.is_floating_point() else False)
    several = len({*"".join(case.rows)} - {"."}) > 1
    T, cache, found, start = tokens.shape[1], None, [], 0
    if case.cache:
        cache = make_cache(model, case.cache, T + EMPTY)
    for part in case.calls or (T,):
        new, end = slice(start, start + part), start + part
        inputs = {"attention_mask": padding[:, :end]}
        if masks:
            inputs["attention_mask"] = mask[:, :, new, : None if case.cache == "static" else end]
        if "gaps" in case.given or (masks and several):
            inputs["position_ids"] = index[:, new]
        if several and not masks:
            inputs["document_ids"] = documents[:, new]
        if "embeddings" in case.given:
            inputs["inputs_embeds"] = model.model.embed_tokens(tokens[:, new])
        else:
            inputs["input_ids"] = tokens[:, new]
        called = model(**inputs, past_key_values=cache, use_cache=bool(case.cache))
        cache, start = called.past_key_values, end
        found.append(called.logits)
    return torch.cat(found, dim=1)


def check(case: Case) -> None:
    """Raises an AssertionError if a document's logits, or without a cache the gradients, are not
    those that the plain forward pass gives of that document alone."""
    changes = {"num_hidden_layers": 2} | case.changes
    model = make_model(case.position, kernel=case.kernel, dtype=torch.float64, **changes)
    tokens = random_tokens(len(case.rows), len(case.rows[0]))
    real = torch.tensor([[slot != "." for slot in text] for text in case.rows])
    tokens[~real] = 0
    with model.evaluation_length(LONGEST):
        if case.generate:
            return check_generated(case, model, tokens, real)
        with torch.set_grad_enabled(not case.cache):
            gaps = "gaps" in case.given
            index = torch.stack([index_of(text, gaps) for text in case.rows])
            logits = outputs_of(case, model, tokens, real, index)
            expected = [*torch.zeros_like(logits)]
            for n, text in enumerate(case.rows):
                for document in sorted({*text} - {"."}):
                    slots = torch.tensor([slot for slot, x in enumerate(text) if x == document])
                    inputs = {"position_ids": index[n : n + 1, slots]} if gaps else {}
                    found = model(tokens[n : n + 1, slots], use_cache=False, **inputs).logits[0]
                    expected[n] = expected[n].index_copy(0, slots, found)
            expected = torch.stack(expected)
            torch.testing.assert_close(logits[real], expected[real], **EXACT)
            if not case.cache:
                check_gradients(model, logits[real], expected[real])


def check_gradients(model, logits, expected) -> None:
    weights = torch.linspace(-1, 1, VOCABULARY, dtype=torch.float64)
    parameters = [*model.named_parameters()]

    def gradients(found):
        total = (found * weights).sin().sum()
        return torch.autograd.grad(total, [x for _, x in parameters], materialize_grads=True)

    for (name, _), ours, theirs in zip(
        parameters, gradients(logits), gradients(expected), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-7, msg=name)


@torch.no_grad()
def check_generated(case: Case, model, tokens, real) -> None:
    settings = {"max_new_tokens": GENERATED, "do_sample": False, "pad_token_id": 0}
    how = GENERATIONS[case.generate]
    if case.generate == "lookup":
        tokens, real = tokens[:1], real[:1]
    found = model.generate(tokens, attention_mask=real.long(), **settings, **how)
    length = tokens.shape[1]
    beams = {"num_beams": how.get("num_beams", 1)}
    for row, mask, text in zip(tokens, real, found, strict=True):
        prompt = row[mask][None]
        alone = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), use_cache=False, **settings, **beams
        )
        assert torch.equal(text[length:], alone[0, prompt.shape[1] :])


def outcome(seed: int) -> str:
    case = drawn(seed)
    try:
        check(case)
    except ValueError as error:
        return f"{error}"
    except Exception as error:
        raise AssertionError(f"check({case})") from error
    return "equal"


@pytest.mark.parametrize("seed", range(60))
def test_drawn(seed):
    outcome(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 2100, 100))
def test_many_drawn(first):
    found = [outcome(seed) for seed in range(first, first + 100)]
    assert found.count("equal") > 80, found
