"""A training run on images: its model, its data and its evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
import transformers
from torch.utils.data import DataLoader, Subset
from transformers import PreTrainedConfig, PreTrainedModel

from attngeo.errors import DataError, UsageError
from attngeo.pretrain.images.ema import ModelEMA, adapt_decay
from attngeo.pretrain.images.mixup import MixupCutmixCollator
from attngeo.pretrain.images.sources import open_images
from attngeo.pretrain.images.splits import ImageSplit, ShuffledImages, make_processor, unwrap_worker_errors
from attngeo.pretrain.images.trainer import ImageTrainer, soft_cross_entropy
from attngeo.pretrain.initialisation import check_init, initialise
from attngeo.pretrain.models import build_classifier, configure_images
from attngeo.pretrain.options import ImagePretrainOptions
from attngeo.pretrain.tasks import TrainingTask
from attngeo.pretrain.trainer import RunTrainer

# If a configuration has no image_size.
IMAGE_SIZE = 224


def prepare_images(options: ImagePretrainOptions, processes: int) -> TrainingTask:
    """Everything that a run on images needs. Raises UsageError, DataUnavailableError and DataError."""
    size = read_image_size(configure_images(options, [], channels=3), options.model)
    check_init(options.init)
    data = open_images(options.data, seed=options.seed)
    processor = make_processor(size, data.channels)
    train, test = ImageSplit(data, "train", processor), ImageSplit(data, "test", processor)
    batch = options.batch_size * processes
    if len(train) < batch:
        raise DataError(
            f"{data.name} has {len(train):,} images to train on, expected at least one batch of {batch}; give more, or "
            "lower --batch-size"
        )
    images_per_update = batch * options.grad_accum
    updates_per_epoch = math.ceil(len(train) / images_per_update)
    steps, warmup = _count_steps(options, updates_per_epoch)
    transformers.set_seed(options.seed)  # the weights depend on the seed alone, not on earlier draws
    model = build_classifier(configure_images(options, data.labels, data.channels))
    changed = initialise(model, options.init, seed=options.seed)
    average = ModelEMA(model, adapt_decay(options.ema_decay, images_per_update, steps / updates_per_epoch))
    smoothing = options.label_smoothing
    about = {
        "name": data.name, "images": len(train), "test_images": len(test), "labels": len(data.labels),
        "label_column": data.label, "epochs": round(steps * images_per_update / len(train), 3),
        "channels": data.channels, "image_size": size, "ema_decay": average.decay,
    }  # fmt: skip
    return TrainingTask(
        model=model,
        data=ShuffledImages(train, steps * images_per_update, options.seed),
        collator=MixupCutmixCollator(len(data.labels), options.mixup, options.cutmix, options.seed),
        processor=processor,
        make_trainer=partial(ImageTrainer, average=average, smoothing=smoothing),
        steps=steps,
        warmup=warmup,
        changed=changed,
        about=about,
        count_rates=_count_images,
        others={"model-ema": lambda: average.model},
        evaluate=partial(evaluate, test, average, smoothing),
    )


def _count_steps(options: ImagePretrainOptions, updates_per_epoch: int) -> tuple[int, int]:
    """Steps of the run, and of its warm-up."""
    steps = options.steps or options.epochs * updates_per_epoch
    warmup = options.warmup or options.warmup_epochs * updates_per_epoch
    if warmup > steps:
        raise UsageError(
            f"warmup_epochs is {options.warmup_epochs}, here {warmup} steps, expected at most the {steps} of the run; "
            "give --warmup STEPS"
        )
    return steps, warmup


def _count_images(images: int, seconds: float) -> dict[str, float]:
    return {"images": images, "images_per_second": round(images / max(seconds, 1e-9), 1)}


def read_image_size(config: PreTrainedConfig, name: str) -> int:
    """Height and width of a model's images. Raises UsageError if they differ, or if patches do not divide them."""
    config = getattr(config, "vision_config", config)
    sizes, patches = (_read_pair(getattr(config, key, None)) for key in ("image_size", "patch_size"))
    height, width = sizes or (IMAGE_SIZE, IMAGE_SIZE)
    if height != width:
        raise UsageError(f"{name}: image_size is {height} × {width}, expected a square; set one number")
    for patch in patches or ():
        if height % patch:
            raise UsageError(
                f"{name}: patch_size {patch} does not divide image_size {height}; make image_size a multiple of it"
            )
    return height


def _read_pair(size: Any) -> tuple[int, int] | None:
    """Height and width of a size that is one number, or two, or missing."""
    if isinstance(size, int):
        return size, size
    return (int(size[0]), int(size[-1])) if size else None


@unwrap_worker_errors()
@torch.inference_mode()
def evaluate(split: ImageSplit, average: ModelEMA, smoothing: float, trainer: RunTrainer) -> Mapping[str, float]:
    """Mean loss, with the smoothing of training, and accuracy, of the model ("eval") and of the average ("ema")."""
    args = trainer.args
    own = Subset(split, range(args.process_index, len(split), args.world_size))
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
    means = (trainer.accelerator.reduce(sums, "sum") / len(split)).tolist()
    return {
        f"{name}_{what}": round(value, 6)
        for name, values in zip(models, means, strict=True)
        for what, value in zip(("loss", "accuracy"), values, strict=True)
    }
