"""The gradients of a running model by its attention logits.

transformers gives each attention module the function that its configuration names. Under the name `FUNCTION` it is
`_attend`: it calls the eager function of the model's own file, with zeros added to the mask. The gradient by these
zeros is β_ij = ∂L/∂s_ij of the logits s_ij = scale·q_i·k_j, whatever else the model does to its queries and keys.

    ΔM = Σ_ij β_ij·x_iᵀ·x_j = Xᵀ·(β·X)    [d_model, d_model], X [N, d_model] the input of attention

ΔM is the gradient by a matrix D that is added to every logit as x_i·D·x_jᵀ, at D = 0. If the logits are bilinear in X,
which they are without rotary embeddings and QK-norm, then scale·ΔM is the gradient by W_qk itself, and

    ∂L/∂Wq = scale·(ΔM·Wk + Xᵀ·β·1·bk),   ∂L/∂Wk = scale·(ΔMᵀ·Wq + Xᵀ·βᵀ·1·bq)

summed over the query heads of a key head. A softmax makes β·1 = 0. With rotary embeddings each pair has its own
rotation: ∂L/∂Wq = scale·Σ_Δ ΔM_Δ·Wk·R_Δᵀ, where ΔM_Δ is the part of ΔM of the pairs with i − j = Δ.

Source: Saponati et al. 2025 (arXiv 2502.10927), Proposition 2.1.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from attngeo.attention.finding import sites_of
from attngeo.attention.options import ReadingOptions
from attngeo.checkpoints.store import ModuleStore
from attngeo.choices import Objective
from attngeo.devices import explain_memory
from attngeo.embeddings.tokenizer import silence_transformers
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError, first_line
from attngeo.layouts.layout import AttentionSite
from attngeo.pretrain.text import NO_LABEL
from attngeo.updates.change import Projections, read_projections
from attngeo.updates.own_token import AttentionCall, attend_by_own_token, has_known_form
from attngeo.verification.loading import evaluate

# The name of our attention function in transformers, and that of each model's eager one in its modeling file.
FUNCTION = "attngeo_gradients"
EAGER = "eager_attention_forward"
# The roles of the weight that reads the input of attention; the second one is of multi-head latent attention.
READERS = ("q", "q_a")
LESS = "use fewer or shorter sequences"
Batch = Mapping[str, Tensor]


class SiteGradients(NamedTuple):
    """Gradients of one attention site on S sequences of N tokens; a module that runs several times has S for each run.

    Attributes:
        site: the attention site.
        x: input of the site, [S, N, d_model].
        beta: gradients of the loss by the logits, [S, heads, N, N]; rows are the attending tokens.
        seen: whether the token of a row sees the token of a column, [S, heads, N, N].
        predicted: whether the loss has a prediction at a position, [S, N]: of the token there (mlm), or of the next
            token (clm).
        projections: query and key projections; None if the change of W_qk by a step is unknown.
        beta_own: the part of beta by errors that stay at their token in all later layers, see `own_token`, [S, heads,
            N, N]; None if it is unknown, or was not asked for.
    """

    site: AttentionSite
    x: Tensor
    beta: Tensor
    seen: Tensor
    predicted: Tensor
    projections: Projections | None
    beta_own: Tensor | None = None

    def take_first(self) -> SiteGradients:
        """The gradients on the first sequence."""
        return self._replace(
            x=self.x[:1],
            beta=self.beta[:1],
            seen=self.seen[:1],
            predicted=self.predicted[:1],
            beta_own=None if self.beta_own is None else self.beta_own[:1],
        )


class Recorded(NamedTuple):
    """The gradients of all sites.

    Attributes:
        loss: mean loss in nats per prediction.
        sites: gradients of each site.
        left_out: module name → why its site is missing.
    """

    loss: float
    sites: list[SiteGradients]
    left_out: dict[str, str]


@dataclass
class _CallRecorder:
    """Recorder of the calls of `_attend`.

    Attributes:
        objective: meaning of the labels.
        sites: site of each module around a layer that reads the input of attention.
        predicted: as for `SiteGradients`.
        inputs: module of the site → what these layers read last.
        calls: gradients of each call; their β is still the zeros that were added to the logits.
        first: module of the site → x, query and key of the first sequence.
        own_token: whether gradients stay at each token, see `own_token`.
        is_known: whether `own_token` knows the form of attention in each call.
    """

    objective: Objective
    sites: Mapping[nn.Module, AttentionSite]
    predicted: Tensor
    inputs: dict[str, Tensor] = field(default_factory=dict)
    calls: list[SiteGradients] = field(default_factory=list)
    first: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    own_token: bool = False
    is_known: bool = True


_RECORDER: ContextVar[_CallRecorder] = ContextVar("_RECORDER")


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The model's own eager attention, with zeros on its logits whose gradients are kept.

    query: [S, heads, N, head_dim]. key, value: [S, key_heads, N, …]. attention_mask: added to the logits, [S, 1, N, N].
    """
    recorder = _RECORDER.get()
    attend_eagerly = getattr(sys.modules[type(module).__module__], EAGER, None)
    if attend_eagerly is None:
        raise UnsupportedModelError(f"the file that defines {type(module).__name__} has no function {EAGER}")
    size = (*query.shape[:3], key.shape[2])
    added = query.new_zeros(size, requires_grad=True)
    mask = _fit_mask(attention_mask, query.new_zeros(size[2:]), recorder.objective)
    call = AttentionCall(attend_eagerly, module, query, key, value, options)
    cap = options.get("softcap")
    slope = 1 if cap is None else _cap_slope(call, cap)  # the mask comes after the cap
    if recorder.own_token and recorder.is_known:
        recorder.is_known = has_known_form(call, mask, slope)
    if recorder.own_token and recorder.is_known:
        output, weights = attend_by_own_token(call, mask + added * slope, slope)
    else:
        output, weights = call.run(mask + added * slope)
    site = recorder.sites.get(module)
    if site is not None and site.module in recorder.inputs:
        x = recorder.inputs[site.module].detach()
        x = x.reshape(len(query), -1, x.shape[-1])
        seen = weights.detach() != 0
        predicted = recorder.predicted.to(x.device)
        recorder.calls.append(SiteGradients(site, x, added, seen, predicted, projections=None))
        recorder.first.setdefault(site.module, (x[:1], query[:1].detach(), key[:1].detach()))
    return output, weights


def _fit_mask(mask: Tensor | None, zeros: Tensor, objective: Objective) -> Tensor:
    """The model's mask, made to fit the objective; zeros: [N, N].

    clm: no token sees a later one. mlm: a token that sees another one is also seen by it.
    """
    mask = zeros if mask is None else mask
    if objective == "clm":
        return mask.masked_fill(torch.ones_like(zeros, dtype=torch.bool).triu(1), torch.finfo(zeros.dtype).min)
    hidden = mask <= torch.finfo(zeros.dtype).min / 2
    return torch.where(hidden & ~hidden.mT, mask.mT, mask)


def _cap_slope(call: AttentionCall, cap: float) -> Tensor:
    """The derivative of cap·tanh(s/cap) by the logits s, [S, heads, N, N]."""
    with torch.no_grad():
        return 1 - torch.tanh(call.scale * call.query @ call.repeat(call.key).mT / cap).square()


AttentionInterface.register(FUNCTION, _attend)
AttentionMaskInterface.register(FUNCTION, eager_mask)


def record_gradients(
    model: PreTrainedModel, batches: Sequence[Batch], objective: Objective, *, own_token: bool = False
) -> Recorded:
    """Run a model on batches, and keep the gradients of its mean loss by the logits of every attention site.

    Works inside `torch.no_grad` and `torch.inference_mode`, too. Memory grows with N·d_model and heads·N² for each
    sequence and site.

    Args:
        model: a model with a language model head. It runs in its own dtype and on its own device, without dropout, and
            is not changed.
        batches: `input_ids` and `labels`, [S, N] each, without padding; a label of -100 means that the token is not
            predicted.
        objective: meaning of the labels. It also decides which tokens see each other, whatever the model was trained
            on.
        own_token: also record `beta_own`, in a second run of each batch.

    Raises:
        UnsupportedModelError: the model does not run, is compiled, returns no logits of tokens, or does not use the
            attention functions of transformers.
        CorruptCheckpointError: the loss is not a number.

    It also raises the errors of `attngeo.attention_sites`.
    """
    require_gradients(model)
    store = ModuleStore(model, on_device=True)
    sites, left_out = sites_of(store, ReadingOptions(with_bias=True))
    sites = [site for site in sites if not site.is_cross]
    predictions = sum(int(_find_predicted(batch, objective).sum()) for batch in batches)
    by_module: dict[str, list[SiteGradients]] = {site.module: [] for site in sites}
    projections: dict[str, Projections | None] = {}
    loss = 0.0
    with torch.inference_mode(False), torch.enable_grad(), evaluate(model), _replace_attention(model):
        is_known = own_token and _keeps_to_tokens(model, batches, sites, objective)
        for batch in batches:
            share, recorder, gradients = _differentiate(model, batch, sites, objective, predictions)
            loss += share
            own_gradients: Sequence[Tensor | None] = [None] * len(gradients)
            if is_known:
                _, own, own_gradients = _differentiate(model, batch, sites, objective, predictions, own_token=True)
                is_known = own.is_known
            for call, beta, beta_own in zip(recorder.calls, gradients, own_gradients, strict=True):
                if beta is not None:  # the loss depends on it
                    if not is_known:
                        beta_own = None
                    elif beta_own is None:  # only through other tokens
                        beta_own = torch.zeros_like(beta)
                    by_module[call.site.module].append(call._replace(beta=beta, beta_own=beta_own))
                    if call.site.module not in projections:
                        first = recorder.first[call.site.module]
                        projections[call.site.module] = read_projections(store, call.site, *first)
    if not math.isfinite(loss):
        raise CorruptCheckpointError(f"the loss is {loss}, expected a finite number; check the weights")
    if not any(by_module.values()):
        raise _explain_no_attention(model)
    reason = f"{type(model).__name__} does not run it, or does not use the attention functions in transformers for it"
    left_out |= {module: reason for module, calls in by_module.items() if not calls}
    recorded = [_join(calls, projections[module]) for module, calls in by_module.items() if calls]
    return Recorded(loss, recorded, left_out)


def _differentiate(
    model: PreTrainedModel,
    batch: Batch,
    sites: Sequence[AttentionSite],
    objective: Objective,
    predictions: int,
    *,
    own_token: bool = False,
) -> tuple[float, _CallRecorder, Sequence[Tensor | None]]:
    """The part of the mean loss in one batch, its calls of attention, and the gradient by the logits of each call.

    Args:
        model: the model, whose attention is `_attend`.
        batch: the batch.
        sites: attention sites to record.
        objective: meaning of the labels.
        predictions: number of predictions in all batches.
        own_token: whether gradients stay at each token.

    Returns:
        A gradient is None if the loss does not depend on the logits.
    """
    with _follow(model, sites, objective, _find_predicted(batch, objective)) as recorder:
        recorder.own_token = own_token
        share = _compute_loss(model, batch, objective) / max(predictions, 1)
    zeros = [call.beta for call in recorder.calls]
    gradients: Sequence[Tensor | None] = [None] * len(zeros)
    if zeros and share.requires_grad:
        gradients = torch.autograd.grad(share, zeros, allow_unused=True)  # parameters get none
    return float(share.detach()), recorder, gradients


def _keeps_to_tokens(
    model: PreTrainedModel, batches: Sequence[Batch], sites: Sequence[AttentionSite], objective: Objective
) -> bool:
    """Whether gradients stay at each token with the attention of `own_token`: nothing else in the model mixes tokens.

    The loss of one late position must have no gradient by the logits of another one; a convolution over tokens or a
    recurrent layer would give some. The form of attention must be known, too. Arguments as for `_differentiate`.
    """
    for batch in batches:
        predicted = _find_predicted(batch, objective)
        if not bool(predicted.any()):
            continue
        places = torch.arange(predicted.shape[1], device=predicted.device)
        latest = places.where(predicted, -1).amax(1)
        row = int(latest.argmax())
        place = int(latest[row])
        label = place + (objective == "clm")
        labels = torch.full_like(batch["labels"][row : row + 1], NO_LABEL)
        labels[0, label] = batch["labels"][row, label]
        one = {"input_ids": batch["input_ids"][row : row + 1], "labels": labels}
        _, recorder, gradients = _differentiate(model, one, sites, objective, 1, own_token=True)
        others = [beta[:, :, places.to(beta.device) != place] for beta in gradients if beta is not None]
        return recorder.is_known and not any(bool(beta.any()) for beta in others)
    return True


def _join(calls: list[SiteGradients], projections: Projections | None) -> SiteGradients:
    """The gradients of all calls of one site."""
    return SiteGradients(
        calls[0].site,
        x=torch.cat([call.x for call in calls]),
        beta=torch.cat([call.beta for call in calls]),
        seen=torch.cat([call.seen for call in calls]),
        predicted=torch.cat([call.predicted for call in calls]),
        projections=projections,
        beta_own=_join_own(calls),
    )


def _join_own(calls: list[SiteGradients]) -> Tensor | None:
    """The own-token part of β of all calls of one site."""
    parts = [call.beta_own for call in calls if call.beta_own is not None]
    return torch.cat(parts) if len(parts) == len(calls) else None


def require_gradients(model: nn.Module) -> None:
    """Raise UnsupportedModelError for a model in memory that runs, but without gradients that can be recorded."""
    for module in model.modules():
        # There is no public name for either: of torch.compile(model), and of model.compile().
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise UnsupportedModelError(
                "the model is compiled (torch.compile), and compiled code does not call the functions that record "
                "gradients; give the model before compilation"
            )
    if any(weight.is_inference() for weight in model.parameters()):
        raise UnsupportedModelError(
            "the model was loaded inside torch.inference_mode(), so its weights have no gradients; load it outside"
        )


def _labels(batch: Batch, objective: Objective) -> Tensor:
    """The labels of the logits at each position, [S, N]: of its token, or with clm of the next one, if there is one."""
    labels = batch["labels"]
    return F.pad(labels[:, 1:], (0, 1), value=NO_LABEL) if objective == "clm" else labels


def _find_predicted(batch: Batch, objective: Objective) -> Tensor:
    """Whether the loss has a prediction at a position, [S, N]."""
    return _labels(batch, objective) != NO_LABEL


def _compute_loss(model: PreTrainedModel, batch: Batch, objective: Objective) -> Tensor:
    """The cross-entropy of one batch, summed over what is predicted."""
    ids = batch["input_ids"].to(model.device).clone()  # it may have been made in inference mode
    try:
        with explain_memory(LESS):
            logits = model(input_ids=ids).logits
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not run on {len(ids)} × {ids.shape[1]} tokens, expected a language model "
            f"that returns logits ({first_line(error)})"
        ) from error
    labels = _labels(batch, objective).to(model.device)
    chosen = labels != NO_LABEL
    wide = logits[chosen].to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, labels[chosen], reduction="sum")


@contextmanager
def _follow(
    model: nn.Module, sites: Sequence[AttentionSite], objective: Objective, predicted: Tensor
) -> Iterator[_CallRecorder]:
    """Inside, `_attend` notes what the modules of these sites compute.

    Of the modules around a reader, only one calls the attention function, and it is around no other.
    """
    modules = dict(model.named_modules())
    owners: dict[nn.Module, AttentionSite] = {}
    recorder = _CallRecorder(objective, owners, predicted)

    def note(site: AttentionSite) -> Any:
        return lambda _, arguments: recorder.inputs.__setitem__(site.module, arguments[0])

    token = _RECORDER.set(recorder)
    try:
        with ExitStack() as hooks:
            for site in sites:
                weight = next(site.tensors[role] for role in READERS if role in site.tensors)
                reader = weight.rpartition(".")[0]
                hooks.callback(modules[reader].register_forward_pre_hook(note(site)).remove)
                while reader:
                    owners[modules[reader]] = site
                    reader = reader.rpartition(".")[0]
            yield recorder
    finally:
        _RECORDER.reset(token)


@contextmanager
def _replace_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model attends by `_attend`."""
    before = model.config._attn_implementation  # there is no public name for it
    with silence_transformers(50):
        with suppress(ValueError, KeyError, ImportError):
            model.set_attn_implementation(FUNCTION)
        if model.config._attn_implementation != FUNCTION:
            raise _explain_no_attention(model)
        try:
            yield
        finally:
            model.set_attn_implementation(before)


def _explain_no_attention(model: PreTrainedModel) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(model).__name__} does not use the attention functions in transformers, so the gradients of its logits "
        "cannot be recorded; use attngeo score, which needs only the weights"
    )
