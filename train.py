"""Pre-train a decoder: compose the configuration, build the parts, train, save, report.

python train.py position=tape                      # minutes on two cores
python train.py position=rope model=base experiment=paper data=text data.files=corpus/
python train.py -m position=tape,rope,alibi seed=0,1,2
"""

import logging
import sys
from pathlib import Path
from typing import Any

import hydra
import transformers
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from transformers import default_data_collator, set_seed

from tape.data import (
    StreamedBlocks,
    TokenBlocks,
    load_tokenizer,
    tokenize_corpus,
    train_tokenizer,
    training_blocks,
)
from tape.modeling import TapeForCausalLM
from tape.names import suggestion
from tape.training.build import build_model
from tape.training.report import write_report
from tape.training.runs import claim, last_complete, locked, step_of
from tape.training.streaming import ContinuedStream, follow_stream, sequences_per_step
from tape.training.trainer import LanguageModelTrainer, NonFiniteLoss

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


def _run(cfg: DictConfig) -> str:
    settings = OmegaConf.to_container(cfg, resolve=True)
    folder, cache = Path(cfg.output_dir), Path(cfg.cache_dir)
    arguments, corpus = instantiate(cfg.trainer), instantiate(cfg.data)
    transformers.logging.disable_progress_bar()
    set_seed(cfg.seed)

    log.info(corpus.describe())
    if cfg.tokenizer is None:
        tokenizer = train_tokenizer(corpus, cfg.vocab_size, cache)
    else:
        tokenizer = load_tokenizer(cfg.tokenizer)
    order = cfg.seed if arguments.data_seed is None else arguments.data_seed
    train_blocks = training_blocks(corpus, tokenizer, cfg.length, cache, order)
    validation = tokenize_corpus(corpus, "validation", tokenizer, cache)
    eval_blocks = TokenBlocks(validation, cfg.length, limit=cfg.eval_blocks)
    model = build_model(settings["model"], settings["position"], tokenizer)

    content = {"train": train_blocks.fingerprint, "validation": validation.fingerprint}
    streamed = isinstance(train_blocks, StreamedBlocks)
    if streamed:  # its place is counted in steps, so all of them must be of one size
        content["sequences_per_step"] = sequences_per_step(arguments)
    claim(folder, settings | {"tokens": content})
    checkpoint = last_complete(folder)
    finished = checkpoint is not None and step_of(checkpoint) >= arguments.max_steps
    if finished and step_of(checkpoint) > arguments.max_steps:
        raise ValueError(
            f"{checkpoint} is beyond trainer.max_steps={arguments.max_steps}; raise it, or give "
            f"the shorter run another name=..."
        )
    if finished:
        model = TapeForCausalLM.from_pretrained(
            checkpoint, attn_implementation=model.config._attn_implementation
        )
    log.info(
        "position %s, attention %s, %s parameters, training tokens: %s, validation tokens: %s",
        model.config.position["name"],
        model.config._attn_implementation,
        f"{model.num_parameters():,}",
        train_blocks.describe(),
        f"{len(validation):,}",
    )
    if streamed:
        follow_stream(train_blocks, arguments, checkpoint)
    trainer = LanguageModelTrainer(
        model=model,
        args=arguments,
        length=cfg.length,
        train_dataset=train_blocks,
        eval_dataset=eval_blocks,
        data_collator=default_data_collator,
        processing_class=tokenizer,
    )
    if finished:
        log.info("finished at step %s: nothing to train", step_of(checkpoint))
    else:
        if checkpoint is not None:
            log.info("continuing from %s", checkpoint)
            if streamed:
                trainer.add_callback(ContinuedStream(trainer, checkpoint))
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    trainer.save_final()
    if not trainer.is_world_process_zero():
        return ""
    trained = trainer.accelerator.unwrap_model(trainer.model)
    report = write_report(
        folder, trained, tokenizer, validation, cfg.length, cfg.report.tokens, cfg.seed
    )
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
    except KeyboardInterrupt:
        log.info("interrupted: the same command continues from the last checkpoint")
        sys.exit(130)


if __name__ == "__main__":
    check_choices(sys.argv[1:])
    main()
