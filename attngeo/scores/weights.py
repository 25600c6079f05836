"""The query and key projections of each attention site of a model: joins checkpoints, layouts and options.

While one site is worked on, the next ones are read and copied to the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from attngeo.bounds import available_memory
from attngeo.checkpoints.adapters import FACTORS, AdapterStore
from attngeo.checkpoints.opening import open_adapted
from attngeo.checkpoints.reference import HubAccess
from attngeo.checkpoints.store import TensorStore, count_rows_nbytes, float_shape
from attngeo.choices import Convention
from attngeo.devices import Sent, Transfer
from attngeo.errors import CorruptCheckpointError, ShapeError, UnsupportedModelError, UsageError
from attngeo.geometry import Form, append_bias, fold_head_norm, fold_input_gain, input_shift, rotate
from attngeo.keywords import takes
from attngeo.layouts.layout import AttentionSite, LatentLayout, Layout, Letter, Part, assemble, count_shared_rows
from attngeo.layouts.rotary import rotary_frequencies, rotary_scaling, rotates
from attngeo.layouts.sites import find_sites
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.scores.spec import ScoreOptions, SourceOptions, check_layers
from attngeo.session import Session


class SiteWeights(NamedTuple):
    """One attention site and its weights: wq [heads, d_model, head_dim], wk [key_heads, d_model, head_dim].

    Query head h reads key head h // (heads / key_heads). With biases, d_model is one more.
    """

    site: AttentionSite
    wq: Tensor
    wk: Tensor


class SiteKeywords(HubAccess):
    """The keywords of `attention_sites`."""

    hub: HubAccess | None = None
    stack: str | None = None
    layers: Iterable[int] | None = None
    with_bias: bool = False
    fold_norm: bool = False
    rope_offset: int = 0
    adapter: str | Sequence[str] = ()
    config: str | None = None
    dtype: torch.dtype = torch.float32


@takes(SiteKeywords)
def attention_sites(
    model: Any,
    *,
    stack: str | None = None,
    layers: Iterable[int] | None = None,
    with_bias: bool = False,
    fold_norm: bool = False,
    rope_offset: int = 0,
    adapter: str | Sequence[str] = (),
    config: str | None = None,
    dtype: torch.dtype = torch.float32,
    hub: HubAccess,
) -> Iterator[SiteWeights]:
    """Iterate over the attention sites of `model`, with their query and key weights. One site is in memory at a time.

    model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory.
    stack, layers: select sites. with_bias, fold_norm, rope_offset, adapter, config: as for `score`. dtype: of the
    returned weights.
    {hub}

    Raises ModelUnavailableError, CheckpointError, UsageError.

    >>> import attngeo
    >>> [(site.layer, tuple(wq.shape)) for site, wq, wk in attngeo.attention_sites("demo:minilm", layers=[0, 1])]
    [(0, (12, 384, 32)), (1, (12, 384, 32))]
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"$dtype is {dtype!r:.60}, expected one of floating point, such as torch.float32", "dtype")
    options = ScoreOptions(
        with_bias=with_bias, fold_norm=fold_norm, rope_offset=rope_offset, adapter=adapter, config=config
    )
    with closing(open_adapted(model, options.adapter, hub, config=options.config)) as store:
        sites, _ = sites_of(store, options)
        sites = select(sites, stack, layers, store.ref)
        for site in sites:
            q, k, _ = projections(site, read(store, site), options, dtype=dtype, ref=store.ref)
            yield SiteWeights(site, q.mT, k.mT)


def sites_of(
    store: TensorStore, options: ScoreOptions = ScoreOptions(), progress: Callable[[str], None] | None = None
) -> tuple[list[AttentionSite], dict[str, str]]:
    """The attention sites of an open checkpoint, and what is left out: name pattern → reason. Reads no weights.

    A site lists only the tensors that the options need. The files that hold them are opened; `progress` is called with
    the name of each one before.
    """

    def prepare(names: list[str]) -> None:
        with suppress(CorruptCheckpointError):  # raised again for the module that it is about
            store.open(names, progress)

    sites, skipped = find_sites(
        store.names, store.config, shape_of=lambda name: float_shape(store, name), ref=store.ref,
        biases=options.with_bias, input_norms=options.fold_norm, prepare=prepare,
    )  # fmt: skip
    require_fit(store, sites)
    return sites, skipped


def select(
    sites: list[AttentionSite], stack: str | None, layers: Iterable[int] | None, ref: str
) -> list[AttentionSite]:
    """The sites of one stack and of some layers. Raises UsageError, which lists those that exist, if none is left."""
    stacks = list(dict.fromkeys(site.stack for site in sites))
    if stack is not None and stack not in stacks:
        raise UsageError(f"{ref} has no stack {stack!r}, expected one of: {', '.join(stacks)}")
    selected = [site for site in sites if stack in (None, site.stack)]
    if (wanted := check_layers(layers)) is not None:
        present = sorted({site.layer for site in selected})
        if missing := sorted(set(wanted) - set(present)):
            raise UsageError(f"{ref} has no layer {missing[0]}, expected layers from {present[0]} to {present[-1]}")
        selected = [site for site in selected if site.layer in wanted]
    if not selected:
        raise UsageError(f"{ref}: layers is empty, expected at least one layer")
    return selected


def read(store: TensorStore, site: AttentionSite) -> dict[str, Tensor]:
    """The tensors of a site by name, in the dtype of the file."""
    return store.read_all(site.reads)


def key_heads_of(site: AttentionSite, convention: Convention) -> list[int]:
    """The key head of each query head h: that of its group, or h mod K by the published convention."""
    if convention == "published":
        return [head % site.key_heads for head in range(site.heads)]
    return [head // (site.heads // site.key_heads) for head in range(site.heads)]


def projections(
    site: AttentionSite,
    tensors: Mapping[str, Tensor],
    options: ScoreOptions = ScoreOptions(),
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    ref: str = "",
) -> tuple[Tensor, Tensor, list[str]]:
    """The q [heads, head_dim, d_model] and k [key_heads, head_dim, d_model] of a site, and notes about them.

    options: with_bias, fold_norm and rope_offset say which bilinear form is built; the defaults give Wq·Wkᵀ itself.
    """
    tensors = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}
    parts = assemble(site, tensors)
    notes = list(site.notes)
    if options.fold_norm:
        parts, note = _fold_norm(site, tensors, parts)
        notes += note
    parts = {letter: _fold_head_norm(site, tensors, part, f"{letter}_gain") for letter, part in parts.items()}
    if "q_scale" in site.tensors:  # a learned factor of each dimension of the queries, which is positive
        scale = softplus(tensors[site.tensors["q_scale"]])[None]
        parts["q"] = parts["q"].change(lambda x: fold_head_norm(x, scale, centred=False))
    parts, scaling = _scale_rotated(site, tensors, parts, ref)
    parts["q"], note = _rotate(site, parts["q"], options.rope_offset, ref)
    notes += note + scaling
    (q, q_bias, _), (k, k_bias, _) = parts["q"], parts["k"]
    if options.with_bias and q_bias is None and k_bias is None:
        notes.append("no biases to include")
    elif options.with_bias:
        q, k = append_bias(q, q_bias), append_bias(k, k_bias)
        notes.append("biases included")
    return q, k, notes


Parts = dict[Letter, Part]


def _fold_norm(site: AttentionSite, tensors: Mapping[str, Tensor], parts: Parts) -> tuple[Parts, list[str]]:
    """Fold the normalisation before attention into the weights: its gain, and its shift into the biases."""
    if "pre_norm" not in site.tensors:
        note = (
            "no normalisation gain before attention"
            if site.family.source
            else "the input norm is unknown and was not folded"
        )
        return parts, [note]
    gain = tensors[site.tensors["pre_norm"]] + site.family.input_gain_offset
    shift = tensors[site.tensors["pre_norm_bias"]] if "pre_norm_bias" in site.tensors else None

    def fold(part: Part) -> Part:
        bias = part.bias
        if shift is not None:
            bias = input_shift(part.weight, shift) + (0 if bias is None else bias)
        return part._replace(weight=fold_input_gain(part.weight, gain), bias=bias)

    if site.is_cross:
        return parts | {"q": fold(parts["q"])}, ["gain folded into queries only: keys read another stack"]
    return {letter: fold(part) for letter, part in parts.items()}, ["input gain folded"]


def require_fit(store: TensorStore, sites: Iterable[AttentionSite]) -> None:
    """Raise CheckpointError or UsageError if the store has adapters that do not fit the weights of these sites."""
    if isinstance(store, AdapterStore):
        store.require_fit({name: is_transposed for site in sites for name, is_transposed in site.orientation.items()})


def require_updates(store: TensorStore, sites: Iterable[AttentionSite]) -> None:
    """Raise UnsupportedModelError if the store has adapters, and one of them changes no weight of these sites."""
    if isinstance(store, AdapterStore):
        store.require_changes({name for site in sites for name in site.tensors.values()})


def update_factors(
    site: AttentionSite,
    tensors: Mapping[str, Tensor],
    q: Tensor,
    k: Tensor,
    options: ScoreOptions,
    ref: str,
) -> tuple[Form, tuple[Tensor, Tensor]]:
    """What adapters add to the W_qk of each head, and the factors of the sum over all heads, of low rank.

    tensors: of a site of an `AdapterStore` with `only_updates`. q, k: of the base, as `projections` gives them.

    With ΔWq = Bq·Aq [head_dim, d_model] and so for keys, Δ(qᵀk) = Aqᵀ·(Bqᵀ·(k + Bk·Ak)) + (Bkᵀ·q)ᵀ·Ak, whose rank is at
    most the sum of both. B passes what is done to outputs, such as rotations, and A what is done to inputs.
    """
    if not isinstance(site.layout, Layout):
        raise UnsupportedModelError(
            f"{ref}: {site.module}: latent attention multiplies several weights, so that an update has no low rank; "
            "score without $adapter_only",
            "adapter_only",
        )
    outputs, inputs = dict(tensors), dict[Letter, Part]()
    for letter, width in (("q", site.d_model), ("k", site.key_width)):
        name = site.tensors[letter]
        weight, is_changed = tensors[name], name + FACTORS[0] in tensors
        unchanged = weight[:1] if site.layout.holder(letter).transposed else weight[:, :1]
        outputs[name] = tensors[name + FACTORS[0]] if is_changed else torch.zeros_like(unchanged)
        inputs[letter] = Part((tensors[name + FACTORS[1]] if is_changed else weight.new_zeros(1, width)).to(q)[None])
    up_q, up_k, _ = projections(
        site, outputs, options.replace(with_bias=False, fold_norm=False), dtype=q.dtype, device=q.device, ref=ref
    )
    if options.fold_norm:
        inputs, _ = _fold_norm(site, {name: tensor.to(q) for name, tensor in tensors.items()}, inputs)
    with_bias = q.shape[-1] > inputs["q"].weight.shape[-1]
    down_q, down_k = (
        append_bias(part.weight, part.bias) if with_bias else part.weight for part in map(inputs.__getitem__, "qk")
    )
    key_head = key_heads_of(site, options.convention)
    from_keys = up_q.mT @ (k + up_k @ down_k)[key_head]
    from_queries = up_k[key_head].mT @ q
    heads = len(key_head)
    left = torch.cat([down_q.expand(heads, -1, -1), from_queries], 1)
    right = torch.cat([from_keys, down_k.expand(heads, -1, -1)], 1)
    layer = torch.cat([down_q[0], from_queries.sum(0)]), torch.cat([from_keys.sum(0), down_k[0]])
    return Form(left, right, [(head, head) for head in range(heads)]), layer


def _fold_head_norm(site: AttentionSite, tensors: Mapping[str, Tensor], part: Part, role: str) -> Part:
    """Fold the linear part of QK-norm: its gain, and the centring of a LayerNorm."""
    gain, norm = part.gain, site.family.head_norm
    if gain is None or norm is None:
        return part
    # A vector as wide as all heads together belongs to a normalisation of all heads together.
    stored = tensors.get(site.tensors.get(role, ""))
    across_heads = stored is not None and stored.ndim == 1 and len(gain) > 1
    return part.change(lambda x: fold_head_norm(x, gain, centred=norm.centred, across_heads=across_heads))


def _scale_rotated(
    site: AttentionSite, tensors: Mapping[str, Tensor], parts: Parts, ref: str
) -> tuple[Parts, list[str]]:
    """Multiply what rotates by its factor, which yarn and longrope give it at any offset.

    Where all dimensions rotate, the factor is one of all logits, and is left out like that in front of the softmax.
    """
    if not site.may_rotate:
        return parts, []
    shared = count_shared_rows(site, tensors) if isinstance(site.layout, LatentLayout) else None
    with _explain_rotary(ref, "correct it"):
        factor, count = rotary_scaling(site.section, site.family, site.head_dim, site.layer, shared)
    if factor == 1:
        return parts, []
    factors = parts["q"].weight.new_ones(1, site.head_dim)
    factors[:, :count] = factor
    if shared is not None:
        factors = factors.flip(1)
    note = f"rotary scaling: {count} of {site.head_dim} dimensions of queries and keys times {factor:.4g}"
    scaled = {letter: parts[letter].change(lambda x: fold_head_norm(x, factors, centred=False)) for letter in "qk"}
    return parts | scaled, [note]


def _rotate(site: AttentionSite, queries: Part, offset: int, ref: str) -> tuple[Part, list[str]]:
    """Rotate the queries by the relative offset: the effect of rotary embeddings between two positions."""
    rotary = site.rotary
    unknown = site.family.rotary is None and not site.family.source and any("rope" in name for name in site.section)
    if not offset or (rotary is None and not unknown):
        note = "no rotary embeddings: the offset has no effect" if offset else "rotary: relative offset 0"
        return queries, [note] if offset or rotary else []
    with _explain_rotary(ref, "score without $rope_offset", "rope_offset"):
        if not rotates(site.section, site.family, site.layer):
            return queries, ["no rotary embeddings in this layer: the offset has no effect"]
        if rotary is None or rotary.other:
            reason = rotary.other if rotary else "the order of its rotary dimensions is unknown"
            name = repr(site.section["model_type"]) if "model_type" in site.section else "it"
            raise UnsupportedModelError(
                f"{ref}: {name} has no relative offset: {reason}; "
                "score without $rope_offset, or another stack with $stack",
                "rope_offset", "stack",
            )  # fmt: skip
        frequencies = rotary_frequencies(site.section, site.family, site.head_dim, site.layer, ref)
        if not frequencies.isfinite().all():
            raise ValueError("frequencies are not finite")
    if 2 * len(frequencies) > site.head_dim:
        raise ShapeError(f"{ref}: {2 * len(frequencies)} rotary dimensions, expected at most head_dim {site.head_dim}")
    angles = (-offset if rotary.reversed else offset) * frequencies
    start = site.head_dim - 2 * len(angles) if rotary.tail else 0
    cosine, sine = angles.cos().to(queries.weight), angles.sin().to(queries.weight)
    turned = queries.change(lambda x: rotate(x, cosine, sine, interleaved=rotary.interleaved, start=start))
    return turned, [f"rotary: relative offset {offset}"]


@contextmanager
def _explain_rotary(ref: str, advice: str, *option: str) -> Iterator[None]:
    """Inside, what an invalid description of rotary embeddings raises becomes a CorruptCheckpointError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CorruptCheckpointError(
            f"{ref}: config.json describes an invalid rotary embedding ({type(error).__name__}: {error}); {advice}",
            *option,
        ) from None


def read_ahead(
    store: TensorStore,
    sites: list[AttentionSite],
    *,
    device: torch.device,
    memory: int | None = None,
    report: ProgressCallback = ignore_progress,
) -> Iterator[tuple[AttentionSite, dict[str, Tensor]]]:
    """Each site with its tensors, in this order; the next ones are read while the caller works on this one.

    device: where the caller computes. A CUDA device has the tensors already; others leave them on the CPU.
    memory: bytes, after decoding, of the layers in flight: those that are read or copied, and the one that
    the caller works on. None is a quarter of what is free. There is always one layer, however large, and never more
    than can be worked on at once. report: called before each site.
    Raises what a read raises, when its site comes.
    """
    transfer = Transfer(device)
    sizes = [count_rows_nbytes({name: store.info(name) for name in site.reads}, site.reads) for site in sites]
    total, done, room = sum(sizes), 0, _free_quarter(device) if memory is None else memory
    ahead = store.lanes + transfer.is_needed
    in_flight: deque[Future[Sent]] = deque()
    reader = ThreadPoolExecutor(ahead, thread_name_prefix="attngeo-read")
    try:
        for i, site in enumerate(sites):
            while (last := i + len(in_flight)) < len(sites) and (
                not in_flight or (len(in_flight) <= ahead and sum(sizes[i : last + 1]) <= room)
            ):
                in_flight.append(reader.submit(lambda site: transfer.send(read(store, site)), sites[last]))
            sent = in_flight.popleft().result()
            report(Progress("score", f"{site.stack} {site.layer}", done, total))
            yield site, transfer.receive(sent)
            done += sizes[i]
    finally:  # nobody waits for a slow server: the store is closed next, which ends what it still reads
        reader.shutdown(wait=store.lanes == 1, cancel_futures=True)
    report(Progress("score", "done", done, total))


def _free_quarter(device: torch.device) -> int:
    """A quarter of the memory that is free, on this machine or on a CUDA device if that has less."""
    free = available_memory()
    if device.type == "cuda":
        free = min(free, torch.cuda.mem_get_info(device)[0])
    return free // 4


def survey(model: str, session: Session = Session(), *, source: SourceOptions = SourceOptions()) -> dict[str, Any]:
    """What `attngeo.score` would read of a model with the default options, by headers alone.

    Keys: `model`, `adapter` if given, `revision`, `model_type`; `bytes_to_read` and `bytes_total`, None if the
    checkpoint does not state them, and their ratio `share_to_read`; `left_out`, name pattern → reason; `sites`, a
    dictionary for each attention module; `names` of all tensors.
    Raises ModelUnavailableError or CheckpointError.
    """
    with closing(open_adapted(model, source.adapter, session.hub, config=source.config)) as store:
        sites, skipped = sites_of(store, progress=lambda file: session.progress(Progress("download", file)))
        to_read, total = sum(store.fetched(site.reads) for site in sites), store.total_nbytes
        return {
            "model": store.ref,
            **({"adapter": list(source.adapter)} if source.adapter else {}),
            "revision": store.revision,
            "model_type": store.config.get("model_type"),
            "bytes_to_read": to_read,
            "bytes_total": total,
            "share_to_read": to_read / total if total and to_read <= total else None,  # an index may state too little
            "left_out": skipped,
            "sites": [
                {
                    "stack": site.stack, "layer": site.layer, "module": site.module, "heads": site.heads,
                    "key_heads": site.key_heads, "head_dim": site.head_dim, "d_model": site.d_model, "rule": site.rule,
                    "source": site.family.source or None, "bytes": store.fetched(site.reads), "notes": list(site.notes),
                    "tensors": {
                        name: {"dtype": info.packed or info.dtype, "shape": list(info.shape)}
                        for name, info in ((name, store.info(name)) for name in site.tensors.values())
                    },
                }
                for site in sites
            ],
            "names": list(store.names),
        }  # fmt: skip
