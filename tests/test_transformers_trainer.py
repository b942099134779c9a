"""transformers' Trainer trains and evaluates the decoder as it does a Llama."""

import numpy as np
import pytest
from conftest import fields_of_llama, make_model, random_tokens
from tokenizers import Tokenizer, models
from transformers import (
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

LENGTHS = [15, 9, 12, 4, 15, 7]


def make_rows():
    tokens = random_tokens(len(LENGTHS), max(LENGTHS))
    return [{"input_ids": row[:n].tolist()} for row, n in zip(tokens, LENGTHS, strict=True)]


@pytest.fixture
def trainer(tmp_path):
    """With transformers' own collator, which pads on the right."""
    words = Tokenizer(models.WordLevel({str(n): n for n in range(61)}, unk_token="0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0")

    def make(model, **arguments):
        set_seed(0)
        given = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
        given |= {"max_steps": 3, "learning_rate": 1e-2, "save_strategy": "no"}
        given |= {"report_to": "none", "disable_tqdm": True, "use_cpu": True}
        return Trainer(
            model,
            TrainingArguments(str(tmp_path), **given | arguments),
            train_dataset=make_rows(),
            eval_dataset=make_rows(),
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )

    return make


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"label_smoothing_factor": 0.2},
        {"gradient_accumulation_steps": 3},
        {"train_sampling_strategy": "group_by_length"},
        {"activation_checkpointing": True},
    ],
    ids=str,
)
def test_training_and_evaluation_equal_a_llamas(settings, trainer):
    ours, results = make_model("rope"), []
    llama = LlamaForCausalLM(LlamaConfig(**fields_of_llama(ours.config, "rope_parameters")))
    llama.load_state_dict(ours.state_dict())
    for model in (llama, ours):
        run = trainer(model, **settings)
        losses = [run.evaluate()["eval_loss"], run.train().training_loss]
        predicted = run.predict(make_rows())
        results.append([*losses, predicted.metrics["test_loss"], predicted.predictions])
    (*expected, their_logits), (*found, logits) = results
    assert found == pytest.approx(expected, abs=1e-5)
    real = predicted.label_ids != -100
    np.testing.assert_allclose(logits[real], their_logits[real], atol=1e-4)
