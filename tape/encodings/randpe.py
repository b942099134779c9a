"""RandPE: RoPE on random coordinates."""

from typing import Any

from transformers import PretrainedConfig

from tape.positions.rotary import RoPE


class RandPE(RoPE):
    """RoPE on random coordinates (Ruoss et al. 2023, arXiv 2305.16843): RoPE with the `subset`
    sampler and its arguments `length`, `eval_length` and `seed`."""

    config_arguments = ("length", "eval_length", "seed")

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        given = {name: arguments.pop(name) for name in ("length", "eval_length", "seed")}
        sampler = arguments["sampler"]
        settled = {"name": "subset", **sampler} if isinstance(sampler, dict) else {"name": sampler}
        if settled["name"] not in ("index", "subset"):
            raise ValueError(
                f"position randpe samples positions itself: sampler={settled['name']!r} conflicts "
                f"with it; allowed: 'subset', or position rope with that sampler"
            )
        given = {name: value for name, value in given.items() if value is not None}
        arguments["sampler"] = {**settled, "name": "subset", **given}
        return super().configure(config, arguments)
