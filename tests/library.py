"""Run the library's common tests and its test of training on the decoder with one encoding.

python tests/library.py FOLDER POSITION [TEST...]

FOLDER holds the `tests` of its source distribution. The last line is a JSON object: the name of
each test, and "" if it passed, null if it was skipped, or its traceback.
"""

import json
import sys
import unittest
from importlib import import_module
from types import ModuleType

import torch
from conftest import make_config, random_tokens

from tape import TapeForCausalLM
from tape.model.modeling import TapeModel

# Its tests import these, which are not in the distribution.
MISSING = {
    "exporters.test_export": "ExportTesterMixin",
    "generation.test_utils": "GenerationTesterMixin",
}
SHOW_WEIGHTS = (
    "test_capture_outputs_decorator",
    "test_model_outputs_equivalence",
    "test_retain_grad_hidden_states_attentions",
)


def load(folder):
    package = sys.modules["library"] = ModuleType("library")
    package.__path__ = [f"{folder}/tests"]
    for name, mixin in MISSING.items():
        sys.modules[f"library.{name.split('.')[0]}"] = ModuleType(name)
        module = sys.modules[f"library.{name}"] = ModuleType(name)
        setattr(module, mixin, type(mixin, (), {}))
    common = import_module("library.test_modeling_common")
    # By these names its tests know a decoder from one with a head.
    common.MODEL_MAPPING_NAMES["tape"] = "TapeModel"
    common.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["tape"] = "TapeForCausalLM"
    return common.ModelTesterMixin, import_module("library.test_training_mixin").TrainingTesterMixin


class Models:
    """What its tests ask for: a configuration and inputs."""

    is_training = True
    batch_size, seq_length = 3, 7
    num_hidden_layers, num_attention_heads, hidden_size = 2, 4, 32
    base_model_class, causal_lm_class = TapeModel, TapeForCausalLM

    def __init__(self, position, kernel):
        self.position, self.kernel = position, kernel

    def get_config(self):
        return make_config(
            self.position,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            hidden_size=self.hidden_size,
            max_position_embeddings=64,
            pad_token_id=0,
            attn_implementation=self.kernel,
        )

    def prepare_config_and_inputs_for_common(self):
        tokens = random_tokens(self.batch_size, self.seq_length).clamp(min=1)
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        return self.get_config(), inputs


def main(folder, position, *names):
    class Case(*load(folder), unittest.TestCase):
        all_model_classes = (TapeModel, TapeForCausalLM)
        test_can_init_all_missing_weights_before_2023 = True  # no file of ours has a year
        model_tester = None

        def setUp(self):
            kernel = "eager" if self._testMethodName in SHOW_WEIGHTS else "sdpa"
            self.model_tester = Models(position, kernel)

    outcomes = {}
    for name in names or unittest.TestLoader().getTestCaseNames(Case):
        result = unittest.TestResult()
        Case(name).run(result)
        wrong = [trace for _, trace in result.failures + result.errors]
        outcomes[name] = "\n".join(wrong) if wrong or not result.skipped else None
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
