"""Every encoding with arguments that suit short texts, as parameters of tests."""

import pytest

from tape.encodings import ENCODINGS


def rope(schedule: str, **scaling) -> dict:
    return {"name": "rope", "scaling": {"rope_type": schedule, **scaling}}


def mixture(*pattern, **arguments) -> dict:
    return {"name": "mixed", "pattern": [*pattern], **arguments}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8}
CONTEXTUAL = {"name": "grape_m", "shared": False, "contextual": True}
# Every encoding; arguments that suit short texts, every ablation of TAPE, every fixed schedule, and
# samplers on others than RandPE.
POSITIONS = {name: {"name": name} for name in ENCODINGS} | {
    "learned": {"name": "learned", "length": 2560},
    "abacus": {"name": "abacus", "digits": [*range(0, 61, 2)], "length": 2560},
    "rope_theta": {"name": "rope", "theta": 500.0},
    "rope_linear": rope("linear", factor=3.0),
    "rope_llama3": rope("llama3", **LLAMA3),
    "rope_proportional": rope("proportional", partial_rotary_factor=0.5),
    "rope_partial": rope("default", partial_rotary_factor=0.5),
    "rope_longrope": rope("longrope", factor=4.0, long_factor=[1.0, 1.5, 2.25, 4.0]),
    "rope_pose": {"name": "rope", "sampler": {"name": "pose", "chunks": 3}},
    "rope_clipped": rope("clipped"),
    "extended": {"name": "extended", "window": 4, "group": 6},
    "extended_rerope": {"name": "extended", "method": "rerope", "window": 3},
    "extended_leaky": {"name": "extended", "method": "leaky_rerope", "window": 3, "group": 3},
    "extended_dca": {"name": "extended", "method": "dca", "window": 2, "chunk": 6},
    "extended_string": {"name": "extended", "method": "string", "window": 2, "offset": 6},
    "rope_float": {"name": "rope", "sampler": {"name": "float", "length": 9}},
    "sincos_float": {"name": "sincos", "sampler": "float"},
    "alibi_float": {"name": "alibi", "sampler": "float"},
    "alibi_subset": {"name": "alibi", "sampler": "subset"},
    "fire": {"name": "fire", "threshold": 6.0},
    "t5": {"name": "t5", "num_buckets": 8, "max_distance": 12},
    "dape": {"name": "dape", "width": 6},
    "relative": {"name": "relative", "dimension": 3, "extent": 5},
    "cope": {"name": "cope", "count": 4},
    "pope": {"name": "pope", "base": 50.0},
    "selective": {"name": "selective", "rank": 3, "kernel": 3, "theta": 50.0},
    "path": {"name": "path", "rank": 3, "kernel": 3},
    "path_gate": {"name": "path", "rank": 3, "gate": True},
    "grape_m": {"name": "grape_m", "theta": 50.0},
    "grape_m_contextual": CONTEXTUAL | {"theta": 50.0, "start": 0.5},
    "grape_ap": {"name": "grape_ap", "width": 4},
    "repo": {"name": "repo", "theta": 50.0, "start": 1, "width": 5},
    "wall": {"name": "wall", "start": 1.0},
    "wall_scalar": {"name": "wall", "start": 1.0, "scalar": True},
    "tape_shift": {"name": "tape", "sampler": "shift"},
    "tape_subset": {"name": "tape", "sampler": "subset", "init": "xavier"},
    "tape_attention": {"name": "tape", "feed_forward": False},
    "tape_feed_forward": {"name": "tape", "attention": False},
    "tape_phases": {"name": "tape", "magnitudes": False, "init": "xavier"},
    "tape_neither_place": {"name": "tape", "attention": False, "feed_forward": False},
    "tape_not_equivariant": {"name": "tape", "equivariant": False},
    "tape_not_tensorial": {"name": "tape", "tensorial": False},
    "mixed": mixture("rope", "nope"),
    "mixed_tape": mixture({"name": "tape", "window": 4}, {"name": "rope", "theta": 50.0}, "tape"),
    "mixed_2026": mixture("pko", "imaginary", {"name": "scale_invariant", "window": 4}),
    "mixed_read": mixture("fox", {"name": "path", "rank": 3}, {"name": "pope", "base": 50.0}),
    "carope": {"name": "carope", "theta": 50.0},
    "carope_values": {"name": "carope", "theta": 50.0, "values": True},
    "selective_values": {"name": "selective", "rank": 3, "theta": 50.0, "values": True},
    "tapa": {"name": "tapa", "alpha": 0.3, "share": 0.4},
    "fope": {"name": "fope", "theta": 50.0, "length": 64},
    "scale_invariant": {"name": "scale_invariant", "tau": 2.0},
    "coupling": {"name": "coupling", "digits": [*range(0, 61, 2)], "length": 2560},
    "tape_neither_form": {"name": "tape", "equivariant": False, "tensorial": False},
}
GROUPED = [name for name in POSITIONS if POSITIONS[name].get("tensorial", True)]

# Those that take token indices from `position_ids`, not from the tokens.
COUNTED = [name for name in POSITIONS if not ENCODINGS[POSITIONS[name]["name"]].reads]

all_positions = pytest.mark.parametrize("position", POSITIONS)
# Those that compute in the way of another one: in modes other than the plain forward pass, they are
# slow tests. A new encoding is not here.
OF_OTHERS = """nope sincos learned yarn xpos randpe kerple t5 dape relative cope pope selective
    tape_yarn mixed rope_gain grape_m grape_ap repo carope tapa fope stick_breaking coupling bam
    extended"""
REPRESENTED = OF_OTHERS.split()
REPRESENTED += [name for name in POSITIONS if name not in ENCODINGS and name != "mixed_tape"]


def represented(names, *before):
    """Parameters of a test, `before` and a name, of which those of REPRESENTED are slow."""
    slow = {name: pytest.mark.slow if name in REPRESENTED else () for name in names}
    return [pytest.param(*before, name, marks=mark) for name, mark in slow.items()]


in_modes = pytest.mark.parametrize("position", represented(POSITIONS))
