"""Models of this project as models of the Language Model Evaluation Harness (lm-eval)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
import yaml
from lm_eval import evaluator
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import PreTrainedTokenizerBase

from tape.files import reading
from tape.model.modeling import TapeForCausalLM

# Its warnings are about settings of its own command line.
logging.getLogger("lm_eval").setLevel(logging.ERROR)
# Its call of git prints an error outside a repository, and the hash is not used.
evaluator.get_git_commit_hash = lambda: None


def tasks_of(names: list[str], lengths: list[int], folder: Path | None, model: Path) -> TaskManager:
    """Returns the tasks that lm-eval finds, in its own files and in a folder.

    Args:
        lengths: of the prompts of RULER.
        model: folder of the tokenizer that counts the tokens of prompts.

    Raises:
        ValueError: if a file is damaged.
    """
    for path in sorted(folder.rglob("*.yaml")) if folder else ():
        with reading(path):  # lm-eval leaves out what it cannot read
            yaml.compose(path.read_bytes())
    metadata: dict[str, Any] = {"tokenizer": str(model)}
    if lengths:
        metadata["max_seq_lengths"] = lengths
    own = TaskManager(include_path=folder, metadata=metadata, include_defaults=False)
    if {*names} <= {*own.all_tasks}:
        return own
    return TaskManager(include_path=folder, metadata=metadata)  # thousands of files


class Harness(HFLM):
    """A model for prompts and answers of up to `max_length` tokens together. Longer ones raise a
    ValueError, where lm-eval would leave out the beginning."""

    def __init__(
        self,
        model: TapeForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        batch_size: int = 1,
    ):
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            backend="causal",
            max_length=max_length,
            batch_size=batch_size,
            softmax_dtype=torch.float32,  # in bfloat16 a sum of hundreds of nats is rounded to 2
        )

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
        """Every row ends with its own EOS: lm-eval would go on to the last one's, and then drop the
        EOS but not what follows it."""
        with self._model.evaluation_length(self.max_length):
            return super()._model_generate(*args, eos_token_id=self.eot_token_id, **how)

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Encodes prompts; `left_truncate_len` leaves room for the generated tokens."""
        ids, mask = super().tok_batch_encode(strings, padding_side)
        if left_truncate_len is not None:
            self._check(ids.shape[1] + self.max_length - left_truncate_len)
        return ids, mask

    def _check(self, needed: int) -> None:
        if needed > self.max_length:
            raise ValueError(
                f"a prompt and its answer have {needed:,} tokens, more than --max_length "
                f"{self.max_length:,}: raise it, or give fewer examples (--num_fewshot)"
            )
