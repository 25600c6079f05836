"""What names of modules and the fields of config.json say: layers, the parts of a model, and heads.

A composite model has a section for each part: `vision_config` for the tensors of `vision_tower`, and so on. The words
of a section's key are compared with the words of a module's name. Imports nothing heavy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from attngeo.errors import CorruptCheckpointError

# More than any model has: a forged number of layers cannot make a loop endless.
MOST_LAYERS = 10_000
NUMBER = re.compile(r"(?<![^.])[0-9]{1,9}(?![^.])")


def pattern_of(name: str) -> str:
    """The name with each number replaced by "#": the same for every layer of a stack."""
    return NUMBER.sub("#", name)


def name_layers(layers: Iterable[int]) -> str:
    """Layer numbers in words.

    >>> name_layers([0, 1, 2, 5]), name_layers([3])
    ('layers 0-2, 5', 'layer 3')
    """
    numbers = sorted(set(map(int, layers)))
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    runs = (str(first) if first == last else f"{first}-{last}" for first, last in zip(starts, ends, strict=True))
    return f"layer{'s' if len(numbers) > 1 else ''} {', '.join(runs)}"


def join(module: str, name: str) -> str:
    """The full name of a tensor or module inside `module`."""
    return f"{module}.{name}" if module else name


def is_in(name: str, module: str) -> bool:
    """Whether this is the module, or something inside it."""
    return name == module or name.startswith(f"{module}.") or not module


# Words for the same part of a model. The first one of each line names the part, and the stack of its scores.
SYNONYMS = (
    ("vision", "visual", "image", "img", "vpm"),
    ("text", "language", "llm", "lm"),
    ("audio", "speech", "sound", "apm"),
    ("video",),
    ("backbone", "pixel"),
    ("vq", "vqmodel"),
)
# The parts that a module's name tells even if no section of the configuration describes them.
PARTS = ("vision", "text", "audio", "video")
# Words that say nothing about which part it is.
FILLERS = {"config", "model", "tower", "cfg", "module", "branch", "attn", "attention", "ffn", "quantization"}
# Words for parts of any kind.
GENERIC = {"encoder", "decoder", "backbone"}
# Sections for tensors that carry no prefix of their own.
MAIN = ("text_config", "llm_config", "language_config", "thinker_config", "vlm_config")
# The field of a section that was taken from the tables below: whose sizes they are.
SIZES_OF = "sizes_of"


def _sizes(model_type: str, width: int, heads: int, **more: Any) -> dict[str, Any]:
    """A section with the sizes of a tower that config.json does not describe."""
    return {"model_type": model_type, "hidden_size": width, "num_attention_heads": heads, **more}


CLIP_LARGE = _sizes("clip_vision_model", 1024, 16)
# LLaVA as it was first published, MiniCPM-V 2 and Phi-3-vision only name the model of their vision tower. How the last
# part of the name begins, in lower case → what that model's own configuration states, or for timm its code.
NAMED_TOWERS: dict[str, Mapping[str, Any]] = {
    "clip-vit-base": _sizes("clip_vision_model", 768, 12),
    "clip-vit-large": CLIP_LARGE,
    "clip-vit-h-14": _sizes("clip_vision_model", 1280, 16),
    "siglip-base": _sizes("siglip_vision_model", 768, 12),
    "siglip-large": _sizes("siglip_vision_model", 1024, 16),
    "siglip-so400m": _sizes("siglip_vision_model", 1152, 16),
    "siglip2-so400m": _sizes("siglip_vision_model", 1152, 16),
    "vit_so400m_patch14_siglip": _sizes("timm_vit", 1152, 16),
}


class CodedTower(NamedTuple):
    """A part whose sizes are only in a model's code. modules: how the names of its modules begin. name: whose sizes."""

    modules: str
    part: str
    name: str
    fields: Mapping[str, Any]


# Architecture → the parts of its models that config.json does not describe, or in fields that the code does not read.
# https://huggingface.co/deepseek-ai/DeepSeek-OCR/blob/main/deepencoder.py
# https://huggingface.co/internlm/internlm-xcomposer2-vl-7b/blob/main/build_mlp.py
# https://huggingface.co/allenai/Molmo-7B-D-0924/blob/main/config_molmo.py
# https://huggingface.co/Qwen/Qwen-VL/blob/main/visual.py
# https://github.com/dvlab-research/LISA/blob/main/model/segment_anything/build_sam.py
CODED_TOWERS: dict[str, tuple[CodedTower, ...]] = {
    "DeepseekOCRForCausalLM": (
        CodedTower("model.sam_model.", "vision_sam", "SAM ViT-B", _sizes("sam_vision_model", 768, 12)),
        CodedTower("model.vision_model.", "vision", "CLIP ViT-L", _sizes("deepseek_ocr_clip", 1024, 16)),
    ),
    "InternLMXComposer2ForCausalLM": (CodedTower("vit.vision_tower.", "vision", "CLIP ViT-L", CLIP_LARGE),),
    "LISAForCausalLM": (
        CodedTower("model.visual_model.image_encoder.", "vision", "SAM ViT-H", _sizes("sam_vision_model", 1280, 16)),
        CodedTower("model.visual_model.mask_decoder.", "mask_decoder", "SAM", _sizes("sam_mask_decoder", 256, 8)),
    ),
    "MolmoForCausalLM": (
        CodedTower(
            "model.vision_backbone.", "vision", "CLIP ViT-L", _sizes("molmo_vision", 1024, 16, head_dim=64)
        ),
    ),
    "QWenLMHeadModel": (
        CodedTower("transformer.visual.transformer.", "vision", "CLIP ViT-bigG", _sizes("qwen_visual", 1664, 16)),
        CodedTower("transformer.visual.attn_pool.", "vision_pooling", "Qwen-VL", _sizes("qwen_visual", 4096, 32)),
    ),
}  # fmt: skip
DEEPEST = 4
NUMBER_OF_HEADS = re.compile(r"(^|_)(n_?heads?|num_(attention_)?heads|attention_heads)$")
_CANONICAL = {word: words[0] for words in SYNONYMS for word in words}


class ConfigSection(NamedTuple):
    """One section of config.json. keys: the fields that lead to it, empty for the whole. fields: its content."""

    keys: tuple[str, ...]
    fields: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The field that holds it; "" for the whole configuration."""
        return self.keys[-1] if self.keys else ""


def list_sections(config: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[ConfigSection]:
    """The configuration and all of its sections that describe a model, the outer ones first."""
    yield ConfigSection(keys, config)
    if len(keys) == DEEPEST:
        return
    for key, value in config.items():
        described = str(key).endswith("_config") or (isinstance(value, Mapping) and "model_type" in value)
        if isinstance(value, Mapping) and (described or _states_heads(value)):
            yield from list_sections(value, (*keys, str(key)))


def describe_named_tower(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with a section for a vision tower that it only names.

    The section is empty if LLaVA's field names a tower that is not known.
    """
    processor = config.get("img_processor")
    names = [config.get("mm_vision_tower"), config.get("vision_encoder")]
    names += [processor.get("model_name")] if isinstance(processor, Mapping) else []
    name = next((name for name in names if isinstance(name, str)), None)
    if name is None or "vision_config" in config:
        return config
    last = name.rstrip("/").rpartition("/")[2]
    fields = next((fields for start, fields in NAMED_TOWERS.items() if last.lower().startswith(start)), None)
    if fields is None:
        return {**config, "vision_config": {}} if "mm_vision_tower" in config else config
    return {**config, "vision_config": {**fields, SIZES_OF: last}}


class Place(NamedTuple):
    """Where a module belongs: the part of the model, None for a model of one part, and the section that describes it.

    certain: False if the section was taken only because it is the main one, and nothing says that it fits.
    """

    part: str | None
    section: ConfigSection
    certain: bool = True

    @property
    def identity(self) -> tuple[str | None, tuple[str, ...], bool]:
        """The same for all modules of a part."""
        return self.part, self.section.keys, self.certain


def first_architecture(config: Mapping[str, Any]) -> str:
    """The name of the class that the model was saved from; "" if the configuration states none."""
    architectures = config.get("architectures")
    return str(architectures[0]) if isinstance(architectures, list) and architectures else ""


def find_coded_tower(module: str, config: Mapping[str, Any]) -> Place | None:
    """The part of `CODED_TOWERS` that a module belongs to."""
    for tower in CODED_TOWERS.get(first_architecture(config), ()):
        if module.startswith(tower.modules):
            section = ConfigSection((tower.modules,), {**tower.fields, SIZES_OF: tower.name})
            return Place(tower.part, section, certain=False)
    return None


def find_section(module: str, config: Mapping[str, Any]) -> Place:
    """The part of the model that a module belongs to and the section of the configuration that describes it.

    The section whose words stand first in the module's name is taken; of several, the one with most words, and then the
    innermost. If none fits: the whole configuration, or the section of the language model if only sections state heads.
    """
    place: dict[str, tuple[int, int]] = {}
    # What follows the number of a layer is inside a part.
    for position, segment in enumerate(re.split(r"\.(?:#|\d+)(?=\.|$)", module)[0].split(".")):
        for number, word in enumerate(list_words(segment)):
            place.setdefault(word, (position, -_weigh(word, number)))
    outermost, *inner = list_sections(config)
    fitting = [section for section in inner if split_words(section.key) and split_words(section.key) <= place.keys()]
    around = {other.keys[:-1] for other in fitting}
    if fitting := [section for section in fitting if section.keys not in around]:
        section = min(fitting, key=lambda candidate: _rank(candidate, place))
        if main := _main_section(section, inner):
            return Place(_name_part(main), main, certain=False)
        return Place(_name_part(section), section)
    part = next((name for name in PARTS if name in place), None)
    main = _main_section(outermost, inner)
    if main and (not part or "backbone" in split_words(main.key)):  # a backbone may see or hear
        return Place(_name_part(main) if main.key in MAIN else part, main, certain=False)
    stating = [section for section in inner if _states_heads(section.fields)]
    described = not part or part in split_words(str(config.get("model_type", "")))
    return Place(part, outermost, certain=described and bool(part or not stating or _states_heads(config)))


def _weigh(word: str, number: int) -> int:
    """How much a word tells about a part, among those of one segment of a name; `number` words stand before it.

    A speech decoder is a decoder, but a text backbone is of text, and a word of no other part, as in `sam_encoder`, is
    a name.
    """
    if word in GENERIC:
        return -1 if word == "backbone" else number
    return number if word in _CANONICAL else 100


def _main_section(section: ConfigSection, inner: Iterable[ConfigSection]) -> ConfigSection | None:
    """The section inside this one that describes tensors without a prefix, if this one states no heads itself."""
    if _states_heads(section.fields):
        return None
    depth = len(section.keys)
    stating = [
        candidate for candidate in inner if candidate.keys[:depth] == section.keys and _states_heads(candidate.fields)
    ]
    main = [candidate for key in MAIN for candidate in stating if candidate.key == key]
    return main[0] if main else stating[0] if len(stating) == 1 else None


def _rank(section: ConfigSection, place: Mapping[str, tuple[int, int]]) -> tuple[int, int, int, tuple[int, int], int]:
    """How well a section fits a module; the lowest is the best. place: word → its first place in the module's name."""
    words = split_words(section.key)
    first = min(place[word] for word in words)
    foreign = len({word for key in section.keys for word in split_words(key)} - place.keys())
    return foreign, first[0], -len(words), first, -len(section.keys)


def split_words(name: str) -> set[str]:
    """The words of a name, with one word for each part of a model, and without words that say nothing.

    >>> sorted(split_words("visual_encoder"))
    ['encoder', 'vision']
    """
    return set(list_words(name))


def list_words(name: str) -> list[str]:
    """The words of `split_words` in their order."""
    words = (_CANONICAL.get(word, word) for word in re.split(r"[_\d]+", name.lower()) if word)
    return [word for word in words if word not in FILLERS]


def _name_part(section: ConfigSection) -> str:
    words = split_words(section.key)
    parts = (*(synonyms[0] for synonyms in SYNONYMS), "decoder", "encoder")
    return next((word for word in parts if word in words), section.key.removesuffix("_config"))


def _states_heads(fields: Mapping[str, Any]) -> bool:
    return any(isinstance(name, str) and NUMBER_OF_HEADS.search(name) for name in fields)


Role = Literal["encoder", "decoder"]

# The names of the fields. The first one that a configuration has is taken. A name may have a prefix: a field whose
# prefix is in the module's name, such as `decoder_num_attention_heads` in a decoder, comes before one without.
HEADS = (
    "num_attention_heads_per_stage", "num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads",
    "attention_heads", "heads",
)  # fmt: skip
KEY_HEADS = (
    "num_key_value_heads", "num_key_value_attention_heads", "num_kv_heads", "n_kv_heads", "kv_n_heads", "n_head_kv",
    "multi_query_group_num", "num_multi_query_heads",
)  # fmt: skip
HEAD_DIM = (
    "head_dim",
    "d_kv",
    "attention_head_size",
    "kv_channels",
    "d_head",
    "dim_head",
    "attention_head_dim",
    "hidden_size_per_head",
)
# Words of a module's name that mean the same as a prefix of a field.
SAME = {"sliding": "swa", "swa": "sliding"}
COUNTING = ("num", "n")


@dataclass(frozen=True)
class HeadConfig:
    """The heads of one stack as the configuration states them; None for a number that it does not state.

    heads: query heads. key_heads: by default as many as query heads. head_dim: by default the input width divided by
    the number of query heads.
    """

    heads: int
    key_heads: int | None
    head_dim: int | None


@cache
def load_defaults() -> dict[str, dict[str, Any]]:
    """Model type → field → the value that transformers uses if a configuration leaves the field out."""
    defaults: dict[str, dict[str, Any]] = json.loads((files(__package__) / "defaults.json").read_text("utf-8"))
    return defaults


def read_heads(
    section: Mapping[str, Any],
    role: Role,
    *,
    defaults: Mapping[str, Any],
    stage: int | None,
    ref: str,
    words: Sequence[str] = (),
) -> HeadConfig:
    """Read the heads of one stack from its section of the configuration.

    defaults: the family's values of fields that published configurations leave out. stage: which entry to take from a
    list that has one value for each stage; None if there are no stages. words: those of the module's name, in their
    order. Raises CorruptCheckpointError if the number of heads is missing, or if a number is not a positive integer.
    """
    names = [*words, role]
    if isinstance(nested := section.get("attn_config"), Mapping):
        section = {**section, **nested}
    heads = _read_positive(HEADS, section, defaults, names, stage, ref)
    if heads is None:
        raise CorruptCheckpointError(
            f"{ref}: config.json has no number of attention heads, looked for {', '.join(HEADS)}"
        )
    # ConvBERT gives the other heads to a convolution.
    ratio = section.get("head_ratio", defaults.get("head_ratio", 1))
    return HeadConfig(
        max(heads // ratio, 1) if type(ratio) is int and ratio > 0 else heads,
        key_heads=_read_positive(KEY_HEADS, section, defaults, names, stage, ref),
        head_dim=_read_positive(HEAD_DIM, section, defaults, names, stage, ref),
    )


def list_numbers(section: Mapping[str, Any], names: Collection[str]) -> list[int]:
    """All numbers that a section states under these names, with any prefix or suffix; of a list, every entry."""
    seen: dict[int, None] = {}
    for field, value in section.items():
        if isinstance(field, str) and any(f"_{name}_" in f"_{field}_" for name in names):
            numbers = value if isinstance(value, list) else [value]
            seen |= dict.fromkeys(number for number in numbers if type(number) is int and number > 0)
    return list(seen)


def _read_positive(
    names: Collection[str],
    section: Mapping[str, Any],
    defaults: Mapping[str, Any],
    words: Sequence[str],
    stage: int | None,
    ref: str,
) -> int | None:
    """The value of the first field in the section, and then in the defaults; None if neither has one."""
    stated_as_null = False
    for source in (section, defaults):
        if stated_as_null:  # null means "derive it", not "the family's default"
            return None
        for name in fitting_fields(names, source, words):
            value = source[name]
            if isinstance(value, list) and stage is not None and stage < len(value):
                value = value[stage]
            if value is None or (value == 0 and names is HEAD_DIM):  # some files state a head_dim of 0 for "derive it"
                stated_as_null = stated_as_null or source is section
                continue
            if type(value) is not int or value < 1:
                raise CorruptCheckpointError(
                    f"{ref}: config.json has {name} = {value!r:.80}, expected a positive integer"
                )
            return value
    return None


def fitting_fields(names: Collection[str], source: Mapping[str, Any], words: Sequence[str]) -> Iterator[str]:
    """The fields that a source has: those with a prefix whose words are all in `words`, then those without a prefix."""
    prefixed = []
    for name in source:
        for ending in names:
            if isinstance(name, str) and name.endswith(f"_{ending}") and name not in names:
                prefix = [word for word in name.removesuffix(f"_{ending}").split("_") if word not in COUNTING]
                places = [_place(word, words) for word in prefix]
                if None not in places:
                    prefixed.append((-len(prefix), places, name))
    yield from (name for *_, name in sorted(prefixed))
    yield from (name for name in names if name in source)


def _place(word: str, words: Sequence[str]) -> int | None:
    """Where a word of a field's prefix stands among those of a module's name. `pred` is short for `predictor`."""
    same = (word, SAME.get(word, word))
    return next(
        (at for at, other in enumerate(words) if other in same or (len(word) > 2 and other.startswith(word))), None
    )
