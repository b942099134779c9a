"""Prompts in the chat template of a checkpoint, as the message of a user."""

import hashlib
from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedTokenizerBase

from tape.evaluation.questions import Answer, Batch, Question, Questions
from tape.model.modeling import TapeForCausalLM

# Tokens of an answer besides those of the task: chat models answer in a sentence, as in "The pass
# key is 12345." A cut answer would count as wrong.
SENTENCE = 32


def check_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a hash of the chat template, of several that named "default", for results; raises a
    ValueError if there is none."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if not isinstance(template, str):
        raise ValueError("--chat: the model's tokenizer has no chat template; leave it out")
    return hashlib.sha256(template.encode()).hexdigest()[:16]


class ChatQuestions(Questions):
    """Questions of a task as messages of a user. Lengths are those of the messages; the template
    adds tokens. Answers have room for a sentence."""

    def __init__(self, asked: Questions, tokenizer: PreTrainedTokenizerBase):
        if getattr(asked, "original", False):
            raise ValueError("--chat with --original: its answers continue the prompt; omit one")
        self.asked, self.template = asked, check_template(tokenizer)
        self.LIMIT = asked.LIMIT

    def settings(self) -> dict[str, Any]:
        return self.asked.settings() | {"chat": self.template, "chat_room": SENTENCE}

    def groups(self, tokenizer: PreTrainedTokenizerBase) -> Iterable[list[Question]]:
        for group in self.asked.groups(tokenizer):
            yield [self.in_chat(question, tokenizer) for question in group]

    def in_chat(self, question: Question, tokenizer: PreTrainedTokenizerBase) -> Question:
        if not isinstance(question.prompt, str):
            raise ValueError("--chat: the prompts of this task are no texts; leave it out")
        tokens, room = len(self.ids(question, tokenizer)), question.room + SENTENCE
        return question._replace(tokens=tokens, room=room)

    def check(self, model: TapeForCausalLM, batches: list[Batch], purpose: str = "") -> None:
        self.asked.check(model, batches, purpose)

    def mark(
        self, question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Answer:
        return self.asked.mark(question, written, tokenizer)

    def ids(self, question: Question, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Returns the tokens of a prompt in the template, up to where the answer begins. The
        template has the special tokens itself."""
        messages = [{"role": "user", "content": question.prompt}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return tokenizer(text, add_special_tokens=False)["input_ids"]
