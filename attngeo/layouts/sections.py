"""The parts of a model and the sections of its config.json that describe them.

A composite model has a section for each part: `vision_config` for the tensors of `vision_tower`, and so on. The words
of a section's key are compared with the words of a module's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

# Words for the same part of a model. The first one of each line names the part, and the stack of its scores.
SYNONYMS = (
    ("vision", "visual", "image", "img"),
    ("text", "language", "llm", "lm"),
    ("audio", "speech", "sound"),
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
# LLaVA as it was first published names the model of its vision tower and does not describe it. The last part of the
# name → what that model's own configuration states of its vision tower.
CLIP_LARGE = {"model_type": "clip_vision_model", "hidden_size": 1024, "num_attention_heads": 16}
NAMED_TOWERS: dict[str, Mapping[str, Any]] = {
    "clip-vit-large-patch14": CLIP_LARGE,
    "clip-vit-large-patch14-336": CLIP_LARGE,
    "siglip-so400m-patch14-384": {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "num_attention_heads": 16,
    },
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
    """The configuration with a section for a vision tower that it only names; the section is empty if it is unknown."""
    name = config.get("mm_vision_tower")
    if not isinstance(name, str) or "vision_config" in config:
        return config
    return {**config, "vision_config": NAMED_TOWERS.get(name.rpartition("/")[2], {})}


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
    whole, *inner = list_sections(config)
    fitting = [section for section in inner if split_words(section.key) and split_words(section.key) <= place.keys()]
    around = {other.keys[:-1] for other in fitting}
    if fitting := [section for section in fitting if section.keys not in around]:
        section = min(fitting, key=lambda own: _rank(own, place))
        if main := _main_section(section, inner):
            return Place(_name_part(main), main, certain=False)
        return Place(_name_part(section), section)
    part = next((name for name in PARTS if name in place), None)
    main = _main_section(whole, inner)
    if main and (not part or "backbone" in split_words(main.key)):  # a backbone may see or hear
        return Place(_name_part(main) if main.key in MAIN else part, main, certain=False)
    stating = [section for section in inner if _states_heads(section.fields)]
    described = not part or part in split_words(str(config.get("model_type", "")))
    return Place(part, whole, certain=described and bool(part or not stating or _states_heads(config)))


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
    stating = [own for own in inner if own.keys[:depth] == section.keys and _states_heads(own.fields)]
    main = [own for key in MAIN for own in stating if own.key == key]
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
    known = (*(synonyms[0] for synonyms in SYNONYMS), "decoder", "encoder")
    return next((word for word in known if word in words), section.key.removesuffix("_config"))


def _states_heads(fields: Mapping[str, Any]) -> bool:
    return any(isinstance(name, str) and NUMBER_OF_HEADS.search(name) for name in fields)
