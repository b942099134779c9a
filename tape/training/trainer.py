"""transformers' Trainer with verified checkpoints and a guard before every step."""

import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from peft import PeftModel
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import PrinterCallback, ProgressCallback, Trainer, default_data_collator, set_seed
from transformers.trainer_utils import EvalLoopOutput

from tape.core.files import let_others_read, write_text, writing
from tape.core.hashing import keys_of
from tape.core.metrics import MetricsFile
from tape.core.provenance import TRAINED
from tape.core.run_folder import SAVING, clear_unfinished, finalize_checkpoint, remove_old, step_of
from tape.model.adapters import save_configuration
from tape.model.loss import IGNORED, predicted_positions
from tape.training import callbacks
from tape.training.optimizer import decayed, optimizer_of


def collated(
    sequences: list[Any], collate: Callable[[list[Any]], dict[str, torch.Tensor]], joined: bool
) -> dict[str, torch.Tensor]:
    """Collates sequences, and decides what a GPU would have to wait for the CPU to decide: which
    labels are predicted, and whether anything is padded. If batches are `joined` later, which
    labels are predicted is left out: their number differs."""
    batch = collate(sequences)
    if "attention_mask" in batch and bool(batch["attention_mask"].all()):
        del batch["attention_mask"]
    positions = None if joined else predicted_positions(batch["labels"])
    return batch if positions is None else batch | {"predicted_positions": positions}


class LanguageModelTrainer(Trainer):
    """Trainer for sequences of up to `length` tokens in training order, with the `rates` of
    `optimizer_of`. Each validation adds the results of `measure`."""

    def __init__(
        self,
        *args,
        length: int,
        data_collator: Callable[[list[Any]], dict[str, torch.Tensor]] = default_data_collator,
        measure: Callable[[torch.nn.Module], dict[str, float]],
        rates: Mapping[str, float],
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        # Accelerate reads a stream in one process, and joins the batches of all.
        joined = isinstance(self.train_dataset, IterableDataset) and self.args.world_size > 1
        self.data_collator = partial(collated, collate=data_collator, joined=joined)
        self.args.dataloader_pin_memory &= self.args.device.type == "cuda"
        self.length, self.measure, self.rates = length, measure, rates
        self.console, self.continued = callbacks.Console(), callbacks.Continued(self)
        self.guard = callbacks.StopAndNaNCallback(late=self.args.device.type == "cuda")
        for kind in (PrinterCallback, ProgressCallback):
            self.remove_callback(kind)
        # The console first: it adds the speed that the file records.
        for callback in (self.console, MetricsFile(), self.continued, self.guard):
            self.add_callback(callback)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        groups = self.accelerator.parallelism_config  # of `accelerate launch`
        if groups is not None and groups.non_data_parallel_size > 1:
            raise ValueError(f"{groups}: the processes of a run share no sequences and no heads")
        asked = self.args.fsdp_plugin_args is not None and self.args.world_size > 1
        if asked and not self.is_fsdp_enabled:
            # accelerate silently skips FSDP on CPUs, though it works there.
            state = self.accelerator.state
            state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True
        if self.is_fsdp_enabled:
            # It would round activations between layers, including the positional state; autocast
            # rounds only the inputs of matrix products, as with one process.
            self.accelerator.state.fsdp_plugin.mixed_precision_policy = None
        # A layer returns the positional state as a view; nothing modifies it in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")

    def train(self, resume_from_checkpoint: str | None = None, **kwargs) -> Any:
        if self.is_world_process_zero():
            clear_unfinished(Path(self.args.output_dir))
        try:
            with self.guard.listening():
                return super().train(resume_from_checkpoint, **kwargs)
        except UnpicklingError as error:
            raise ValueError(
                f"{resume_from_checkpoint} contains objects that are not loaded: remove it, to "
                "resume from the one before"
            ) from error

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        return decayed(model)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None and self.rates:
            self.optimizer = optimizer_of(model or self.model, self.args, self.rates)
        return super().create_optimizer(model)

    def training_step(self, model, inputs, *args, **kwargs) -> torch.Tensor:
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.guard.losses.append(loss.detach())
        self.console.tokens += inputs["input_ids"].numel() * self.args.world_size
        return loss

    def compute_loss(self, model, inputs, *args, **kwargs) -> Any:
        return super().compute_loss(model, inputs | {"skip_logits": True}, *args, **kwargs)

    def autocast_smart_context_manager(self, *args, **kwargs) -> AbstractContextManager:
        # For FSDP2 accelerate leaves autocast to the caller.
        return self.accelerator.autocast() if self.is_fsdp_enabled else nullcontext()

    def get_train_dataloader(self) -> DataLoader:
        loader = super().get_train_dataloader()
        loader.worker_init_fn = callbacks.ignore_sigterm
        return loader

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        # An evaluation draws random numbers, but must not affect training.
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        with torch.random.fork_rng(devices), self.model.evaluation_length(self.length):
            metrics = super().evaluate(*args, **kwargs)
            with self.accelerator.autocast():
                measured = self.measure(self.model.eval())
            if measured:
                measured = {f"eval_{name}": value for name, value in measured.items()}
                self.log(measured)
            return metrics | measured

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs) -> EvalLoopOutput:
        # Divides the summed loss by the number of labels: transformers averages the means of
        # batches, whatever their numbers of labels.
        self.summed = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        loss, count = self.summed.tolist()
        output.metrics[f"{metric_key_prefix}_loss"] = loss / count
        return output

    def prediction_step(self, model, inputs, *args, **kwargs) -> tuple:
        inputs = self._prepare_inputs(inputs)
        inputs.pop("predicted_positions", None)
        labels = F.pad(inputs.pop("labels")[:, 1:], (0, 1), value=IGNORED)
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        losses = F.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none"
        )
        each = torch.stack((losses.view_as(labels).double().sum(1), (labels != IGNORED).sum(1)), 1)
        # By sequence, so that duplicates in the last batches are dropped.
        each, last = self.accelerator.gather(each), self.accelerator.gradient_state
        drops = last.end_of_dataloader and last.remainder > 0
        self.summed += (each[: last.remainder] if drops else each).sum(0)
        return None, None, None

    def _get_output_dir(self, trial: Any) -> str:
        # transformers saves here; `_save_checkpoint` renames complete checkpoints.
        return str(Path(self.args.output_dir, SAVING))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # A process of which the checkpoint has no state would draw the first numbers again.
        if checkpoint is not None:
            key = keys_of(self.args.seed, step_of(Path(checkpoint)), self.args.process_index)
            set_seed(int(key[0] >> 32))
        super()._load_rng_state(checkpoint)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        folder, step = Path(self.args.output_dir), self.state.global_step
        work, target = folder / SAVING / f"checkpoint-{step}", folder / f"checkpoint-{step}"
        if not self._weights_are_finite(model):
            raise callbacks.NonFiniteLoss(f"weights are not finite after step {step}: not saved")
        self.continued.record()
        with writing(work):
            super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()  # each process writes its part
        if self.is_world_process_zero():
            finalize_checkpoint(work, target)
            work.parent.rmdir()
            remove_old(target, self.args.save_total_limit)
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            if isinstance(self.model, PeftModel):
                save_configuration(self.model, folder)
            let_others_read(folder)

    def _weights_are_finite(self, model: torch.nn.Module) -> bool:
        shards = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
        finite = all(bool(torch.isfinite(shard).all()) for shard in shards)
        return bool(self.accelerator.gather(torch.tensor([finite], device=self.args.device)).all())

    def save_final(self, configuration: dict[str, Any]) -> None:
        """Saves the model, its tokenizer and the run's configuration, each file atomically."""
        folder = Path(self.args.output_dir)
        work = folder / ".final"
        self.model.config.use_cache = True  # transformers disables it for training
        with writing(work):
            self.save_model(str(work), _internal_call=True)
        if self.is_world_process_zero():
            (work / "training_args.bin").unlink(missing_ok=True)  # an unneeded pickle
            (folder / TRAINED).unlink(missing_ok=True)  # it describes the weights replaced here
            for path in work.iterdir():
                path.replace(folder / path.name)
            work.rmdir()
            write_text(folder / TRAINED, json.dumps(configuration, indent=1) + "\n")
