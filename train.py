"""Pre-train a decoder: compose the configuration, build the parts, train, save, report.

python train.py position=tape                      # minutes on two cores
python train.py position=rope model=base experiment=paper data=text data.files=corpus/
python train.py -m position=tape,rope,alibi seed=0,1,2
"""

import logging
import sys
from pathlib import Path

import hydra
import transformers
from omegaconf import DictConfig, OmegaConf
from transformers import set_seed

from tape.data import TokenBlocks, load_tokenizer, tokenize_corpus, train_tokenizer
from tape.training.build import build_model
from tape.training.report import write_report
from tape.training.runs import claim, last_complete
from tape.training.trainer import LanguageModelTrainer, NonFiniteLoss

log = logging.getLogger(__name__)


def run(cfg: DictConfig) -> str:
    """One run, from its configuration to the text of its report."""
    settings = OmegaConf.to_container(cfg, resolve=True)
    folder, cache = Path(cfg.output_dir), Path(cfg.cache_dir)
    arguments = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    corpus = hydra.utils.instantiate(cfg.data, _convert_="all")
    claim(folder, settings)
    transformers.logging.disable_progress_bar()
    set_seed(cfg.seed)

    log.info(corpus.describe())
    if cfg.tokenizer is None:
        tokenizer = train_tokenizer(corpus, cfg.vocab_size, cache)
    else:
        tokenizer = load_tokenizer(cfg.tokenizer)
    streams = {
        split: tokenize_corpus(corpus, split, tokenizer, cache) for split in ("train", "validation")
    }
    model = build_model(settings["model"], settings["position"], tokenizer)
    log.info(
        "position %s, attention %s, %s parameters, %s training and %s validation tokens",
        model.config.position["name"],
        model.config._attn_implementation,
        f"{model.num_parameters():,}",
        *(f"{len(stream):,}" for stream in streams.values()),
    )
    trainer = LanguageModelTrainer(
        model=model,
        args=arguments,
        length=cfg.length,
        train_dataset=TokenBlocks(streams["train"], cfg.length),
        eval_dataset=TokenBlocks(streams["validation"], cfg.length, limit=cfg.eval_blocks),
        processing_class=tokenizer,
    )
    checkpoint = last_complete(folder)
    if checkpoint is not None:
        log.info("continuing from %s", checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    trainer.save_final()
    report = ""
    if trainer.is_world_process_zero():
        report = write_report(
            folder,
            trainer.accelerator.unwrap_model(trainer.model),
            tokenizer,
            streams["validation"],
            cfg.length,
            cfg.report.tokens,
            cfg.seed,
        )
        print(report)
        log.info("model, tokenizer and report are in %s", folder)
    return report


@hydra.main(version_base=None, config_path="config", config_name="train")
def main(cfg: DictConfig) -> None:
    try:
        run(cfg)
    except (ValueError, FileNotFoundError, NonFiniteLoss) as error:
        if cfg.debug:
            raise
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
