"""A text is given to a model in any allowed way, and each of its documents as alone: against the
plain forward pass of the same float64 model."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from conftest import VOCABULARY, make_cache, make_model, random_tokens

EXACT = {"atol": 1e-9, "rtol": 1e-9}
GENERATED = 5
EMPTY = 2  # slots of a static cache that stay empty
LONGEST = 40  # indices, gaps and generated tokens included
GENERATIONS = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "lookup": {"prompt_lookup_num_tokens": 2},
    "static": {"cache_implementation": "static"},
    "chunks": {"prefill_chunk_size": 3},
    "static-beams": {"num_beams": 3, "cache_implementation": "static"},
    "static-chunks": {"prefill_chunk_size": 3, "cache_implementation": "static"},
    "embeddings": {},
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
    if case.generate == "lookup":  # in a text that repeats itself
        tokens, real = (torch.cat((x[:1], x[:1]), dim=1) for x in (tokens, real))
    length, inputs = tokens.shape[1], {"inputs": tokens}
    if case.generate == "embeddings":  # what is returned are the new tokens
        length, inputs = 0, {"inputs_embeds": model.model.embed_tokens(tokens)}
    found = model.generate(**inputs, attention_mask=real.long(), **settings, **how)
    beams = {"num_beams": how.get("num_beams", 1)}
    for row, mask, text in zip(tokens, real, found, strict=True):
        prompt = row[mask][None]
        alone = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), use_cache=False, **settings, **beams
        )
        assert torch.equal(text[length:], alone[0, prompt.shape[1] :])
