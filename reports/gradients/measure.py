"""Measure the updates of the demo models, and of small models along their training; see README.md beside it.

python reports/gradients/measure.py WIKITEXT    # the file valid.txt.gz of WikiText-2; half an hour on two cores
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import get_args

import pandas as pd
from transformers import PrinterCallback, TrainingArguments

from attngeo.choices import Objective
from attngeo.gradients import GradientCallback, measure, read_batches
from attngeo.gradients.options import GradientOptions
from attngeo.pretrain.options import TextPretrainOptions
from attngeo.pretrain.text import prepare_text

HERE = Path(__file__).parent
DEMO_SEEDS, TRAINING_SEEDS = range(5), range(2)
# Updates between two measurements of a training, and sequences of its length that are measured.
EVERY, SEQUENCES = 100, 192


def measure_demos(wikitext: str) -> pd.DataFrame:
    """Both demo models on two texts, by both objectives: five draws of 96 sequences of 32 tokens, as in training."""
    frames = [
        measure(model, text=text, objective=objective, sequences=96, seq_len=32, seed=seed).rows.assign(
            text=name, seed=seed
        )
        for model in ("demo:encoder", "demo:decoder")
        for name, text in (("austen", "austen"), ("wikitext-2", wikitext))
        for objective in ("mlm", "clm")
        for seed in DEMO_SEEDS
    ]
    return pd.concat(frames, ignore_index=True)


def measure_training(objective: Objective, seed: int, folder: Path) -> pd.DataFrame:
    """A run of the preset `tiny`, measured on fixed sequences of the text that it is trained on."""
    options = TextPretrainOptions.of("tiny", objective=objective, seed=seed)
    task = prepare_text(options, processes=1)
    about = GradientOptions(objective=objective, sequences=SEQUENCES, seq_len=options.seq_len, seed=1)
    callback = GradientCallback(read_batches(task.processor, about), objective)
    arguments = TrainingArguments(
        str(folder), max_steps=task.steps, warmup_steps=task.warmup, logging_steps=EVERY, learning_rate=options.lr,
        weight_decay=options.weight_decay, per_device_train_batch_size=options.batch_size, lr_scheduler_type="linear",
        report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True, seed=seed,
        remove_unused_columns=False, train_sampling_strategy="sequential", dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = task.make_trainer(
        task.model, arguments, train_dataset=task.data, data_collator=task.collator, processing_class=task.processor,
        callbacks=[callback],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return callback.frame.assign(objective=objective, seed=seed)


if __name__ == "__main__":
    measure_demos(sys.argv[1]).to_csv(HERE / "demos.csv", index=False, float_format="%.5g")
    runs = []
    for seed in TRAINING_SEEDS:
        for objective in get_args(Objective):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(measure_training(objective, seed, Path(folder)))
            pd.concat(runs, ignore_index=True).to_csv(HERE / "training.csv", index=False, float_format="%.5g")
