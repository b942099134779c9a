"""Models of this project as models of the Language Model Evaluation Harness (lm-eval)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import PreTrainedTokenizerBase

from tape.evaluation.zero_shot import metric_name
from tape.model.modeling import TapeForCausalLM
from tape.validation import suggestion

# Its warnings are about settings of its own command line.
logging.getLogger("lm_eval").setLevel(logging.ERROR)


BABILONG = "babilong"


def prompt_lengths(tasks: Sequence[str], lengths: Sequence[int]) -> Sequence[int] | str:
    """Returns the lengths in the form that the tasks read. The prompts of BABILong come in lengths
    of their own, of which a run has one: 4k for 4,096 tokens.

    Raises:
        ValueError: if BABILong has other lengths, or beside other tasks.
    """
    ours = [name for name in tasks if name.startswith(BABILONG)]
    if not ours:
        return lengths
    if len(ours) < len(tasks) or len(lengths) > 1 or lengths[0] % 1024:
        raise ValueError(
            f"--lengths {' '.join(map(str, lengths))} with --tasks {','.join(tasks)}: BABILong "
            "takes one multiple of 1,024 and no other tasks; repeat the command for each length"
        )
    return f"{lengths[0] // 1024}k"


class Tasks(TaskManager):
    """Tasks of lm-eval, which are checked when they are loaded: before the first question.

    Args:
        metric: a metric that one of them must have; None for any.
        lengths: of the prompts of RULER's tasks, whose metrics are lengths, and of BABILong's.
    """

    def __init__(self, metric: str | None = None, lengths: Sequence[int] = (), **where: Any):
        super().__init__(**where)
        self.metric, self.lengths = metric, [*map(str, lengths)]

    def load(self, names: Any) -> Any:
        found = super().load(names)
        known = {*self.lengths}
        for name, task in found["tasks"].items():
            with_lengths = name.startswith(BABILONG) or any(map(str.isdecimal, task.aggregation()))
            if self.lengths and not with_lengths:
                raise ValueError(f"--lengths: {name} has no prompts of given lengths; omit it")
            kinds = [each["name"] for each in task.config.filter_list or [{"name": "none"}]]
            known |= {metric_name(metric, kind) for metric in task.aggregation() for kind in kinds}
        if self.metric is not None and self.metric not in known:
            raise ValueError(f"unknown --metric {self.metric!r}{suggestion(self.metric, known)}")
        return found


class Harness(HFLM):
    """A model for prompts and answers of up to `max_length` tokens together. Longer ones raise a
    ValueError, where lm-eval would leave out the beginning.

    Args:
        truncate: leave out the beginning.
    """

    def __init__(
        self,
        model: TapeForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        batch_size: int = 1,
        truncate: bool = False,
    ):
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            backend="causal",
            max_length=max_length,
            batch_size=batch_size,
            softmax_dtype=torch.float32,  # in bfloat16 a sum of hundreds of nats is rounded to 2
        )
        self.truncate = truncate

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], *args: Any, **how: Any
    ) -> list[tuple[float, bool]]:
        """Returns the log-likelihood of each answer, and whether greedy decoding gives it."""
        for _, prompt, answer in requests:
            self._check(len(prompt) + len(answer) - 1)  # the last token is predicted and not read
            if len(answer) > self.max_length:
                raise ValueError(
                    f"one answer has {len(answer):,} tokens, more than --max_length "
                    f"{self.max_length:,}: raise --max_length"
                )
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
            ids, mask = ids[:, -left_truncate_len:], mask[:, -left_truncate_len:]
        return ids, mask

    def _check(self, needed: int) -> None:
        if needed > self.max_length and not self.truncate:
            raise ValueError(
                f"a prompt and its answer have {needed:,} tokens, more than --max_length "
                f"{self.max_length:,}: raise it, give fewer examples (--num_fewshot), or use "
                "--truncate to drop the beginning of the prompt"
            )
