"""--chat gives prompts as messages in the checkpoint's template, and results say so."""

import json
import shutil

import pytest
from commands import run_command
from conftest import refuses
from test_import import TEMPLATE, make, write_gguf
from test_lm_eval import tasks  # noqa: F401

from tape.data import TextCorpus, train_tokenizer
from tape.evaluation import chat, lm_eval, questions
from tape.imports.models import import_model
from tape.model.checkpoint import load
from tape.tasks.passkey.passkey_task import PasskeyQuestions

HELD = "{% if add_generation_prompt %}<assistant>{% endif %}"
COMMAND = ("-m", "tape.cli")
KEYS = ("--task", "passkey", "--max_tokens", "300", "--interval", "300", "--num_tests", "1")


@pytest.fixture(scope="module")
def model(text, cache, tmp_path_factory):
    place = tmp_path_factory.mktemp("chat")
    tokenizer = train_tokenizer(TextCorpus(text), 300, cache)
    file = write_gguf(
        place / "a.gguf",
        make("llama", max_position_embeddings=512),
        tokenizer,
        own={"tokenizer.chat_template": TEMPLATE + HELD},
    )
    return import_model(file, place / "chat")


@pytest.fixture
def given(monkeypatch):
    """The prompts that the model is given."""
    prompts, greedy = [], questions.greedy

    def noted(model, rows, *how):
        prompts.extend(rows)
        return greedy(model, rows, *how)

    monkeypatch.setattr(questions, "greedy", noted)
    return prompts


def test_an_answer_in_a_sentence_is_not_cut(model):
    _, tokenizer = load(model)
    questions = chat.ChatQuestions(PasskeyQuestions(300, 300, 3, 1), tokenizer)
    (group,) = questions.groups(tokenizer)
    for question in group:
        answer = f"The pass key is {question.answer.values[0]}"
        written = [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
        assert questions.mark(question, written[: question.room], tokenizer).right


def test_pass_keys_are_asked_in_the_template(model, tmp_path, given):
    words = ("evaluate", model, *KEYS, "--depths", "1", "--processes", "1")
    run_command(*COMMAND, *words, "--chat", folder=tmp_path, succeeds=True)
    tokenizer = load(model)[1]
    (prompt,) = map(tokenizer.decode, given)
    assert prompt.startswith("<user>") and prompt.endswith("<assistant>") and "key" in prompt
    (results,) = (tmp_path / "output" / model.name).iterdir()
    assert results.name.endswith("_chat")
    recorded = [
        path
        for path in results.rglob("*.json*")
        if chat.check_template(tokenizer) in path.read_text()
    ]
    assert recorded
    run_command(*COMMAND, *words, folder=tmp_path, succeeds=True)  # has results of its own
    assert len([*(tmp_path / "output" / model.name).iterdir()]) == 2
    assert "<user>" not in tokenizer.decode(given[1])


def test_what_has_no_template_is_refused(model, tmp_path):
    plain = shutil.copytree(model, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    words = ("evaluate", plain, *KEYS, "--chat")
    outcome = run_command(*COMMAND, *words, folder=tmp_path)
    message = "error: --chat: the model's tokenizer has no chat template; leave it out"
    assert outcome.lines[-1] == message
    outcome = run_command(
        *COMMAND, "evaluate", model, *KEYS, "--chat", "--original", folder=tmp_path
    )
    assert outcome.lines[-1].startswith("error: --chat with --original")


def test_of_several_templates_the_default_is_taken(model):
    _, tokenizer = load(model)
    alone, asked = chat.check_template(tokenizer), PasskeyQuestions(300, 300, 1, 1)
    (question,) = next(iter(asked.groups(tokenizer)))
    ids = chat.ChatQuestions(asked, tokenizer).ids(question, tokenizer)
    tokenizer.chat_template = {"tool_use": "tools", "default": tokenizer.chat_template}
    assert chat.check_template(tokenizer) == alone
    assert chat.ChatQuestions(asked, tokenizer).ids(question, tokenizer) == ids
    del tokenizer.chat_template["default"]
    refuses("tokenizer has no chat template", chat.check_template, tokenizer)


def test_lm_eval_asks_in_the_template(model, tasks, tmp_path, monkeypatch):  # noqa: F811
    asked, score = [], lm_eval.Harness._loglikelihood_tokens

    def noted(self, requests, *how, **named):
        asked.extend(prompt for (prompt, _), _, _ in requests)
        return score(self, requests, *how, **named)

    monkeypatch.setattr(lm_eval.Harness, "_loglikelihood_tokens", noted)
    words = (
        "lm-eval",
        "--model",
        model,
        "--tasks",
        "sums",
        "--include_path",
        tasks,
        "--limit",
        "1",
    )
    for more, start in (
        (["--chat"], "<user>What is 0 and 2?<assistant>"),
        ([], "What is 0 and 2?"),
    ):
        asked.clear()
        out = tmp_path / f"{len(more)}.json"
        run_command(
            *COMMAND, *words, "--limit", "1", "--out", out, *more, folder=tmp_path, succeeds=True
        )
        assert asked and {*asked} == {start}
        assert ("chat" in json.loads(out.read_text())) == bool(more)
