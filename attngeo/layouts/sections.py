"""Sections of config.json, and the choice of the section that describes a module.

A composite model consists of towers, and its configuration has a section for each: `vision_config` for the tensors of
`vision_tower`, and so on. The words of a section's key are compared with the words of a module's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from attngeo.layouts.names import Fields

# Words for the same tower. The first of each line names the tower, and the stack in tables.
SYNONYMS = (
    ("vision", "visual", "image", "img", "vpm"),
    ("text", "language", "llm", "lm"),
    ("audio", "speech", "sound", "apm"),
    ("video",),
    ("backbone", "pixel"),
    ("vq", "vqmodel"),
)
# Towers recognised in a module's name even if no section of the configuration describes them.
MODALITIES = ("vision", "text", "audio", "video")
# Words that do not identify a tower.
FILLERS = {"config", "model", "tower", "cfg", "module", "branch", "attn", "attention", "ffn", "quantization"}
# Words for towers of any kind.
GENERIC = {"encoder", "decoder", "backbone"}
# Sections for tensors without a prefix.
MAIN = ("text_config", "llm_config", "language_config", "thinker_config", "vlm_config")
# Sections nested deeper than this are not read.
DEEPEST = 4
NUMBER_OF_HEADS = re.compile(r"(^|_)(n_?heads?|num_(attention_)?heads|attention_heads)$")
LAYER_NUMBER = re.compile(r"\.(?:#|\d+)(?=\.|$)")
_CANONICAL: dict[str, str] = {}
for _words in SYNONYMS:
    _CANONICAL |= dict.fromkeys(_words, _words[0])


class ConfigSection(NamedTuple):
    """One section of config.json. keys: the fields that lead to it, empty for the whole. fields: its content."""

    keys: tuple[str, ...]
    fields: Fields

    @property
    def key(self) -> str:
        """The field that holds it; "" for the whole configuration."""
        return self.keys[-1] if self.keys else ""


class TowerSection(NamedTuple):
    """The tower that a module belongs to, and the section of the configuration that describes it.

    Attributes:
        tower: name of the tower; None in a model of one tower.
        section: section of the configuration.
        certain: False if nothing confirms that the section fits, and it was used only because it is the main one.
    """

    tower: str | None
    section: ConfigSection
    certain: bool = True


def first_architecture(config: Fields) -> str:
    """The name of the class that the model was saved from; "" if the configuration states none."""
    architectures = config.get("architectures")
    return str(architectures[0]) if isinstance(architectures, list) and architectures else ""


def list_sections(config: Fields, keys: tuple[str, ...] = ()) -> Iterator[ConfigSection]:
    """The configuration, and all its sections that describe a model, outer sections first."""
    yield ConfigSection(keys, config)
    if len(keys) == DEEPEST:
        return
    for key, value in config.items():
        if not isinstance(value, Mapping):
            continue
        if str(key).endswith("_config") or "model_type" in value or _states_heads(value):
            yield from list_sections(value, (*keys, str(key)))


def find_section(module: str, config: Fields) -> TowerSection:
    """The tower that a module belongs to, and the section of the configuration that describes it.

    The section whose words come first in the module's name; among several, the one with the most words, then the
    innermost. If none fits: the whole configuration, or the section of the language model if only sections state heads.
    """
    positions = _locate_words(module)
    whole, *inner = list_sections(config)
    section = _choose_section(inner, positions)
    if section is not None:
        main = _main_section(section, inner)
        if main is not None:
            return TowerSection(_name_tower(main), main, certain=False)
        return TowerSection(_name_tower(section), section)
    tower = next((word for word in MODALITIES if word in positions), None)
    main = _main_section(whole, inner)
    if main is not None and (tower is None or "backbone" in split_words(main.key)):  # a backbone may see or hear
        return TowerSection(_name_tower(main) if main.key in MAIN else tower, main, certain=False)
    if tower is not None:
        certain = tower in split_words(str(config.get("model_type", "")))
    else:
        certain = _states_heads(config) or not any(_states_heads(section.fields) for section in inner)
    return TowerSection(tower, whole, certain)


# Position of a word in a module's name: its segment, and then a number that is lower the more it says about a tower.
Position = tuple[int, int]


def _locate_words(module: str) -> dict[str, Position]:
    """Word → its first position in a module's name, before the number of a layer: the rest is inside a tower."""
    positions: dict[str, Position] = {}
    segments = LAYER_NUMBER.split(module)[0].split(".")
    for segment_number, segment in enumerate(segments):
        for word_number, word in enumerate(split_words(segment)):
            positions.setdefault(word, (segment_number, -_weigh(word, word_number)))
    return positions


def _weigh(word: str, number: int) -> int:
    """How much a word says about a tower, within one segment of a name; `number` words come before it.

    A speech decoder is a decoder, but a text backbone belongs to text, and an unknown word, such as "sam" in
    `sam_encoder`, is a name.
    """
    if word == "backbone":
        return -1
    return number if word in GENERIC or word in _CANONICAL else 100


def _choose_section(sections: Iterable[ConfigSection], positions: Mapping[str, Position]) -> ConfigSection | None:
    """The section that best fits a module's name, which has all words of its key; None if no section fits."""
    fitting = []
    for section in sections:
        words = set(split_words(section.key))
        if words and words <= positions.keys():
            fitting.append(section)
    enclosing = {section.keys[:-1] for section in fitting}
    innermost = [section for section in fitting if section.keys not in enclosing]
    return min(innermost, key=lambda section: _rank(section, positions), default=None)


def _rank(section: ConfigSection, positions: Mapping[str, Position]) -> tuple[int, int, int, Position, int]:
    """How well a section fits a module whose name has words at these positions; the lowest rank fits best."""
    words = set(split_words(section.key))
    path_words = set(chain.from_iterable(map(split_words, section.keys)))
    foreign = len(path_words - positions.keys())
    first = min(positions[word] for word in words)
    return foreign, first[0], -len(words), first, -len(section.keys)


def _main_section(section: ConfigSection, inner: Iterable[ConfigSection]) -> ConfigSection | None:
    """The inner section that describes tensors without a prefix, if this section states no heads itself."""
    if _states_heads(section.fields):
        return None
    depth = len(section.keys)
    inside = [candidate for candidate in inner if candidate.keys[:depth] == section.keys]
    stating = [candidate for candidate in inside if _states_heads(candidate.fields)]
    for key in MAIN:
        for candidate in stating:
            if candidate.key == key:
                return candidate
    return stating[0] if len(stating) == 1 else None


def split_words(name: str) -> list[str]:
    """The words of a name, in order, with one word for each tower, and without words that do not identify a tower.

    >>> split_words("visual_encoder")
    ['vision', 'encoder']
    """
    words = [_CANONICAL.get(word, word) for word in re.split(r"[_\d]+", name.lower()) if word]
    return [word for word in words if word not in FILLERS]


def _name_tower(section: ConfigSection) -> str:
    words = split_words(section.key)
    for tower in (*(synonyms[0] for synonyms in SYNONYMS), "decoder", "encoder"):
        if tower in words:
            return tower
    return section.key.removesuffix("_config")


def _states_heads(fields: Fields) -> bool:
    return any(isinstance(name, str) and NUMBER_OF_HEADS.search(name) for name in fields)
