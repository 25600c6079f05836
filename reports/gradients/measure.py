"""Measure the updates of the demo models, and of small models along their training; see README.md beside it.

python reports/gradients/measure.py WIKITEXT    # the file valid.txt.gz of WikiText-2; half an hour on two cores
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import torch
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from attngeo import attention_sites, symmetry
from attngeo.choices import Objective
from attngeo.gradients import GradientCallback, measure, read_batches
from attngeo.gradients.options import GradientOptions
from attngeo.pretrain.options import TextPretrainOptions
from attngeo.pretrain.text import prepare_text
from attngeo.scores.weights import SiteWeights

HERE = Path(__file__).parent
DEMO_SEEDS, TRAINING_SEEDS = range(5), range(2)
# Updates between two measurements of a training, and sequences of its length that are measured.
EVERY, SEQUENCES = 100, 192


class WeightCallback(TrainerCallback):
    """Copies of Wq and Wk at each measurement of a training, and one update later: step → those of each site."""

    def __init__(self) -> None:
        self._copies: dict[int, list[SiteWeights]] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Copy the first weights."""
        self._copy(state.global_step, given["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Copy the weights of a measurement, and those after the next update."""
        if state.global_step % EVERY in (0, 1):
            self._copy(state.global_step, given["model"])

    def _copy(self, step: int, model: Any) -> None:
        sites = attention_sites(model, dtype=torch.float64)
        self._copies[step] = [site._replace(wq=site.wq.clone(), wk=site.wk.clone()) for site in sites]

    def tabulate(self) -> pd.DataFrame:
        """Symmetry of W_qk of each head, and of its change by the next update and by the next 100 of the training."""
        frames = []
        for step in range(0, max(self._copies) + 1, EVERY):
            for site in range(len(self._copies[step])):
                columns = {"weight_symmetry": symmetry(*self._copies[step][site][1:]).tolist()}
                for name, updates in (("next_symmetry", 1), ("next_100_symmetry", EVERY)):
                    if step + updates in self._copies:
                        columns[name] = self._score_change(step, step + updates, site)
                frame = pd.DataFrame(columns).rename_axis("head").reset_index()
                frames.append(frame.assign(step=step, layer=self._copies[step][site].site.layer))
        return pd.concat(frames, ignore_index=True)

    def _score_change(self, before: int, after: int, site: int) -> list[float]:
        """The symmetry of W_qk of each head at a later step, less W_qk at an earlier one."""
        _, wq, wk = self._copies[before][site]
        _, later_wq, later_wk = self._copies[after][site]
        scores: list[float] = symmetry(torch.cat([later_wq, wq], -1), torch.cat([later_wk, -wk], -1)).tolist()
        return scores


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
    weights = WeightCallback()
    arguments = TrainingArguments(
        str(folder), max_steps=task.steps, warmup_steps=task.warmup, logging_steps=EVERY, learning_rate=options.lr,
        weight_decay=options.weight_decay, per_device_train_batch_size=options.batch_size, lr_scheduler_type="linear",
        report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True, seed=seed,
        remove_unused_columns=False, train_sampling_strategy="sequential", dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = task.make_trainer(
        task.model, arguments, train_dataset=task.data, data_collator=task.collator, processing_class=task.processor,
        callbacks=[callback, weights],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    frame = callback.frame.merge(weights.tabulate(), how="left", on=["step", "layer", "head"])
    return frame.assign(objective=objective, seed=seed)


if __name__ == "__main__":
    measure_demos(sys.argv[1]).to_csv(HERE / "demos.csv", index=False, float_format="%.5g")
    runs = []
    for seed in TRAINING_SEEDS:
        for objective in get_args(Objective):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(measure_training(objective, seed, Path(folder)))
            pd.concat(runs, ignore_index=True).to_csv(HERE / "training.csv", index=False, float_format="%.5g")
