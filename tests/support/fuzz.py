"""Mutated inputs of every kind, each with what it may give: the right numbers, or an AttnGeoError, soon and in bounds.

A target writes one mutated input and reads it. It returns whether the input was accepted, and raises Wrong or any other
error if the outcome is not allowed.
The inputs of a target are numbered, and each depends on its number only: `check(target, number)` repeats one.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import attngeo
from attngeo.errors import AttnGeoError
from support.checkpoints import CONFIG, weights, write_config, write_sharded, write_single
from support.fuzz_models import fuzz_efa, fuzz_tabular, save_models
from support.fuzz_recipes import fuzz_recipes
from support.fuzz_results import fuzz_results, save_results
from support.fuzz_settings import fuzz_settings, list_settings
from support.mutate import mutate_bytes, mutate_json, mutate_zip
from support.outcome import Wrong, check_error
from support.vectors import words

SECONDS, MEMORY = 20, 3 << 30
# The share of inputs that are accepted: a reader that refuses all of them, or none, is not tested by them.
LEAST_ACCEPTED, MOST_ACCEPTED = 0.04, 0.96
FEW_LAYERS = {name: tensor for name, tensor in weights(2).items() if "v_proj" not in name and "embed" not in name}
CONTEXT = {
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "rope_theta": 10000.0, "vocab_size": 50, "layer_types": ["full_attention", "full_attention"],
    "quantization_config": None, "id2label": {"0": "a"}, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip


def score(folder: Path) -> Any:
    """The scores of a folder without what depends on the files around them; None if it is refused."""
    try:
        frame = attngeo.score(folder, rope_offset=3)
    except AttnGeoError as error:
        check_error(error)
        return None
    return frame.drop(columns=["model", "parameters"])


def check_scores(folder: Path, found: Any, tensors: Mapping[str, Tensor]) -> None:
    """Raise Wrong unless the scores of a folder are those of these tensors, saved anew."""
    same = all(torch.equal(tensor, FEW_LAYERS[name]) for name, tensor in tensors.items() if name in FEW_LAYERS)
    if same and tensors.keys() == FEW_LAYERS.keys():
        expected = score_plain()
    else:
        config = json.loads((folder / "config.json").read_text())
        plain = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        expected = score(write_single(folder / "expected", plain, config))
    if expected is None or not found.equals(expected):
        raise Wrong(f"wrong scores: {found} instead of {expected}")


@cache
def score_plain() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return score(write_single(Path(folder), FEW_LAYERS))


@cache
def saved(kind: str) -> bytes:
    """The bytes of the tensors in a file of this kind."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        torch.save(FEW_LAYERS, path) if kind == "torch" else save_file(FEW_LAYERS, path)
        return path.read_bytes()


def fuzz_safetensors(rng: Random, folder: Path) -> bool:
    data, path = saved("safetensors"), write_config(folder) / "model.safetensors"
    length = int.from_bytes(data[:8], "little")
    if rng.random() < 0.6:
        header = mutate_json(rng, json.loads(data[8 : 8 + length]))
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    else:
        path.write_bytes(mutate_bytes(rng, data))
    if (found := score(folder)) is None:
        return False
    try:
        tensors = load_file(path)
    except Exception as error:
        raise Wrong(f"accepted, but the library refuses it: {error}") from None
    check_scores(folder, found, tensors)
    return True


def fuzz_torch(rng: Random, folder: Path) -> bool:
    path = write_config(folder) / "pytorch_model.bin"
    path.write_bytes(mutate_zip(rng, saved("torch")))
    if (found := score(folder)) is None:
        return False
    try:  # it was accepted, so that its records are as long as torch.load believes
        state = torch.load(path, weights_only=True)
    except Exception:  # torch also reads what is not needed for tensors, such as a version
        try:
            state = torch.load(save_records(path), weights_only=True)
        except Exception:  # or its version is a number that torch does not know
            state = FEW_LAYERS
    tensors = {name: each for name, each in state.items() if isinstance(name, str) and isinstance(each, Tensor)}
    check_scores(folder, found, tensors)
    return True


def save_records(path: Path) -> io.BytesIO:
    """The records of a zip file as they are stored, in an archive without anything else."""
    content, whole = path.read_bytes(), io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(whole, "w") as plain:
        for info in archive.infolist():
            names, extra = struct.unpack_from("<2H", content, info.header_offset + 26)
            start = info.header_offset + 30 + names + extra
            if not info.filename.endswith(("version", "byteorder")) and "/." not in info.filename:
                plain.writestr(info.filename, content[start : start + info.file_size])
        plain.writestr(f"{archive.namelist()[0].partition('/')[0]}/version", "3\n")
    whole.seek(0)
    return whole


def fuzz_index(rng: Random, folder: Path) -> bool:
    write_sharded(folder)
    path = folder / "model.safetensors.index.json"
    path.write_bytes(mutate_json(rng, json.loads(path.read_text())))
    if (found := score(folder)) is None:
        return False
    stated = json.loads(path.read_text())["weight_map"]
    stored = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    check_scores(folder, found, {name: stored[name] for name in stated if name in stored})
    return True


def fuzz_config(rng: Random, folder: Path) -> bool:
    """Any change of the configuration; one of fields that nothing reads changes nothing."""
    config = CONFIG | CONTEXT if rng.random() < 0.7 else CONFIG
    text = mutate_json(rng, config)
    (write_single(folder, FEW_LAYERS) / "config.json").write_bytes(text)
    if (found := score(folder)) is None:
        return False
    if list(found["layer"]) != [0, 1]:
        raise Wrong(f"not the layers of the model: {found}")
    changed = json.loads(text)
    if changed.keys() - {"x"} <= config.keys() and all(changed.get(name, config) == config[name] for name in config):
        expected = score(write_single(folder / "expected", FEW_LAYERS, config))
        if not found.equals(expected):
            raise Wrong(f"other scores: {found} instead of {expected}")
    return True


def fuzz_vectors(rng: Random, folder: Path) -> bool:
    """Word vectors as text, with and without a header and compressed: each row is a line of the file."""
    from attngeo.embeddings.opening import open_embedding

    rows = [f"{word} {rng.random():.4f} {rng.random():.4f} {rng.random():.4f}" for word in words(30)]
    header = ["30 3"] if rng.random() < 0.5 else []
    text = mutate_bytes(rng, "\n".join([*header, *rows, ""]).encode())
    packed = rng.random() < 0.2
    path = folder / ("v.txt.gz" if packed else "v.txt")
    path.write_bytes(gzip.compress(text) if packed else text)
    try:
        embedding = open_embedding(path)
    except AttnGeoError as error:
        check_error(error)
        return False
    lines = {line.strip() for line in text.replace(b"\t", b" ").split(b"\n")}
    for label, vector in zip(embedding.labels, embedding.matrix.tolist(), strict=True):
        own = [line for line in lines if line.startswith(label.encode()) or label.encode() in line]
        numbers = [list(map(as_float, line.split()[-len(vector) :])) for line in own]
        if not any(np.allclose(vector, each, rtol=1e-6) for each in numbers if len(each) == len(vector)):
            raise Wrong(f"no line gives {label!r} {vector}")
    return True


def as_float(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def fuzz_binary_vectors(rng: Random, folder: Path) -> bool:
    """Word vectors in word2vec's binary format."""
    from attngeo.embeddings.opening import open_embedding

    path = folder / "v.bin"
    path.write_bytes(mutate_bytes(rng, save_vectors()))
    try:
        embedding = open_embedding(path)
    except AttnGeoError as error:
        check_error(error)
        return False
    if len(set(embedding.labels)) != len(embedding.labels):
        raise Wrong("a word twice")
    if len(embedding.labels) != len(embedding.matrix):
        raise Wrong(f"{len(embedding.labels)} words and {len(embedding.matrix)} rows")
    return True


@cache
def save_vectors() -> bytes:
    from support.vectors import keyed

    with tempfile.TemporaryDirectory() as folder:
        vectors = keyed(words(30), np.random.default_rng(0).standard_normal((30, 4)))
        vectors.save_word2vec_format(f"{folder}/v.bin", binary=True)
        return Path(f"{folder}/v.bin").read_bytes()


def fuzz_lists(rng: Random, folder: Path) -> bool:
    """Questions, and lists of layers."""
    name, (content, read) = rng.choice(list(list_readers().items()))
    path = folder / name
    path.write_bytes(mutate_bytes(rng, content))
    try:
        read(path)
    except AttnGeoError as error:
        check_error(error)
        return False
    return True


@cache
def list_readers() -> dict[str, tuple[bytes, Callable[[Path], object]]]:
    from attngeo.analogies.questions import load_questions
    from attngeo.scores.spec import parse_layers

    return {
        "questions.txt": (b": capitals\nAthens Greece Paris France\nRome Italy Oslo Norway\n", load_questions),
        "layers.txt": (b"0-3,7, 9 - 11", lambda path: parse_layers(path.read_bytes().decode("latin1"))),
    }


TARGETS: dict[str, Callable[[Random, Path], bool]] = {
    "safetensors": fuzz_safetensors,
    "torch": fuzz_torch,
    "index": fuzz_index,
    "config": fuzz_config,
    "vectors": fuzz_vectors,
    "binary vectors": fuzz_binary_vectors,
    "lists": fuzz_lists,
    "results": fuzz_results,
    "recipes": fuzz_recipes,
    "settings": fuzz_settings,
    "efa models": fuzz_efa,
    "tabular models": fuzz_tabular,
}


def check(target: str, number: int) -> bool | str:
    """Run one input. Returns whether it was accepted, or what happened if its outcome is not allowed."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        signal.alarm(SECONDS)
        try:
            return TARGETS[target](Random(f"{target} {number}"), Path(folder))
        except Wrong as error:
            return str(error)
        except BaseException:
            return traceback.format_exc(limit=-4)
        finally:
            signal.alarm(0)


def run_inputs(inputs: Mapping[str, range], seconds: float) -> list[str]:
    """Run the inputs with these numbers of each target in a process of its own with bounds. Returns what is wrong."""
    command = [sys.executable, "-P", "-c", "from support.fuzz import main; main()"]
    given = json.dumps({target: [numbers.start, numbers.stop] for target, numbers in inputs.items()})
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=seconds,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    wrong = [line for line in run.stdout.splitlines() if line.startswith("WRONG")]
    if run.returncode:
        wrong.append(f"the process died ({run.returncode}) after {run.stderr[-600:]}")
    return [json.loads(line.removeprefix("WRONG ")) if line.startswith("WRONG ") else line for line in wrong]


def main() -> None:
    """The process: inputs from stdin, a line for each that is wrong; the number of the last one on stderr."""
    signal.signal(signal.SIGALRM, _stop)
    for prepare in (score_plain, save_vectors, list_readers, save_results, list_settings, save_models):
        prepare()
    process = psutil.Process()
    if hasattr(process, "rlimit"):  # Linux
        limit = process.memory_info().vms + MEMORY
        process.rlimit(psutil.RLIMIT_AS, (limit, limit))
    for target, (start, stop) in json.loads(sys.stdin.read()).items():
        accepted = 0
        for number in range(start, stop):
            sys.stderr.write(f"{target} {number}\n")
            outcome = check(target, number)
            accepted += outcome is True
            if isinstance(outcome, str):
                sys.stdout.write("WRONG " + json.dumps(f"check({target!r}, {number}): {outcome}") + "\n")
                sys.stdout.flush()
        if not LEAST_ACCEPTED * (stop - start) <= accepted <= MOST_ACCEPTED * (stop - start):
            sys.stdout.write("WRONG " + json.dumps(f"{target}: {accepted} of {stop - start} are accepted") + "\n")


def _stop(*_: object) -> None:
    raise Wrong(f"it takes more than {SECONDS} s")
