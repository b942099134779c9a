"""TAPE and its baselines: Llama decoders with pluggable positional encodings."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tape.configuration import TapeConfig
from tape.modeling import TapeForCausalLM, TapeModel, TapePreTrainedModel

__all__ = ["TapeConfig", "TapeForCausalLM", "TapeModel", "TapePreTrainedModel"]

AutoConfig.register(TapeConfig.model_type, TapeConfig)
AutoModel.register(TapeConfig, TapeModel)
AutoModelForCausalLM.register(TapeConfig, TapeForCausalLM)
