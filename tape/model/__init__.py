"""The decoder: configuration, layers, what is prepared before them, cache, loss, checkpoints.

Importing it registers the decoder with transformers' Auto classes.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM, TapeModel, TapePreTrainedModel

__all__ = ["TapeConfig", "TapeForCausalLM", "TapeModel", "TapePreTrainedModel"]

# transformers' Trainer shifts the labels of these models when it smooths them.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[TapeConfig.model_type] = TapeForCausalLM.__name__
AutoConfig.register(TapeConfig.model_type, TapeConfig)
AutoModel.register(TapeConfig, TapeModel)
AutoModelForCausalLM.register(TapeConfig, TapeForCausalLM)
