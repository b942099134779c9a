"""The decoder: configuration, layers, what is prepared before them, cache, loss, checkpoints.

Importing it registers the decoder with transformers' Auto classes.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM, TapeModel, TapePreTrainedModel

__all__ = ["TapeConfig", "TapeForCausalLM", "TapeModel", "TapePreTrainedModel"]

AutoConfig.register(TapeConfig.model_type, TapeConfig)
AutoModel.register(TapeConfig, TapeModel)
AutoModelForCausalLM.register(TapeConfig, TapeForCausalLM)
