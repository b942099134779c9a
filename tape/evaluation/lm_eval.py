"""Tasks of the Language Model Evaluation Harness (lm-eval), by default without examples."""

import argparse
import hashlib
import json
import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
import yaml

try:
    import lm_eval
    from lm_eval import evaluator
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"error: {missing.name} is missing: EXTRAS=eval bash script/setup.sh"
    ) from missing

from tape.core.files import check_folder, check_replaceable, read_object, reading, write_text
from tape.core.run_folder import locked
from tape.evaluation.chat import check_template
from tape.evaluation.extension import extended, extension
from tape.evaluation.questions import of_texts
from tape.model.checkpoint import check_length, identified, load
from tape.model.generation import end_tokens

# Its warnings are about settings of its own command line.
logging.getLogger("lm_eval").setLevel(logging.ERROR)
# Its call of git prints an error outside a repository, and the hash is not used.
evaluator.get_git_commit_hash = lambda: None

KEPT = ("results", "groups", "n-samples", "n-shot", "versions", "higher_is_better")
BABILONG, RULER = "babilong", ("niah", "ruler")
TOKENIZER = "tokenizer_config.json"
PRECISE = {"softmax_dtype": torch.float32}  # in bfloat16 hundreds of nats are rounded to 2
OFFLINE = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "ruler_vt", "ruler_cwe")
OFFLINE += ("ruler_fwe",)  # RULER's tasks without texts to download
ANSWERS = 2  # changes where the same question has another answer than before


class Harness(HFLM):
    """A model for prompts and answers of up to `max_length` tokens together. Longer ones raise a
    ValueError, where lm-eval would leave out the beginning."""

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], *args: Any, **how: Any
    ) -> list[tuple[float, bool]]:
        """Returns the log-likelihood of each answer, and whether greedy decoding gives it."""
        for _, prompt, answer in requests:
            self._check(len(prompt) + len(answer) - 1)  # the last token is predicted and not read
        with self._model.evaluation_length(self.max_length):
            return super()._loglikelihood_tokens(requests, *args, **how)

    def loglikelihood_rolling(self, requests: list[Instance], **how: Any) -> list[float]:
        """Returns the log-likelihood of each text, all of whose tokens are predicted: the first
        one from a prefix token, beside which the tokenizer adds no BOS of its own."""
        before, self.add_bos_token = self.add_bos_token, False
        try:
            return super().loglikelihood_rolling(requests, **how)
        finally:
            self.add_bos_token = before

    def _model_generate(self, *args: Any, **how: Any) -> torch.Tensor:
        """Every row ends with its first end token, written as EOS: lm-eval would go on to the last
        row's, and then drop EOS but not what follows it."""
        ends = end_tokens(self._model, self.tokenizer)
        with self._model.evaluation_length(self.max_length):
            rows = super()._model_generate(*args, eos_token_id=ends, **how)
        new = rows[:, how["context"].shape[1] :]  # a view
        has_ended = torch.isin(new, torch.tensor(ends, device=new.device)).cumsum(-1) > 0
        new[has_ended] = self.eot_token_id
        return rows

    def tok_batch_encode(self, strings, padding_side="left", left_truncate_len=None, **how: Any):
        """Encodes prompts; `left_truncate_len` leaves room for the generated tokens."""
        ids, mask = super().tok_batch_encode(strings, padding_side)
        if left_truncate_len is not None:
            self._check(ids.shape[1] + self.max_length - left_truncate_len)
        return ids, mask

    def _check(self, needed: int) -> None:
        if needed > self.max_length:
            most = f"{self.max_length:,}: raise it, or give fewer examples (--num_fewshot)"
            what = f"a prompt and its answer have {needed:,} tokens"
            raise ValueError(f"{what}, more than --max_length {most}")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Evaluates tasks and writes lm-eval's results with what they are of; returns them. Raises a
    ValueError or an OSError for settings, tasks or models that cannot be evaluated."""
    check_files(arguments)
    folder, tasks, lengths = arguments.model, arguments.tasks, arguments.lengths or []
    given = arguments.include_path
    position = extended(arguments, folder)
    model, tokenizer = load(folder, getattr(torch, arguments.dtype), position)
    longest = max(lengths, default=0)
    max_length = arguments.max_length or max(model.config.max_position_embeddings, longest)
    if longest > max_length:
        raise ValueError(f"--lengths {longest} is more than --max_length {max_length}")
    check_length(model, max_length, f"--max_length {max_length}")
    about = {
        **identified(folder, model),
        "extension": extension(arguments),
        "position": position,
        "max_length": max_length,
        "dtype": arguments.dtype,
        "lm_eval": lm_eval.__version__,
        **of_texts(model, tokenizer),
    }
    if arguments.chat:
        about["chat"] = check_template(tokenizer)
    # Not beside the model but where only this program writes: lm-eval unpickles the answers.
    cache = Path(os.environ.get("TAPE_CACHE", "cache")) / "lm_eval"
    answers = cache / f"{folder.resolve().name}-{digest(about | {'answers': ANSWERS})}"
    about |= {name: getattr(arguments, name) for name in ("tasks", "num_fewshot", "limit")}
    about |= {"lengths": lengths, "include_path": given and str(given.resolve())}
    how = PRECISE | {"max_length": max_length, "batch_size": arguments.batch_size}
    harness = Harness(model, backend="causal", tokenizer=tokenizer, **how)
    metadata = prompt_lengths(tasks, lengths)
    try:
        with locked(answers), TemporaryDirectory() as tokens:
            # RULER's tasks load a tokenizer by name: this one, whatever class its files name.
            tokenizer.save_pretrained(tokens)
            found = lm_eval.simple_evaluate(
                model=harness,
                tasks=tasks,
                num_fewshot=arguments.num_fewshot,
                limit=arguments.limit,
                task_manager=task_manager(tasks, given, metadata | {"tokenizer": tokens}),
                use_cache=str(answers / "answers"),
                log_samples=False,
                apply_chat_template=arguments.chat,
            )
    except (OSError, RuntimeError) as error:
        if type(error).__name__ == "ConnectionError":  # Python's, or that of requests
            raise ValueError(not_downloaded(tasks, error)) from error
        raise
    except Exception as error:  # files of a task may hold anything
        what = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"--tasks {','.join(tasks)}: {what}") from error
    for values in found["results"].values():  # RULER's for lengths that were not asked for
        for name in [name for name, x in values.items() if x == -1 and name[0].isdecimal()]:
            del values[name]
    arguments.out = arguments.out or arguments.folder / f"{tasks[0]}-{digest(about)}.json"
    kept = about | {name: found[name] for name in KEPT if name in found}
    write_text(arguments.out, json.dumps(kept, indent=2, sort_keys=True) + "\n")
    return found


def check_files(arguments: argparse.Namespace) -> None:
    if (given := arguments.include_path) is not None and not given.is_dir():
        raise ValueError(f"--include_path {given} is not a folder")
    for file in sorted(given.rglob("*.yaml")) if given else ():  # lm-eval leaves out damaged ones
        with reading(file):
            yaml.compose(file.read_bytes())
    if arguments.out is not None:
        check_folder(arguments.out.parent)
        check_replaceable("--out", arguments.out, '"lm_eval"')
    # RULER's tasks load the tokenizer by name, and would run code that comes with it.
    settings = arguments.model / TOKENIZER
    if settings.is_file() and "auto_map" in read_object(settings):
        raise ValueError(f"{settings} requires custom code (auto_map), which is not run")


def task_manager(names: list[str], folder: Path | None, metadata: dict[str, Any]) -> TaskManager:
    """Returns the tasks of a folder if all names are among them, else lm-eval's, too: thousands of
    files."""
    own = TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
    if {*names} <= {*own.all_tasks}:
        return own
    return TaskManager(include_path=folder, metadata=metadata)


def prompt_lengths(tasks: list[str], lengths: list[int]) -> dict[str, Any]:
    """Returns the lengths as metadata of tasks: a list for RULER, one for BABILong, which calls
    4,096 tokens 4k. Raises a ValueError for tasks whose prompts have no lengths to choose."""
    if not lengths:
        return {}
    others = [name for name in tasks if not name.startswith((BABILONG, *RULER))]
    babilong = [name for name in tasks if name.startswith(BABILONG)]
    if others:
        raise ValueError(f"--lengths: {others[0]} has no prompts of given lengths; omit it")
    if babilong and (len(babilong) < len(tasks) or len(lengths) > 1 or lengths[0] % 1024):
        raise ValueError("--lengths: BABILong takes one multiple of 1,024, and no other tasks")
    return {"max_seq_lengths": f"{lengths[0] // 1024}k" if babilong else lengths}


def not_downloaded(tasks: list[str], error: Exception) -> str:
    what = f"its texts cannot be downloaded ({' '.join(str(error).split())})"
    ruler = any(name.startswith(RULER) for name in tasks)
    others = f", or take those of RULER that need none: {','.join(OFFLINE)}" if ruler else ""
    return f"--tasks {','.join(tasks)}: {what}; run it with a network{others}"


def digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def main(arguments: argparse.Namespace) -> None:
    transformers.logging.disable_progress_bar()
    print(f"{make_table(run(arguments))}\nalso in {arguments.out}")
