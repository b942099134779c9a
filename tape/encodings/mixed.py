"""Mixtures: another encoding in every layer, in a pattern that repeats over the layers."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig

from tape import encodings
from tape.core.validation import check_integer
from tape.positions.base import LayerPosition, PositionEncoding, Positions
from tape.positions.scores import ScoreBias

Entry = dict[str, Any]


class Mixed(PositionEncoding):
    """Layer l has the encoding `pattern[l % len(pattern)]`. Layers with equal entries are those of
    one encoding: the state that TAPE's layers update passes by the others. Absolute encodings add
    to the embeddings, whatever their layers."""

    positive = ("length",)

    # Names of encodings, or mappings with a name, arguments and a `window` (see `LayerPosition`);
    # rotary entries without `theta` and `scaling` have those of the configuration. By default three
    # layers of RoPE and one without positions, as in Llama 4 and SmolLM3 (Yang et al. 2025, arXiv
    # 2501.18795).
    pattern: Sequence[str | Entry] = ("rope", "rope", "rope", "nope")
    # What lengths and extents of its encodings follow; by default the training length.
    length: int | None = None

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        count = config.num_hidden_layers
        layers = [bare(self.pattern[n % len(self.pattern)]) for n in range(count)]
        distinct = [entry for n, entry in enumerate(layers) if entry not in layers[:n]]
        self.places = [distinct.index(entry) for entry in layers]
        self.windows = [entry.get("window") for entry in self.pattern]
        parts = [alone(config, x, layers.count(x), self.length) for x in distinct]
        self.entries = nn.ModuleList(encodings.build(part) for part in parts)
        self.ordered = any(entry.ordered for entry in self.entries)
        self.causal = any(entry.causal for entry in self.entries)

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        pattern = arguments["pattern"]
        if isinstance(pattern, str) or not isinstance(pattern, Sequence) or not pattern:
            raise ValueError(
                f"position mixed: pattern={pattern!r} must be a list of encodings, such as "
                "[rope, rope, rope, nope]"
            )
        entries = [checked(entry) for entry in pattern]
        length = arguments["length"] or config.max_position_embeddings
        for entry in entries:
            alone(config, entry, config.num_hidden_layers, length)
        updated = [bare(x) for x in entries if encodings.ENCODINGS[x["name"]].updates]
        if any(entry != updated[0] for entry in updated):
            raise ValueError(
                f"position mixed: {updated[0]} and another encoding whose state layers update; "
                "give one of them"
            )
        return super().configure(config, arguments | {"pattern": entries, "length": length})

    @classmethod
    def on_checkpoint(cls, arguments: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
        given = arguments.get("pattern", cls.pattern)
        fixed = arguments.get("length") is not None
        if fixed or isinstance(given, str) or not isinstance(given, Sequence):
            return arguments
        pattern = []
        for entry in given:
            name, own = encodings.canonical(entry)
            if name == "extended":  # a `window` is that of the layers here
                arguments = arguments | {"length": saved.get("max_position_embeddings")}
            else:
                own = encodings.ENCODINGS[name].on_checkpoint(own, saved)
            pattern.append({"name": name, **own})
        return arguments | {"pattern": pattern}

    @classmethod
    def able_backends(cls, arguments: dict[str, Any]) -> frozenset[str]:
        sampler = {"sampler": arguments["sampler"]}
        kinds = [(encodings.ENCODINGS[entry["name"]], entry) for entry in arguments["pattern"]]
        able = (cls.able_backends(cls.defaults() | bare(entry) | sampler) for cls, entry in kinds)
        return frozenset.intersection(*able)

    @property
    def max_positions(self) -> int | None:
        limits = [self.sampler.max_positions, *(entry.max_positions for entry in self.entries)]
        return min((limit for limit in limits if limit is not None), default=None)

    def forward(
        self, x_BTC: Tensor, positions: Positions
    ) -> tuple[Tensor, list[Tensor | None], list[ScoreBias | None]]:
        states, biases_of = [], []  # biases by entry, each in the order of its layers
        for entry in self.entries:
            x_BTC, entry_states, entry_biases = entry(x_BTC, positions)
            states += entry_states
            biases_of.append(iter(entry_biases))
        return x_BTC, states, [next(biases_of[place]) for place in self.places]

    def layer(self, layer_idx: int) -> LayerPosition:
        place = self.places[layer_idx]
        layer = self.entries[place].layer(self.places[:layer_idx].count(place))
        layer.entry, layer.window = place, self.windows[layer_idx % len(self.windows)]
        return layer


def checked(entry: str | Mapping[str, Any]) -> Entry:
    """Returns an entry with its name in full; refuses an encoding that cannot be a part."""
    name, given = encodings.canonical(entry)
    cls = encodings.ENCODINGS[name]
    if given.get("window") is not None:
        check_integer(f"position mixed: window of {name}", given["window"])
    if issubclass(cls, Mixed) or cls.reads:
        raise ValueError(
            f"position mixed: {name} applies to all layers and cannot be in a pattern; choose "
            "another encoding"
        )
    if "sampler" in given or name == "randpe":
        raise ValueError(
            f"position mixed: {name} with a sampler of its own: all layers have one draw; give "
            "position.sampler of the mixture"
        )
    return {"name": name, **given}


def alone(config: PretrainedConfig, entry: Entry, layers: int, length: int) -> PretrainedConfig:
    """Returns the configuration of a model with this encoding alone, in so many layers, and with
    this training length."""
    own = copy.copy(config)
    own.num_hidden_layers, own.max_position_embeddings = layers, length
    own.rope_parameters = copy.deepcopy(config.rope_parameters)
    own.position = encodings.configure(own, bare(entry))
    return own


def bare(entry: Entry) -> Entry:
    """Returns an entry without its window: equal ones are those of one encoding."""
    return {name: value for name, value in entry.items() if name != "window"}
