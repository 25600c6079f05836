"""The reference: what a running transformers model multiplies when it attends.

`record(model, inputs)` runs the model and keeps, for every module that computes attention logits, the
operands of its first batched product (the queries and keys, after all that the family does to them) and the inputs of
its Linear layers. Nothing here knows how a family lays out its weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from attngeo.layouts.layout import AttentionSite, LatentLayout
from support.tiny_models import TinyModel

BATCHED = {torch.ops.aten.bmm.default: (0, 1), torch.ops.aten.baddbmm.default: (1, 2)}


@dataclass
class Attended:
    """One module's first attention: query and key [n, tokens, width], n being batch size times heads.

    inputs: name of a child layer → its input. arguments: the module's own tensor arguments.
    """

    query: Tensor | None = None
    key: Tensor | None = None
    inputs: dict[str, Tensor] = field(default_factory=dict)
    arguments: list[Tensor] = field(default_factory=list)


class _Recorder(TorchDispatchMode):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.running: list[str] = []
        self.seen: dict[str, Attended] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in BATCHED and self.running:
            own = self.seen.setdefault(self.running[-1], Attended())
            if own.query is None:
                first, second = BATCHED[func]
                own.query, own.key = args[first].detach().clone(), args[second].detach().clone().mT
        return func(*args, **(kwargs or {}))

    @contextmanager
    def hooked(self, model: torch.nn.Module) -> Iterator[None]:
        with ExitStack() as hooks:
            for module in model.modules():
                for handle in (
                    module.register_forward_pre_hook(self._enter, with_kwargs=True),
                    module.register_forward_hook(self._leave, always_call=True),
                ):
                    hooks.callback(handle.remove)
            yield

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = self.names[module]
        self.running.append(name)
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        own = self.seen.setdefault(name, Attended())
        if not own.arguments:
            own.arguments = [tensor.detach().clone() for tensor in tensors]
        if tensors:
            parent, _, child = name.rpartition(".")
            self.seen.setdefault(parent, Attended()).inputs.setdefault(child, tensors[0].detach().clone())

    def _leave(self, *_: Any) -> None:
        self.running.pop()


def record(model: torch.nn.Module, inputs: dict[str, Any]) -> dict[str, Attended]:
    """Run `model` on `inputs` and return what each module saw, by the module's name."""
    recorder, is_fast = _Recorder(model), torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), recorder, recorder.hooked(model):
            model(**inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)
    return recorder.seen


@contextmanager
def linear_latent_norms(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the norms on the latents of multi-head latent attention multiply by their gain and do not divide."""
    latents = [m for name, m in model.named_modules() if name.endswith(("q_a_layernorm", "kv_a_layernorm"))]
    with ExitStack() as hooks:
        for norm in latents:
            hooks.callback(norm.register_forward_hook(lambda module, args, _: args[0] * module.weight).remove)
        yield


@contextmanager
def sinusoids_of_position_zero(model: torch.nn.Module) -> Iterator[None]:
    """Inside, every token of a RoFormer, which takes no position_ids, is at position 0."""
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if type(module).__name__.startswith("RoFormerSinusoidal"):
                assert name.endswith("embed_positions")
                hooks.callback(module.register_forward_hook(lambda _, __, output: output[:1].expand_as(output)).remove)
        yield


def record_tiny(tiny: TinyModel, model: Any, position: int | None = 0) -> dict[str, Attended]:
    """`record` with random inputs, every token at one position, or at 0, 1, 2 … for None."""
    inputs = inputs_for(tiny.inputs, model)
    if "input_ids" in inputs and "position_ids" in inspect.signature(model.forward).parameters:
        ids = inputs["input_ids"]
        inputs["position_ids"] = (
            torch.arange(ids.shape[1])[None] if position is None else torch.full_like(ids, position)
        )
    with linear_latent_norms(model), ExitStack() as context:
        if position is not None:
            context.enter_context(sinusoids_of_position_zero(model))
        return record(model, inputs)


def inputs_for(  # noqa: C901 - one case a kind
    kind: str, model: Any, *, tokens: int = 7, seed: int = 1
) -> dict[str, Any]:
    """Random inputs of the kind that a `TinyModel` names."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, 60, (1, tokens), generator=generator)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    config = model.config
    match kind:
        case "text":
            inputs = {"input_ids": ids}
            if getattr(config, "is_encoder_decoder", False):
                inputs["decoder_input_ids"] = ids.flip(1)
            if getattr(config, "add_cross_attention", False):
                inputs["encoder_hidden_states"] = noise(1, 5, config.n_embd)
            return inputs
        case "image":
            return {"pixel_values": noise(1, 3, config.image_size, config.image_size)}
        case "large-image":
            return {"pixel_values": noise(1, 3, 64, 64)}
        case "image-text":
            ids[0, :4] = config.image_token_index
            return {"input_ids": ids, "pixel_values": noise(1, 3, 16, 16), "token_type_ids": (ids == 5).long()}
        case "clip":
            return {"input_ids": ids, "pixel_values": noise(1, 3, 16, 16)}
        case "git":
            return {"input_ids": ids, "pixel_values": noise(1, 3, 16, 16)}
        case "sam":
            return {"pixel_values": noise(1, 3, 64, 64), "input_points": noise(1, 1, 2, 2).abs() * 20}
        case "mllama":
            ids[0, 0] = config.image_token_index
            return {
                "input_ids": ids, "pixel_values": noise(1, 1, 2, 3, 16, 16),
                "aspect_ratio_ids": torch.tensor([[2]]), "aspect_ratio_mask": torch.ones(1, 1, 2, dtype=torch.long),
                "cross_attention_mask": torch.ones(1, tokens, 1, 2, dtype=torch.long),
            }  # fmt: skip
        case "audio":
            return {"input_values": noise(1, 90)}
        case "features":
            return {"input_features": noise(1, 8, 24), "decoder_input_ids": ids}
        case "frames":
            return {"input_features": noise(1, 24, 8), "decoder_input_ids": ids}
        case "speech":
            return {"input_values": noise(1, 90), "decoder_input_ids": ids}
        case "long-speech":
            return {"input_values": noise(1, 2500), "decoder_input_ids": ids}
        case "music":
            return {"input_ids": ids, "decoder_input_ids": torch.randint(0, 16, (2, tokens), generator=generator)}
    raise ValueError(kind)


def assert_same_logits(
    site: AttentionSite, wq: Tensor, wk: Tensor, xq: Tensor, xk: Tensor, ran: Attended, offset: int | None = None
) -> None:
    """The logits of every head from weights and inputs are those that ran, up to the model's one scaling factor.

    With an `offset`, only those of a query `offset` tokens after its key.
    """
    assert ran.query is not None
    assert ran.key is not None
    xq, xk = (x.reshape(-1, tokens.shape[1], x.shape[-1]) for x, tokens in ((xq, ran.query), (xk, ran.key)))
    if wq.shape[1] > xq.shape[-1]:
        xq, xk = (torch.cat([x, torch.ones_like(x[..., :1])], dim=-1) for x in (xq, xk))
    queries = torch.einsum("btd,hdk->bhtk", xq, wq).flatten(0, 1)
    keys = torch.einsum("btd,hdk->bhtk", xk, wk.repeat_interleave(site.heads // site.key_heads, 0)).flatten(0, 1)
    expected, got = (ran.query, ran.key), (queries, keys)
    if any(role.startswith(("q_gain", "k_gain")) for role in site.tensors):
        # The norm also divides by each token's length, which no bilinear form has: compare directions.
        expected, got = tuple(normalize(x, dim=-1) for x in expected), tuple(normalize(x, dim=-1) for x in got)
    want, have = expected[0] @ expected[1].mT, got[0] @ got[1].mT
    assert want.shape == have.shape
    if offset is not None:
        want, have = (x.diagonal(-offset, dim1=1, dim2=2) for x in (want, have))
    scale = (want * have).sum() / have.square().sum()
    assert scale > 0
    assert (scale * have - want).norm() / want.norm() < 1e-4


def inputs_of(site: AttentionSite, ran: Attended) -> tuple[Tensor, Tensor]:
    """The inputs of the site's query and key layers."""
    roles = ("q", "k")
    if isinstance(site.layout, LatentLayout):
        roles = ("q_a" if "q_a" in site.tensors else "q", "kv_a")
    names = [site.tensors[role].removeprefix(f"{site.module}.").rpartition(".")[0] for role in roles]
    given = [ran.inputs.get(name) for name in names]
    if given[0] is None:  # torch's attention function takes the weights as arguments: there are no layers
        own = site.tensors["q"].endswith("in_proj_weight")  # nn.MultiheadAttention is called with query, key, value
        given = [ran.arguments[0], ran.arguments[1 if own else 0]]
    assert given[0] is not None
    assert given[1] is not None
    return given[0], given[1]
