"""Names of checkpoint files: the table of formats, and what config.json and an index state. Imports no torch.

A new format is a module with a class of `TensorFile`, and an entry in `FORMATS`. A module of a format, and torch
with it, is imported when the first file of that format is opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from attngeo.bounds.names import list_names, name_type
from attngeo.bounds.small_files import (
    MOST_CONFIG_BYTES,
    MOST_INDEX_BYTES,
    MOST_TOKENIZER_BYTES,
    NotTextError,
    read_small_text,
)
from attngeo.checkpoints.first_bytes import LONGEST_HEAD, read_head, recognise, recognise_adapter
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError, first_line

Check = Callable[[dict[str, Any]], dict[str, Any]]
# The end of the name of an index: the JSON file that tells which file of a sharded checkpoint holds which tensor.
INDEX_SUFFIX = ".index.json"
GGUF = ".gguf"
SAFETENSORS = ".safetensors"
# The configuration of an adapter of PEFT, and the files that may have its weights.
ADAPTER = "adapter_config.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
# The field of config.json that names the weight file, which transformers then opens instead of the usual one.
WEIGHTS_FIELD = "transformers_weights"
LONGEST_NAME = 200
# Small files of a repository. What else is read of one, beside its weights, belongs to a tokeniser.
SMALL = ("config.json", ADAPTER, "generation_config.json", "modules.json", ".gitattributes", "README.md")
# A thousand times the bytes of the largest models that are known.
MOST_MODEL_BYTES = 10**15
SHARD = re.compile(r"-\d{5}-of-(\d{5})\.")
LATER_PART = re.compile(r"-(?!00001-)\d{5}-of-(\d{5})\.gguf$")
# Meta's files of a model that was trained on several devices, numbered from 00: each has some heads of every layer.
SPLIT_BY_META = "each part has only some heads of every layer; give consolidated.00.pth, with all parts beside it"
FIRST_PART = "consolidated.00.pth"
META_PART = re.compile(r"(?:^|/)consolidated\.(\d\d)\.pth$")
# How a text begins that stands for a file in a repository of git until git-lfs has fetched it, and its most bytes.
POINTER = "version https://git-lfs.github.com/"
LONGEST_POINTER = 1024
ADVICE_FOR_POINTERS = "it is a pointer to a file that git-lfs has not fetched; run git lfs pull in its folder"
# Folders inside one without a configuration that its error names.
MOST_FOLDERS = 3


@dataclass(frozen=True, kw_only=True)
class Format:
    """One file format.

    Attributes:
        name: common name.
        suffixes: endings of its file names, the usual one first.
        usual_stem: the name that transformers gives a checkpoint file, without the suffix; "" if transformers does not
            write this format.
        opener: module and name of the `TensorFile` that opens one file; "" for an unsupported format, with `advice` on
            what to use instead.
        not_weights: pattern of names of files with the usual suffix but other content → that content, and what to give
            instead.
        advice: what to use instead of an unsupported format.
    """

    name: str
    suffixes: tuple[str, ...]
    usual_stem: str = ""
    opener: str = ""
    not_weights: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""


# In the order in which they are tried.
FORMATS: tuple[Format, ...] = (
    Format(
        name="safetensors",
        suffixes=(SAFETENSORS,),
        usual_stem="model",
        opener="attngeo.checkpoints.safetensors:SafetensorsFile",
    ),
    Format(
        name="PyTorch",
        suffixes=(".bin", ".pt", ".pth", ".ckpt", ".th"),
        usual_stem="pytorch_model",
        opener="attngeo.checkpoints.torch_file:TorchFile",
        not_weights={
            "training_args.bin": "training settings; give the checkpoint that the training run wrote",
            "optimizer.bin": "the state of an optimiser; give the checkpoint beside it",
            "scheduler.bin": "the state of a training run; give the checkpoint beside it",
            "openvino_*.bin": "OpenVINO weights without tensor names; give the checkpoint that they were exported from",
            "pytorch_model_fsdp_rank*.bin": (
                "one FSDP process's share of the parameters; save the model again with the state dict type "
                "FULL_STATE_DICT"
            ),
        },
    ),
    Format(name="GGUF", suffixes=(GGUF,), opener="attngeo.checkpoints.gguf:GgufFile"),
    Format(
        name="NumPy", suffixes=(".npz",),
        advice="save the tensors as safetensors, with safetensors.numpy.save_file and a config.json beside it",
    ),
    Format(
        name="Flax", suffixes=(".msgpack",),
        advice="convert it with transformers 4: AutoModel.from_pretrained(FOLDER, from_flax=True).save_pretrained(NEW)",
    ),
    Format(
        name="TensorFlow", suffixes=(".h5",),
        advice="convert it with transformers 4: AutoModel.from_pretrained(FOLDER, from_tf=True).save_pretrained(NEW)",
    ),
    Format(name="ONNX", suffixes=(".onnx", ".onnx_data"), advice="give the checkpoint that it was exported from"),
    Format(
        name="torch.distributed.checkpoint", suffixes=(".distcp",),
        advice="if you trust its source, convert it with python -P -m torch.distributed.checkpoint.format_utils "
        "dcp_to_torch FOLDER FILE.pt",
    ),
)  # fmt: skip


# Folders without a config.json: what they are, files that they have, and what converts them.
OTHER_FOLDERS = (
    (
        "torch.distributed.checkpoint", ("*.distcp", "*/*.distcp"),
        "if you trust its source, convert it with python -P -m torch.distributed.checkpoint.format_utils "
        "dcp_to_torch FOLDER FILE.pt, and give FILE.pt, with the model's config.json as $config",
    ),
    (
        "DeepSpeed", ("mp_rank_*.pt", "*/mp_rank_*.pt", "*zero_pp_rank_*.pt", "*/*zero_pp_rank_*.pt"),
        "if you trust its source, convert it with the zero_to_fp32.py in the folder, and give the result, with the "
        "model's config.json as $config",
    ),
    (
        "FSDP with one file per process", ("pytorch_model_fsdp_rank*.bin", "*/pytorch_model_fsdp_rank*.bin"),
        "save it again with the state dict type FULL_STATE_DICT, and give the new file, with the model's config.json "
        "as $config",
    ),
    ("OpenVINO", ("openvino_*.xml", "*/openvino_*.xml"), "give the checkpoint that it was exported from"),
    (
        "an MLX adapter without adapter_config.json", ("adapters.safetensors",),
        "merge it into its base with mlx_lm.fuse, and give the merged folder",
    ),
    (
        "Megatron", ("mp_rank_*/*.pt", "*/mp_rank_*/*.pt"),
        "convert it with Megatron-LM's tools/checkpoint/convert.py",
    ),
)  # fmt: skip


def usual_names() -> tuple[str, ...]:
    """The files to try in a folder or repository, in the order that transformers uses.

    The single file of a format comes before its index: `save_pretrained` leaves a stale index behind if it writes one
    file over several.
    """
    names = []
    for file_format in FORMATS:
        if file_format.usual_stem and file_format.opener:
            name = f"{file_format.usual_stem}{file_format.suffixes[0]}"
            names += [name, f"{name}{INDEX_SUFFIX}"]
    return tuple(names)


def stated_weights(config: Mapping[str, Any]) -> str | None:
    """The weight file or index that config.json names for transformers; None if it names none.

    Raises UnsupportedModelError for files that transformers does not open: another format, or outside the folder.
    """
    name = config.get(WEIGHTS_FIELD)
    if name is None:
        return None
    endings = (SAFETENSORS, SAFETENSORS + INDEX_SUFFIX)
    if not (isinstance(name, str) and name.endswith(endings) and is_inside(name)):
        raise UnsupportedModelError(
            f"config.json has {WEIGHTS_FIELD} = {name!r:.80}, expected a file beside it that ends in "
            f"{' or '.join(endings)}; correct it, or give the weight file"
        )
    return str(PurePosixPath(name))


def is_inside(file: str) -> bool:
    """Whether an untrusted file name can only lead into the folder that it is relative to."""
    path = PurePosixPath(file)
    is_relative = not path.is_absolute() and ".." not in path.parts and "\\" not in file and ":" not in file
    return is_relative and file.isprintable() and path.name != "" and len(file) <= LONGEST_NAME


def is_index(file: str) -> bool:
    """Whether a file has the name of an index of a sharded checkpoint."""
    return file.endswith(INDEX_SUFFIX)


def is_weights(file: str) -> bool:
    """Whether a file has the name of an index, or of weights in a known format, supported or not."""
    return is_index(file) or any(file.endswith(file_format.suffixes) for file_format in FORMATS)


def limit_of(file: str) -> int | None:
    """Maximum bytes of a file with this name; None for weights."""
    if is_index(file):
        return MOST_INDEX_BYTES
    if is_weights(file):
        return None
    return MOST_CONFIG_BYTES if file.rpartition("/")[2] in SMALL else MOST_TOKENIZER_BYTES


def require_format(file: str) -> Format:
    """The format of a file, by its suffix. Raises UnsupportedModelError if it is unknown or not supported."""
    for file_format in FORMATS:
        if not file.endswith(file_format.suffixes):
            continue
        if not file_format.opener:
            raise UnsupportedModelError(
                f"{file_format.name} files are not supported; {file_format.advice}", subject=file
            )
        return file_format
    suffixes: list[str] = []
    for file_format in FORMATS:
        if file_format.opener:
            suffixes += file_format.suffixes
    raise UnsupportedModelError(
        f"unknown format, expected a folder or a file with one of these endings: "
        f"{', '.join((*suffixes, INDEX_SUFFIX))}",
        subject=file,
    )


def read_config(path: Path) -> dict[str, Any]:
    """The fields of a config.json. Raises CorruptCheckpointError if it is missing or not a JSON object."""
    if not path.exists():
        raise CorruptCheckpointError(
            f"no config.json in {path.parent}; give a folder that save_pretrained wrote, or a Hub id; attngeo score "
            "can use the config.json of another model, with $config",
            "config",
        )
    return read_object(path, check=_check_model_type)


def read_object(path: Path, most: int = MOST_CONFIG_BYTES, check: Check | None = None) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: the file.
        most: maximum bytes.
        check: called with each object inside; raises ValueError if it is wrong.

    Raises:
        CorruptCheckpointError: The file cannot be read, or is not a JSON object.
    """
    text = ""
    try:
        text = read_small_text(path, most)
        value = json.loads(text, object_hook=check)
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"{path.name} is not readable JSON ({first_line(error)}); {_advise(text, error)}"
        ) from None
    if not isinstance(value, dict):
        raise CorruptCheckpointError(
            f"{path.name} is {name_type(value)}, expected an object; copy or download it again"
        )
    return value


def _advise(text: str, error: Exception) -> str:
    """What to do about a file that is no JSON. What is wrong inside a whole one is so in the original, too."""
    if text.startswith(POINTER):
        return ADVICE_FOR_POINTERS
    if text.startswith("\ufeff"):
        return "save it as UTF-8 without a byte order mark"
    if isinstance(error, NotTextError):  # UTF-16, for example, as PowerShell writes
        return "save it as UTF-8"
    is_whole = text.rstrip().endswith("}") or str(error).startswith("Extra data")
    if isinstance(error, json.JSONDecodeError) and is_whole:
        return "correct it at this place: JSON allows no comments, and no comma after the last entry"
    return "copy or download it again"


def _check_model_type(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields. Raises ValueError for a model_type that is no short text: it is written into every table."""
    stated = fields.get("model_type")
    if stated is not None and not (isinstance(stated, str) and len(stated) <= LONGEST_NAME):
        value = f"a string of {len(stated):,} characters" if isinstance(stated, str) else f"{name_type(stated)}"
        raise ValueError(f"model_type is {value}, expected a name of at most {LONGEST_NAME} characters")
    return fields


class Index(NamedTuple):
    """weight_map: tensor name → file. total_nbytes: bytes of all tensors, None if the index does not state them."""

    weight_map: Mapping[str, str]
    total_nbytes: int | None

    @property
    def files(self) -> list[str]:
        """The files that the index names, each once, in order."""
        return sorted(set(self.weight_map.values()))

    def move(self, folder: str) -> Index:
        """The index as seen from outside its folder, which is "" or ends in a slash."""
        return self._replace(weight_map={tensor: folder + file for tensor, file in self.weight_map.items()})


def read_index(path: Path) -> Index:
    """Parse a `*.index.json`. Raises CorruptCheckpointError, or UnsupportedModelError for an unknown file format.

    An index may only name files in its folder, and in folders inside it: any other path is refused.
    """
    content = read_object(path, MOST_INDEX_BYTES)
    stated = content.get("weight_map")
    if not isinstance(stated, dict) or not stated or not all(isinstance(file, str) for file in stated.values()):
        raise CorruptCheckpointError(
            f"{path.name} has no weight_map, expected a table of tensor name → file; copy or download it again"
        )
    for file in set(stated.values()):
        if not is_inside(file):
            raise CorruptCheckpointError(
                f"{path.name} points to {file!r:.80}, expected a file in its folder; correct it"
            )
        try:
            require_format(file)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(str(error), subject=path.name) from None
    weight_map = {name: str(PurePosixPath(file)) for name, file in stated.items()}
    metadata = content.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    is_plausible = type(total) is int and 0 < total < MOST_MODEL_BYTES
    return Index(weight_map, total if is_plausible else None)


class FoundCheckpoint(NamedTuple):
    """The place of a checkpoint's weights.

    Attributes:
        folder: folder with config.json.
        name: the one weight file in it, or the index.
        config: fields of config.json; empty beside a GGUF file.
    """

    folder: Path
    name: str
    config: Mapping[str, Any]


def find_checkpoint(path: Path, config: Mapping[str, Any] | None = None) -> FoundCheckpoint:
    """Find the weights and the configuration of a folder or file. Opens no weights.

    In a folder, finds the weights that transformers opens, or if there are none, the only weights.

    Args:
        path: a folder, a weight file, an index, or config.json.
        config: fields of a config.json from elsewhere.

    Raises:
        CheckpointError: There is no checkpoint or no config.json, or the format is not supported.
    """
    if path.name == "config.json" and not path.is_dir():
        path = path.parent
    if not path.is_dir():
        require_known_suffix(path)
        check_name(path.name)
        if config is None and path.suffix != GGUF:
            refuse_adapter_file(path)
            config = read_config(path.with_name("config.json"))
        return FoundCheckpoint(path.parent, path.name, config or {})
    if config is None and not (path / "config.json").is_file():
        if any(path.glob(f"*{GGUF}")):
            return find_checkpoint(path / find_only_weights(path))
        refuse_other_folders(path)
        inner = sorted(file.parent for file in path.glob("*/config.json"))
        inner = [folder for folder in inner if _describes_model(folder / "config.json")] or inner
        if inner:
            shown = " or ".join(map(str, inner[:MOST_FOLDERS]))
            raise CorruptCheckpointError(f"no config.json in {path}; give a folder in it that has one: {shown}")
    if config is None:
        config = read_config(path / "config.json")
    name = stated_weights(config)
    if name is not None and not (path / name).is_file():
        raise CorruptCheckpointError(
            f"config.json has {WEIGHTS_FIELD} = {name}, but that file is missing; download it, or give another file"
        )
    if name is None:
        name = find_first(path, usual_names()) or find_only_weights(path)
    check_name(name)
    return FoundCheckpoint(path, name, config)


def _describes_model(path: Path) -> bool:
    """Whether a config.json states a type of model, unlike those of other modules of sentence-transformers."""
    try:
        return bool(read_object(path).get("model_type"))
    except CorruptCheckpointError:
        return False


def find_first(folder: Path, names: Iterable[str]) -> str | None:
    """The first of these names that exists as a file in a folder; None if none does."""
    return next((name for name in names if (folder / name).is_file()), None)


def check_name(file: str) -> None:
    """Raise UnsupportedModelError or CorruptCheckpointError for a file that is not an index or a whole checkpoint."""
    if is_index(file):
        return
    file_format = require_format(file)
    other = find_other_content(file, file_format)
    if other is not None:
        raise UnsupportedModelError(f"judging by its name, {file} holds {other}")
    refuse_shard(file)


def find_other_content(file: str, file_format: Format) -> str | None:
    """Content of a file that is not a model, judging by its name, and what to give instead; None if it may be one."""
    name = PurePosixPath(file).name
    return next((other for pattern, other in file_format.not_weights.items() if fnmatchcase(name, pattern)), None)


def find_only_weights(folder: Path) -> str:
    """The only weight file, or the only index, in a folder without the usual names.

    Raises CorruptCheckpointError if there are several of one format, UnsupportedModelError for another format.
    """
    for file_format in FORMATS:
        suffix = file_format.suffixes[0]
        indices = sorted(path.name for path in folder.glob(f"*{suffix}{INDEX_SUFFIX}") if path.is_file())
        listed: set[str] = set()
        for index in indices:
            listed.update(read_index(folder / index).files)
        files = sorted(path.name for path in folder.glob(f"*{suffix}") if path.is_file())
        for name in files:
            if find_other_content(name, file_format) is not None or LATER_PART.search(name):
                listed.add(name)
        names = indices + [name for name in files if name not in listed]
        if len(names) > 1:
            require_format(names[0])
            refuse_shard(names[0])
            raise CorruptCheckpointError(
                f"{len(names)} weight files in {folder} ({', '.join(names[:4])}); give one of them"
            )
        if names:
            return names[0]
    refuse_other_folders(folder)
    if (folder / FIRST_PART).is_file():
        return FIRST_PART
    usual = ", ".join(usual_names())
    single = " or ".join(f"*{file_format.suffixes[0]}" for file_format in FORMATS if file_format.opener)
    others = sorted(path.name for path in folder.iterdir() if path.is_file() and is_weights(path.name))
    if others:
        found = f"found {list_names(others)}; to read a file with another name, give the file itself"
        raise CorruptCheckpointError(f"no weight file in {folder} has a usual name, such as {usual}; {found}")
    raise CorruptCheckpointError(f"no weights in {folder}, looked for {usual} and a single {single}")


def list_parts(path: Path) -> list[Path]:
    """The later parts of a model by Meta, in order, if this is its first part; none for any other file.

    Raises CorruptCheckpointError if a part between them is missing.
    """
    if path.name != FIRST_PART:
        return []
    parts = sorted(other for other in path.parent.iterdir() if META_PART.search(other.name))
    for number, part in enumerate(parts):
        expected = f"consolidated.{number:02d}.pth"
        if part.name != expected:
            raise CorruptCheckpointError(
                f"{part.name} is one part of a model, but part {expected} is missing from its folder; download all "
                "parts"
            )
    return parts[1:]


def require_known_suffix(path: Path) -> None:
    """Raise UnsupportedModelError for a file with an unknown suffix, and name the format of its first bytes."""
    if is_weights(path.name) or not path.is_file():
        return
    mark = recognise(read_head(path))
    if mark is not None:
        raise UnsupportedModelError(f"unknown suffix; judging by its first bytes, it is {mark.kind}; {mark.advice}")


def refuse_first_part(file: str, has: Callable[[str], bool]) -> None:
    """Raise UnsupportedModelError for the first of several Meta parts in a repository.

    has: whether the repository has a file with this name.
    """
    part = META_PART.search(file)
    if part and not int(part[1]):
        second = f"{file[: part.start(1)]}01{file[part.end(1) :]}"
        if has(second):
            raise UnsupportedModelError(
                f"{file} is one of several parts of a model ({second} is beside it), which attngeo joins only in a "
                "folder on this machine; download all parts, and give their folder"
            )


def refuse_adapter_file(path: Path) -> None:
    """Raise UnsupportedModelError for an adapter file without a config.json beside it."""
    if path.with_name("config.json").is_file():
        return
    if path.with_name(ADAPTER).is_file():
        raise UnsupportedModelError(
            f"holds the weights of an adapter, expected a model; give the folder with {ADAPTER}: {path.parent}"
        )
    if path.suffix != SAFETENSORS or not path.is_file():
        return
    form = recognise_adapter(read_head(path, LONGEST_HEAD))
    if form is not None:
        raise UnsupportedModelError(
            f"an adapter in the format of {form}, expected a model; merge it into its base with the program that wrote "
            "it, and give the merged checkpoint"
        )


def refuse_other_folders(folder: Path) -> None:
    """Raise UnsupportedModelError for a folder with another kind of checkpoint, and say what converts it."""
    for name, patterns, advice in OTHER_FOLDERS:
        for pattern in patterns:
            if any(folder.glob(pattern)):
                raise UnsupportedModelError(f"unsupported checkpoint format, {name}; {advice}", "config")


def refuse_shard(file: str) -> None:
    """Raise CorruptCheckpointError if `file` is one of several shards: alone, it is only a part of the model.

    The first part of a GGUF model passes, because it states the number of parts.
    """
    part = LATER_PART.search(file)
    if part:
        first = f"{file[: part.start()]}-00001-of-{part[1]}{GGUF}"
        raise CorruptCheckpointError(f"{file} is a later part of a model in several files; give {first}")
    part = META_PART.search(file)
    if part and int(part[1]):
        raise UnsupportedModelError(f"{file} is part {int(part[1]) + 1} of a model; {SPLIT_BY_META}")
    shard = SHARD.search(file)
    if shard and int(shard[1]) > 1 and not file.endswith(GGUF):
        raise CorruptCheckpointError(
            f"{file} is one of {int(shard[1])} shards, but their index is missing; give the folder with all "
            "shards and the index, such as model.safetensors.index.json"
        )
