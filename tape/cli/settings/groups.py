"""The settings of the commands that Hydra configures, in groups of files.

Entries without a file are registered here: encodings of other packages, those of
config/variants.yaml, and the group and the sweeps of config/sweep/ablations.yaml.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import ListConfig, OmegaConf

from tape.core.config import CONFIG, added_encodings, files_of

ABLATIONS = OmegaConf.load(CONFIG / "sweep" / "ablations.yaml")

_entries: dict[str, set[str]] = defaultdict(set)  # by group


def options(group: str) -> set[str]:
    """Returns the names that a group of settings has: those of its files, and those that are
    registered here."""
    return files_of(group) | _entries.get(group, set())


def entries_with(group: str, setting: str) -> list[str]:
    """Returns the entries of a group whose files have a setting."""
    files = sorted((CONFIG / group).glob("*.yaml"))
    return [path.stem for path in files if setting in OmegaConf.load(path)]


def groups_of() -> list[str]:
    """Returns the groups that `options` has entries of."""
    groups = {path.name for path in CONFIG.iterdir()} | _entries.keys()
    return sorted(group for group in groups if options(group))


def _register(group: str, name: str, content: Any, package: str | None = "_global_") -> None:
    ConfigStore.instance().store(name, content, group, package)
    _entries[group].add(name)


def _register_encodings() -> None:
    for name in added_encodings():
        if name in files_of("position"):
            raise ValueError(f"another package has an encoding {name!r}, as this one: uninstall it")
        content = {"name": name, "sampler": "index"}  # the argument that all have
        _register("position", name, content, None)


def _register_ablations() -> None:
    for row, arguments in ABLATIONS.rows.items():
        name = {"name": f"ablation_{row}_${{seed}}", "position": arguments} if arguments else {}
        _register("ablation", row, name)
    for table, rows in ABLATIONS.tables.items():
        out = "output/compare_${name}/" + table
        content = {"defaults": ["ablations"], "vary": {"ablation": [*rows]}, "out": out}
        _register("sweep", f"ablation_{table}", content)


DRIVERS = "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"  # of CUDA, of ROCm, under Windows


def _lengths(*factors: float, _root_: Any) -> ListConfig | int | None:
    """`${lengths:0.5,1,2}`: multiples of the trained length; a number for one factor."""
    if not isinstance(_root_.length, int):  # `check_settings` refuses it
        return None
    first, *others = (int(factor * _root_.length) for factor in factors)
    return ListConfig([first, *others]) if others else first


def _new(size: int, _root_: Any) -> int | None:
    """`${new:32}`: a size of a new model; null with a base model, which keeps its own."""
    return size if _root_.base_model is None else None


def _bfloat16(fast: Any, slow: Any) -> Any:
    """`${bfloat16:true,false}`: the first where bfloat16 multiplies faster than float32."""
    import torch

    on_gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return fast if on_gpu or torch.cpu._is_avx512_bf16_supported() else slow


def _gpu(there: Any, otherwise: Any) -> Any:
    """`${gpu:null,sdpa}`: the first on a machine with the driver of a GPU. torch, which knows more,
    takes seconds to import."""
    return there if any(Path(device).exists() for device in DRIVERS) else otherwise


OmegaConf.register_new_resolver("bfloat16", _bfloat16, replace=True)
OmegaConf.register_new_resolver("gpu", _gpu, replace=True)
OmegaConf.register_new_resolver("lengths", _lengths, replace=True)
OmegaConf.register_new_resolver("new", _new, replace=True)
_register_encodings()
for _group, _variants in OmegaConf.load(CONFIG / "variants.yaml").items():
    for _name, _content in _variants.items():
        _register(_group, _name, _content)
_register_ablations()
