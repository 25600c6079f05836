"""Training on images: classifiers by the recipe of Saponati et al. 2025 (arXiv 2502.10927), section S3.

Where that section gives no number, it is the one of the recipe that it follows otherwise: torchvision's for ViT-B/16.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors.torch import load_model, save_model
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Subset
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    ViTImageProcessorPil,
)

from attngeo.errors import DataError, UsageError
from attngeo.pretrain.imagesets import ImageSplit, ShuffledImages, open_images
from attngeo.pretrain.initialisation import check_init, initialise
from attngeo.pretrain.mixing import MixupCutmixCollator
from attngeo.pretrain.models import build_classifier, image_config
from attngeo.pretrain.settings import Settings
from attngeo.pretrain.tasks import Task
from attngeo.pretrain.trainer import RunTrainer

# S3: the average's decay, before it is adjusted, and the updates of the model between those of the average.
EMA_EVERY = 32
EMA_FILE = "average.safetensors"
# S3: the learning rate at step 0, as a share of that after the warm-up.
FIRST_RATE = 0.033
# Where a configuration does not say.
IMAGE_SIZE = 224
# Processes that decode images for each GPU, which would wait for one alone.
MOST_DECODERS = 8


def prepare_images(settings: Settings, processes: int) -> Task:
    """Everything a run on images needs. Raises UsageError, DataUnavailableError and DataError."""
    size = image_size(image_config(settings, [], channels=3), settings.model)
    check_init(settings.init)
    data = open_images(settings.data, seed=settings.seed)
    train, test = ImageSplit(data, "train", size), ImageSplit(data, "test", size)
    batch = settings.batch_size * processes
    if len(train) < batch:
        raise DataError(
            f"{data.name} has {len(train):,} images to train on, expected at least one batch of {batch}; give more, or "
            "lower --batch-size"
        )
    images = batch * settings.grad_accum  # of an update
    updates = math.ceil(len(train) / images)  # of an epoch
    steps, warmup = _steps_and_warmup(settings, updates)
    transformers.set_seed(settings.seed)  # the weights depend on the seed alone, not on what was drawn before them
    model = build_classifier(image_config(settings, data.labels, data.channels))
    changed = initialise(model, settings.init, seed=settings.seed)
    average = ModelEMA(model, ema_decay(settings.ema_decay, images, steps / updates))
    smoothing = settings.label_smoothing
    about = {
        "name": data.name, "images": len(train), "test_images": len(test), "labels": len(data.labels),
        "label_column": data.label, "epochs": round(steps * images / len(train), 3), "channels": data.channels,
        "image_size": size, "ema_decay": average.decay,
    }  # fmt: skip
    return Task(
        model=model,
        data=ShuffledImages(train, steps * images, settings.seed),
        collator=MixupCutmixCollator(len(data.labels), settings.mixup, settings.cutmix, settings.seed),
        processor=processor_of(size, data.channels),
        trainer=partial(ImageTrainer, average=average, smoothing=smoothing),
        steps=steps,
        warmup=warmup,
        changed=changed,
        about=about,
        rates=_image_rate,
        others={"model-ema": lambda: average.model},
        finish=partial(evaluated, test, average, smoothing),
    )


def _steps_and_warmup(settings: Settings, updates: int) -> tuple[int, int]:
    """Steps of the run and of its warm-up, an epoch being so many updates."""
    steps = settings.steps or settings.epochs * updates
    warmup = settings.warmup or settings.warmup_epochs * updates
    if warmup > steps:
        raise UsageError(
            f"warmup_epochs is {settings.warmup_epochs}, here {warmup} steps, expected at most the {steps} of the run; "
            "give --warmup STEPS"
        )
    return steps, warmup


def _image_rate(images: int, seconds: float) -> dict[str, float]:
    return {"images": images, "images_per_second": round(images / max(seconds, 1e-9), 1)}


def image_size(config: PreTrainedConfig, name: str) -> int:
    """Height and width of the images that a model takes. Raises UsageError where they differ or patches do not fit."""
    config = getattr(config, "vision_config", config)
    sizes, patches = (_pair(getattr(config, key, None)) for key in ("image_size", "patch_size"))
    height, width = sizes or (IMAGE_SIZE, IMAGE_SIZE)
    if height != width:
        raise UsageError(f"{name}: image_size is {height} × {width}, expected a square; set one number")
    for patch in patches or ():
        if height % patch:
            raise UsageError(
                f"{name}: patch_size {patch} does not divide image_size {height}; make image_size a multiple of it"
            )
    return height


def _pair(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    return (int(size[0]), int(size[-1])) if size else None


def processor_of(size: int, channels: int) -> ViTImageProcessorPil:
    """What makes a model's input of an image, to be saved beside the model: the same as `imagesets.pixels`."""
    return ViTImageProcessorPil(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size}, do_center_crop=True,
        do_convert_rgb=channels == 3, image_mean=[0.5] * channels, image_std=[0.5] * channels,
    )  # fmt: skip


class ModelEMA(AveragedModel):
    """The exponential moving average of a model's weights: decay · average + (1 − decay) · weights."""

    def __init__(self, model: PreTrainedModel, decay: float) -> None:
        super().__init__(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)  # type: ignore[no-untyped-call]
        self.decay = decay

    @property
    def model(self) -> PreTrainedModel:
        """A model with the averaged weights."""
        return cast("PreTrainedModel", self.module)


def ema_decay(decay: float, images: int, epochs: float) -> float:
    """What the average keeps of itself when it moves, which is every 32 steps of so many images.

    1 − min(1, (1 − decay) · images · 32 / epochs), decay being 0.99998 in S3. Over a run, the average then forgets as
    much whatever the batch and the epochs; but less, the smaller the data set. With ImageNet's it spans a 25th of
    the run, with CIFAR-10's all of it; with fewer it stays near the weights at the end of the warm-up.
    Source: references/classification/train.py of github.com/pytorch/vision, after pycls.
    """
    return 1 - min(1.0, (1 - decay) * images * EMA_EVERY / epochs)


def schedule(optimizer: Optimizer, warmup: int, steps: int) -> LambdaLR:
    """The learning rate: linear from 0.033 of its peak during warm-up, then a cosine down to 0."""

    def share(step: int) -> float:
        if step < warmup:
            return FIRST_RATE + (1 - FIRST_RATE) * step / warmup
        return (1 + math.cos(math.pi * min((step - warmup) / max(steps - warmup, 1), 1))) / 2

    return LambdaLR(optimizer, share)


def soft_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Mean over a batch; targets [batch] are labels, or [batch, labels] shares of them."""
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)


def image_workers(args: TrainingArguments) -> int:
    """How many processes decode images beside this one, which does it itself where it has no GPU to feed."""
    return min(MOST_DECODERS, (os.cpu_count() or 1) // args.world_size) if args.device.type == "cuda" else 0


class ImageTrainer(RunTrainer):
    """Trains a classifier on shares of labels, with a cosine schedule, and averages its weights.

    average: of the model's weights; it is kept in checkpoints and taken up from them.
    """

    def __init__(self, *args: Any, average: ModelEMA, smoothing: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Batches are all of one size, so that the mean over accumulated batches is that of their means.
        self.loss_is_scaled_for_ga = self.model_accepts_loss_kwargs = False
        self._average, self._smoothing = average.to(self.args.device), smoothing
        self.args.dataloader_num_workers = image_workers(self.args)
        self.add_callback(_Averaging(average, self.args.warmup_steps))

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,  # noqa: ARG002 - the Trainer's signature
    ) -> Any:
        """Cross-entropy with the shares of a batch's labels."""
        outputs = model(pixel_values=inputs["pixel_values"])
        loss = soft_cross_entropy(outputs["logits"], inputs["targets"], self._smoothing)
        return (loss, outputs) if return_outputs else loss

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LambdaLR:
        """See `schedule`."""
        if self.lr_scheduler is None:
            warmup = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = schedule(optimizer or cast("Optimizer", self.optimizer), warmup, num_training_steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """And the average: before the mark is written, which says that a checkpoint is whole."""
        super()._save_optimizer_and_scheduler(output_dir)
        if self.is_world_process_zero():
            save_model(self._average, str(Path(output_dir) / EMA_FILE))

    def resume(self, checkpoint: Path | None) -> None:
        """Train from a checkpoint of `last_checkpoint`, or from the start."""
        if checkpoint is not None:
            load_model(self._average, checkpoint / EMA_FILE)
        with _one_line():
            super().resume(checkpoint)


class _Averaging(TrainerCallback):
    """Every 32 steps, from the first: the average is a copy of the model during warm-up, and moves after it.

    Source: references/classification/train.py of github.com/pytorch/vision.
    """

    def __init__(self, average: ModelEMA, warmup: float) -> None:
        self._average, self._warmup = average, warmup

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:  # noqa: ARG002
        if state.global_step % EMA_EVERY == 1:
            self._average.update_parameters(given["model"])
            if state.global_step <= self._warmup:
                self._average.n_averaged.zero_()


@contextmanager
def _one_line() -> Iterator[None]:
    """A DataError as it was raised: from a process that decodes images, it comes with a traceback around it."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error).strip().splitlines()[-1].removeprefix("attngeo.errors.DataError: ")) from error


@_one_line()
@torch.inference_mode()
def evaluated(pictures: ImageSplit, average: ModelEMA, smoothing: float, trainer: RunTrainer) -> Mapping[str, float]:
    """Mean loss, with the smoothing of training, and share of right answers: of the model and of the average."""
    args = trainer.args
    own = Subset(pictures, range(args.process_index, len(pictures), args.world_size))
    batches = DataLoader(own, args.per_device_train_batch_size, num_workers=args.dataloader_num_workers)
    models = {"eval": cast("PreTrainedModel", trainer.model), "ema": average.model}
    for model in models.values():
        model.train(mode=False)
    sums = torch.zeros(len(models), 2, device=args.device)
    for images, labels in batches:
        images, labels = images.to(args.device), labels.to(args.device)
        for row, model in zip(sums, models.values(), strict=True):
            with trainer.accelerator.autocast():
                logits = model(pixel_values=images)["logits"]
            row[0] += soft_cross_entropy(logits, labels, smoothing) * len(labels)
            row[1] += (logits.argmax(-1) == labels).sum()
    means = (trainer.accelerator.reduce(sums, "sum") / len(pictures)).tolist()
    return {
        f"{name}_{what}": round(value, 6)
        for name, values in zip(models, means, strict=True)
        for what, value in zip(("loss", "accuracy"), values, strict=True)
    }
