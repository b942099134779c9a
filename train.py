"""Pre-train a decoder: compose the configuration, build the parts, train, save, report.

python train.py position=tape                      # minutes on two cores
python train.py position=rope model=base experiment=paper data=text data.files=corpus/
python train.py -m position=tape,rope,alibi seed=0,1,2
"""

import atexit
import logging
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import hydra
import torch
import transformers
from accelerate.utils import broadcast_object_list
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from transformers import TrainingArguments, set_seed

from tape import origin
from tape.adapters import Method, adapt, describe
from tape.data import StreamedBlocks
from tape.evaluation.checkpoint import load_model, restore
from tape.files import write_text
from tape.frozen import check_frozen, hold
from tape.modeling import TapeForCausalLM
from tape.names import suggestion
from tape.training.arguments import check_numbers, check_training, sequences_per_step
from tape.training.build import adapt_model, build_model, identity
from tape.training.guard import STOPPED, NonFiniteLoss, Stopped
from tape.training.runs import claim, last_complete, locked, step_of
from tape.training.streaming import ContinuedStream, follow_stream
from tape.training.task import Task
from tape.training.trainer import LanguageModelTrainer

CONFIG = Path(__file__).parent / "config"
log = logging.getLogger(__name__)


def instantiate(settings: DictConfig) -> Any:
    """What a `_target_` makes of its settings, with its own error and not hydra's around it."""
    try:
        return hydra.utils.instantiate(settings, _convert_="all")
    except InstantiationException as error:
        raise error.__cause__ or error from None


def run(cfg: DictConfig) -> str:
    """One run, from its configuration to the text of its report."""
    with locked(Path(cfg.output_dir)):
        return _run(cfg)


def begin(
    folder: Path, settings: dict[str, Any], arguments: TrainingArguments
) -> tuple[dict[str, Any], Path | None, bool]:
    """Make the folder that of this run. What is recorded of it, the checkpoint that all processes
    continue from, or None, and whether the run ends with it."""
    checkpoint = None
    if arguments.process_index == 0:
        checkpoint = last_complete(folder)
        if checkpoint is not None and step_of(checkpoint) > arguments.max_steps:
            raise ValueError(
                f"{checkpoint} is beyond trainer.max_steps={arguments.max_steps}; raise it, or "
                f"give the shorter run another name=..."
            )
        settings = claim(folder, settings)
        origin.record(folder)
    checkpoint = broadcast_object_list([checkpoint])[0]
    return (
        settings,
        checkpoint,
        checkpoint is not None and step_of(checkpoint) == arguments.max_steps,
    )


def make_model(
    settings: dict[str, Any], method: Method | None, task: Task
) -> tuple[TapeForCausalLM, dict[str, Any]]:
    """A new model, or that of `base_model`, and what is recorded of it."""
    base, chosen = settings["base_model"], (settings["model"], settings["position"], task.tokenizer)
    if base:
        model = adapt_model(base, *chosen, settings["frozen"])
        return model, {"position": model.config.position, "base_weights": identity(base)}
    if method:
        raise ValueError(f"peft={method.name} adapts a trained model: give base_model=...")
    return build_model(*chosen), {}


def _run(cfg: DictConfig) -> str:
    settings = OmegaConf.to_container(cfg, resolve=True)
    check_numbers(settings)
    folder, arguments = Path(cfg.output_dir), instantiate(cfg.trainer)
    check_training(arguments)
    method = Method.of(settings["peft"]) if settings["peft"] else None
    check_frozen(settings["frozen"], method, arguments.bf16)
    if Path(arguments.output_dir) != folder:
        raise ValueError(
            f"trainer.output_dir={arguments.output_dir} and output_dir={folder}: set the latter"
        )
    main = arguments.process_index == 0
    if not main:
        logging.getLogger().setLevel(logging.WARNING)
    transformers.logging.disable_progress_bar()
    set_seed(cfg.seed)

    with arguments.main_process_first():  # the other processes find its work in the cache
        task = instantiate(cfg.task)(instantiate(cfg.data), settings, arguments)
    counted = {"tokens": task.fingerprints, "sequences_per_step": sequences_per_step(arguments)}
    model, found = make_model(settings, method, task)
    task.check(model)
    recorded, checkpoint, finished = begin(folder, settings | counted | found, arguments)
    log.info(
        "position %s, attention %s, %s parameters, %s",
        model.config.position["name"],
        model.config._attn_implementation,
        f"{model.num_parameters():,}",
        task.describe(),
    )
    if method:
        model = adapt(model, method, settings["base_model"], found["base_weights"])
        hold(model, settings["frozen"])
        log.info(describe(model))
    if finished:
        restore(model, checkpoint)
    streamed = isinstance(task.train, StreamedBlocks)
    if streamed:
        follow_stream(task.train, arguments, checkpoint)
    trainer = LanguageModelTrainer(
        model=model,
        args=arguments,
        length=cfg.length,
        measure=task.measure,
        train_dataset=task.train,
        eval_dataset=task.evaluation,
        data_collator=task.collate,
        processing_class=task.tokenizer,
    )
    if finished:
        log.info("finished at step %s: nothing to train", step_of(checkpoint))
    else:
        if checkpoint is not None:
            log.info("continuing from %s", checkpoint)
            if streamed:
                trainer.add_callback(ContinuedStream(trainer, checkpoint))
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        if trainer.guard.stopped:
            raise Stopped(f"stopped after step {trainer.state.global_step}, which is saved")
    trainer.save_final(recorded)
    if not main:
        return ""
    kernel = model.config._attn_implementation
    del trainer, model  # the report is on what was saved
    saved = load_model(folder, attn_implementation=kernel)
    report = task.report(folder, saved.to(arguments.device))
    print(report)
    log.info("model, tokenizer and report are in %s", folder)
    return report


def check_choices(overrides: list[str]) -> None:
    """Name the nearest file of a group where Hydra would only say that a choice does not exist."""
    for override in overrides:
        group, _, choices = override.partition("=")
        options = [path.stem for path in (CONFIG / group).glob("*.yaml")] if choices else []
        for choice in choices.split(",") if options else []:
            if choice not in (*options, "null"):
                sys.exit(f"error: unknown {group} {choice!r}{suggestion(choice, options)}")


@hydra.main(version_base=None, config_path="config", config_name="train")
def main(cfg: DictConfig) -> None:
    try:
        run(cfg)
    except (ValueError, TypeError, OSError, NonFiniteLoss) as error:
        if cfg.debug:
            raise
        sys.exit(f"error: {error}")
    except Stopped as stop:
        log.info("%s: the same command continues", stop)
        leave(STOPPED)
    except KeyboardInterrupt:
        log.info(
            "interrupted: the same command continues from the last checkpoint, if there is one"
        )
        leave(130)


def leave(status: int) -> NoReturn:
    """Exit; torchrun, which has a status of its own, is told of this one in a file.

    One of several processes ends without Python's last clean-up: threads of gloo that are still
    there when it begins abort the process now and then, and the run would count as failed.
    """
    if status and (told := os.environ.get("TAPE_STATUS")):
        write_text(Path(told), str(status))
    if torch.distributed.is_initialized():
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    check_choices(sys.argv[1:])
    main()
    leave(0)
