"""Gradients by attention logits, against autograd through the weights of running models, in float64."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.messages import refuses
from support.tiny_models import LLAMA, TEXT, TinyModel, build
from torch import Tensor, nn

import attngeo
from attngeo.attention.finding import sites_of
from attngeo.attention.projections import key_heads_of, projections
from attngeo.checkpoints.store import ModuleStore
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError
from attngeo.geometry.factors import rotate
from attngeo.layouts.layout import AttentionSite
from attngeo.layouts.rotary import rotary_frequencies
from attngeo.scores.options import ScoreOptions
from attngeo.updates.change import change_form
from attngeo.updates.recording import SiteGradients, record_gradients
from attngeo.updates.statistics import tabulate_site

Build = Callable[[str], Any]
SEQUENCES, TOKENS = 3, 9
MORE = {
    # Grouped-query attention without rotary embeddings and with biases.
    "smollm3": TinyModel("smollm3", "SmolLM3ForCausalLM", LLAMA | {"no_rope_layers": [0, 0], "attention_bias": True}),
    "opt-pre": TinyModel("opt", "OPTForCausalLM", TEXT | {"hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 24,
                         "num_attention_heads": 4, "max_position_embeddings": 40, "word_embed_proj_dim": 32}),
    "gemma2-cap": TinyModel(
        "gemma2", "Gemma2ForCausalLM", LLAMA | {"query_pre_attn_scalar": 9, "attn_logit_softcapping": 0.5}
    ),
}  # fmt: skip
# Pre-norm and post-norm, with and without biases, fused and separate, one key head or several.
BILINEAR = ["bert", "bert-decoder", "distilbert", "gpt2", "gpt_bigcode", "smollm3", "opt-pre"]
ROTARY = ["llama", "qwen2", "gpt_neox", "phi", "gemma2-cap"]


def draw_batch(vocabulary: int = 64, seed: int = 0) -> dict[str, Tensor]:
    ids, chosen = (torch.rand(SEQUENCES, TOKENS, generator=torch.Generator().manual_seed(seed + n)) for n in (0, 1))
    ids = (3 + ids * (vocabulary - 3)).long()
    return {"input_ids": ids, "labels": torch.where(chosen < 0.6, ids, -100)}


def build_wide(name: str, built: Build) -> Any:
    model = build(MORE[name]) if name in MORE else copy.deepcopy(built(name))
    return model.double()


def run_by_hand(model: Any, batch: dict[str, Tensor], objective: str, place: int | None = None) -> Tensor:
    """The loss of the model itself: its own attention and mask, the logits of each prediction one by one.

    place: only of this position, as a share of all.
    """
    logits = model(input_ids=batch["input_ids"]).logits
    losses = [
        (at - (objective == "clm"), -torch.log_softmax(logits[row, at - (objective == "clm")], -1)[label])
        for row, labels in enumerate(batch["labels"].tolist())
        for at, label in enumerate(labels) if label >= 0 and (objective == "mlm" or at)
    ]  # fmt: skip
    chosen = [loss for at, loss in losses if place in (None, at)]
    return torch.stack([*chosen, logits.sum() * 0]).sum() / len(losses)


@contextmanager
def keep_one_token(model: Any, place: int) -> Iterator[None]:
    """Inside, all rows but one are constants among the inputs of each layer."""

    def detach_others(_: Any, arguments: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
        hidden = arguments[0] if arguments else named.pop("hidden_states")
        at = torch.tensor([place])
        return (hidden.detach().index_copy(1, at, hidden[:, place : place + 1]), *arguments[1:]), named

    (layers,) = (part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == 2)
    hooks = [layer.register_forward_pre_hook(detach_others, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def cut_heads(model: Any, gradients: SiteGradients) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The q and k of one site with their biases, [heads, head_dim, d_model + 1], and their gradients by autograd."""
    options, parameters = ScoreOptions(with_bias=True), dict(model.named_parameters())
    (site,) = (site for site in sites_of(ModuleStore(model), options)[0] if site.module == gradients.site.module)
    known = [{name: getattr(parameters[name], part) for name in site.tensors.values()} for part in ("data", "grad")]
    parts = []
    for tensors in known:
        tensors = {name: x[site.reads[name]] for name, x in tensors.items()}
        q, k, _ = projections(site, tensors, options, dtype=torch.float64)
        if q.shape[-1] == gradients.x.shape[-1]:  # no biases
            q, k = (torch.cat([w, w.new_zeros(*w.shape[:2], 1)], -1) for w in (q, k))
        parts.append({"q": q, "k": k})
    return parts[0], parts[1]


def record_with_autograd(name: str, built: Build, *, own_token: bool = False) -> tuple[Any, list[SiteGradients]]:
    """The recorded gradients of a model, and the model with the gradients of its parameters.

    own_token: those by the error of each token that stays at its position, as β and by autograd, token after token.
    """
    model, batch = build_wide(name, built), draw_batch()
    objective = "mlm" if name in ("bert", "distilbert") else "clm"
    recorded = record_gradients(model, [batch], objective, own_token=own_token)
    loss = run_by_hand(model, batch, objective)
    assert recorded.loss == pytest.approx(loss.item(), rel=1e-9)
    assert recorded.left_out == {}
    if not own_token:
        loss.backward()
        return model, recorded.sites
    for place in range(TOKENS):
        with keep_one_token(model, place):
            run_by_hand(model, batch, objective, place).backward()
    sites = []
    for gradients in recorded.sites:
        assert gradients.beta_own is not None
        sites.append(gradients._replace(beta=gradients.beta_own))
    return model, sites


def scale_of(model: Any, gradients: SiteGradients) -> float:
    scaling = getattr(model.get_submodule(gradients.site.module), "scaling", None)
    return gradients.site.head_dim**-0.5 if scaling is None else float(scaling)


def close(have: Tensor, want: Tensor, tolerance: float) -> bool:
    return bool((have - want).norm() <= tolerance * want.norm()) and bool(want.norm() > 0)


@pytest.mark.parametrize("own_token", [False, True])
@pytest.mark.parametrize("name", BILINEAR)
def test_the_update_times_the_other_weight_is_the_gradient_of_a_weight(
    name: str, own_token: bool, built: Build
) -> None:
    """∂L/∂Wq = scale·ΔM·Wk and ∂L/∂Wk = scale·Σ ΔMᵀ·Wq, with the biases as weights of one more input that is 1."""
    model, sites = record_with_autograd(name, built, own_token=own_token)
    assert len(sites) == 2
    for gradients in sites:
        site = gradients.site
        x = gradients.x
        beta = gradients.beta
        weights, expected = cut_heads(model, gradients)
        with_one = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        updates = torch.einsum("shij,sid,sje->hde", beta, with_one, with_one) * scale_of(model, gradients)
        groups = key_heads_of(site, "corrected")
        by_query = torch.einsum("hde,hre->hrd", updates, weights["k"][groups])
        by_key = torch.einsum("hde,hrd->hre", updates, weights["q"])
        by_key = torch.zeros_like(weights["k"]).index_add(0, torch.tensor(groups), by_key)
        has_bias = bool(expected["q"][..., -1].any())
        for have, want in ((by_query, expected["q"]), (by_key, expected["k"])):
            have, want = (part if has_bias else part[..., :-1] for part in (have, want))
            assert close(have, want, 1e-10), site.module


@pytest.mark.parametrize("own_token", [False, True])
@pytest.mark.parametrize("name", ROTARY)
def test_the_gradients_are_those_of_the_logits_of_each_pair(name: str, own_token: bool, built: Build) -> None:
    """∂L/∂W = ∂/∂W Σ β_ij·s_ij with the model's own rotation of x·Wq and x·Wk at each position."""
    model, sites = record_with_autograd(name, built, own_token=own_token)
    for gradients in sites:
        site = gradients.site
        x = gradients.x
        beta = gradients.beta
        weights, expected = cut_heads(model, gradients)
        q, k = (weights[letter].requires_grad_() for letter in "qk")
        file = sys.modules[type(model.get_submodule(site.module)).__module__]
        cosine, sine = model.base_model.rotary_emb(x, torch.arange(TOKENS)[None].expand(SEQUENCES, -1))
        with_one = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        heads = [torch.einsum("sid,hrd->shir", with_one, weight) for weight in (q, k)]
        size = cosine.shape[-1]
        turned = file.apply_rotary_pos_emb(*(part[..., :size] for part in heads), cosine, sine)
        query, key = (torch.cat([a, b[..., size:]], -1) for a, b in zip(turned, heads, strict=True))
        logits = torch.einsum("shir,shjr->shij", query, key[:, key_heads_of(site, "corrected")])
        (beta * logits * scale_of(model, gradients)).sum().backward()
        has_bias = bool(expected["q"][..., -1].any())
        for weight, want in ((q, expected["q"]), (k, expected["k"])):
            have, want = (part if has_bias else part[..., :-1] for part in (weight.grad, want))
            assert close(have, want, 1e-10), site.module


def test_with_rotary_embeddings_each_offset_has_its_own_update(built: Build) -> None:
    """∂L/∂Wq = scale·Σ_Δ ΔM_Δ·Wk·R_Δᵀ: to the digits of the model's own angles, which are of float32."""
    model, sites = record_with_autograd("llama", built)
    for gradients in sites:
        site = gradients.site
        x = gradients.x
        beta = gradients.beta
        weights, expected = cut_heads(model, gradients)
        frequencies = rotary_frequencies(site.section, site.family, site.head_dim, site.layer)
        with_one = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        keys, total, places = weights["k"][key_heads_of(site, "corrected")], torch.zeros(()), torch.arange(TOKENS)
        for offset in range(TOKENS):
            part = beta * (places[:, None] - places == offset)
            update = torch.einsum("shij,sid,sje->hde", part, x, with_one) * scale_of(model, gradients)
            angles = -offset * frequencies
            turned = rotate(keys, angles.cos(), angles.sin(), interleaved=False)
            total = total + torch.einsum("hde,hre->hrd", update, turned)
        assert close(total, expected["q"][..., :-1], 1e-5)


def form_scored(model: Any, site: AttentionSite) -> Tensor:
    """W_qk of each head, as `attngeo.score` reads it, [heads, d_model, d_model]."""
    q, k, _ = projections(site, ModuleStore(model).read_all(site.reads), dtype=torch.float64)
    return q.mT @ k[key_heads_of(site, "corrected")]


@pytest.mark.parametrize("name", [*BILINEAR, *ROTARY])
def test_the_change_is_that_of_a_step_of_gradient_descent(name: str, built: Build) -> None:
    """W_qk after a small step on all parameters, less W_qk before: with biases, grouped queries and rotations."""
    model, recorded = record_with_autograd(name, built)
    before = [form_scored(model, gradients.site) for gradients in recorded]
    changes = []
    for gradients in recorded:
        assert gradients.projections is not None
        projected = gradients.projections.project(gradients.x)
        left, right, key_heads = change_form(gradients.projections, gradients.x, projected, gradients.beta)
        assert left.shape[1:] == (2 * gradients.site.head_dim, gradients.site.d_model)
        changes.append(left.mT @ right[key_heads])
    gradient_norm = max(float(p.grad.norm()) for p in model.parameters() if p.grad is not None)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-6 / gradient_norm * parameter.grad
    for gradients, form, change in zip(recorded, before, changes, strict=True):
        difference = form_scored(model, gradients.site) - form
        factor = float((change * difference).sum() / change.square().sum())
        assert factor < 0  # a step goes down the gradient
        assert close(factor * change, difference, 1e-4 if name in ROTARY else 1e-5), gradients.site.module


@pytest.mark.parametrize(
    ("name", "is_known"),
    [("gemma3_text", False), ("cohere-qk-norm", False), ("olmo2", False), ("deepseek_v3", False), ("mixtral", True),
     ("gpt_oss", True), ("phi3", True)],
)  # fmt: skip
def test_the_change_is_missing_if_logits_are_no_product_of_the_weights(name: str, is_known: bool, built: Build) -> None:
    """A normalisation of queries and keys, and latent attention; not attention sinks or partial rotations."""
    recorded = record_gradients(copy.deepcopy(built(name)), [draw_batch()], "clm")
    for gradients in recorded.sites:
        assert (gradients.projections is not None) == is_known
        for row in tabulate_site(gradients, torch.Generator().manual_seed(0)):
            assert math.isnan(row["change_symmetry"]) == (not is_known)
            assert ("change of W_qk missing" in row["note"]) == (not is_known)
            assert not math.isnan(row["symmetry"])


def test_a_position_is_predicted_if_the_loss_has_a_prediction_there(built: Build) -> None:
    """With clm that of the next token: the last one has none."""
    batch = draw_batch()
    labelled = batch["labels"] != -100
    for objective, expected in (
        ("mlm", labelled),
        ("clm", torch.cat([labelled[:, 1:], torch.zeros_like(labelled[:, :1])], 1)),
    ):
        for gradients in record_gradients(build_wide("bert", built), [batch], objective).sites:
            assert torch.equal(gradients.predicted, expected)


def test_a_causal_mask_leaves_no_gradient_by_later_tokens_and_rows_sum_to_zero(built: Build) -> None:
    batch = draw_batch()
    for name, objective in (("bert", "clm"), ("bert-decoder", "clm"), ("llama", "clm"), ("bert-decoder", "mlm")):
        for gradients in record_gradients(build_wide(name, built), [batch], objective).sites:
            beta = gradients.beta
            seen = gradients.seen
            later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
            assert bool((beta[..., later] == 0).all()) == (objective == "clm")
            assert bool(seen[..., later].any()) == (objective == "mlm")
            assert bool(seen[..., ~later].all())
            assert bool(beta.any())
            assert beta.sum(-1).abs().max() < 1e-6 * beta.abs().max()


def test_batches_do_not_matter_and_the_model_is_left_as_it_was(built: Build) -> None:
    model = build_wide("bert", built)
    model.train()
    model.set_attn_implementation("sdpa")
    batch = draw_batch()
    whole = record_gradients(model, [batch], "mlm")
    parts = record_gradients(
        model, [{name: x[at] for name, x in batch.items()} for at in (slice(1), slice(1, 3))], "mlm"
    )
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    for one, other in zip(whole.sites, parts.sites, strict=True):
        torch.testing.assert_close(one.x, other.x, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(one.beta, other.beta, rtol=1e-9, atol=1e-12)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_module_that_runs_several_times_has_its_sequences_for_each(built: Build) -> None:
    import transformers

    model = transformers.AlbertForMaskedLM(built("albert").config).eval()
    recorded = record_gradients(model, [draw_batch()], "mlm")
    assert [len(part.x) for part in recorded.sites] == [SEQUENCES * 3, SEQUENCES * 2]


def test_models_that_do_not_use_the_function_are_refused_by_name(built: Build) -> None:
    for name, reason in (
        ("gpt_neo", "GPTNeoForCausalLM does not use"),
        ("bloom", "BloomForCausalLM does not use"),
    ):
        with pytest.raises(UnsupportedModelError, match=f"^{reason}"):
            record_gradients(copy.deepcopy(built(name)), [draw_batch()], "clm")
    with pytest.raises(UnsupportedModelError, match="RobertaModel does not run"):
        record_gradients(copy.deepcopy(built("roberta")), [draw_batch()], "mlm")
    broken = copy.deepcopy(built("bert"))
    next(broken.parameters()).data.fill_(float("nan"))
    with pytest.raises(CorruptCheckpointError, match="loss is nan"):
        record_gradients(broken, [draw_batch()], "mlm")


@pytest.mark.parametrize(
    "name", ["gpt_oss", "deepseek_v3", "mixtral", "gemma3_text", "cohere-qk-norm", "phi3", "olmo2", "gpt_bigcode-mha"]
)
def test_the_loss_is_that_of_the_model_itself(name: str, built: Build) -> None:
    """Attention sinks, latent attention, sliding windows, norms of queries and keys: the model's own attention runs."""
    model, batch = copy.deepcopy(built(name)), draw_batch()
    recorded = record_gradients(model, [batch], "clm")
    assert recorded.loss == pytest.approx(run_by_hand(model, batch, "clm").item(), rel=1e-4)
    assert recorded.left_out == {}
    assert all(part.beta.isfinite().all() and part.beta.any() for part in recorded.sites)


def test_gradients_are_recorded_where_autograd_is_off(built: Build) -> None:
    model, batch = build_wide("gpt2", built), draw_batch()
    expected = record_gradients(model, [batch], "clm")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = record_gradients(model, [{name: tensor.clone() for name, tensor in batch.items()}], "clm")
        assert found.loss == expected.loss
        for one, other in zip(found.sites, expected.sites, strict=True):
            torch.testing.assert_close(one.beta, other.beta)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules, when it compiles
def test_models_without_gradients_are_refused_with_the_reason(built: Build) -> None:
    """Compiled as a whole or in part, or loaded where tensors have no gradients."""
    part = copy.deepcopy(built("gpt2"))
    part.transformer.h[0].compile()
    with torch.inference_mode():
        loaded = copy.deepcopy(built("gpt2"))
    models: list[tuple[Any, list[str]]] = [
        (torch.compile(copy.deepcopy(built("gpt2"))), ["torch.compile"]),
        (part, ["torch.compile"]),
        (loaded, ["torch.inference_mode()", "outside"]),
    ]
    for model, facts in models:
        with refuses(UnsupportedModelError, *facts):
            record_gradients(model, [draw_batch()], "clm")
        with refuses(UnsupportedModelError, *facts):
            attngeo.gradients(model)


def keep_position(batch: dict[str, Tensor], place: int) -> dict[str, Tensor]:
    """The batch with the predictions of one position alone; label by label, the next token is predicted."""
    labels = torch.full_like(batch["labels"], -100)
    labels[:, place + 1] = batch["labels"][:, place + 1]
    return batch | {"labels": labels}


@pytest.mark.parametrize(
    "name",
    ["gpt2", "llama", "gemma2-cap", "smollm3", "gpt_oss", "deepseek_v3", "mixtral", "gemma3_text", "cohere-qk-norm",
     "phi3", "gpt_bigcode-mha"],
)  # fmt: skip
def test_under_a_causal_mask_own_token_errors_are_those_of_each_prediction_alone(name: str, built: Build) -> None:
    """No error comes back to the token it left: the row of a token is that of the gradient of its own loss."""
    model = build(MORE[name]) if name in MORE else copy.deepcopy(built(name))  # experts need float32
    batch = draw_batch()
    whole = record_gradients(model, [batch], "clm", own_token=True)
    predictions = int((batch["labels"][:, 1:] != -100).sum())
    for place in (3, TOKENS - 2):
        alone = keep_position(batch, place)
        share = int((alone["labels"] != -100).sum()) / predictions
        assert share
        for gradients, of_one in zip(whole.sites, record_gradients(model, [alone], "clm").sites, strict=True):
            assert gradients.beta_own is not None
            assert close(gradients.beta_own[:, :, place], share * of_one.beta[:, :, place], 1e-3)
    assert not close(whole.sites[0].beta, whole.sites[0].beta_own, 0.01)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "objective"), [("bert", "mlm"), ("gpt2", "clm"), ("llama", "clm")])
def test_the_own_token_part_of_the_last_layer_is_the_whole_and_of_one_layer_too(
    name: str, objective: Any, built: Build
) -> None:
    recorded = record_gradients(build_wide(name, built), [draw_batch()], objective, own_token=True)
    first, last = recorded.sites
    assert first.beta_own is not None
    assert last.beta_own is not None
    assert close(last.beta_own, last.beta, 1e-13)
    assert not close(first.beta_own, first.beta, 0.01)
    config = copy.deepcopy(built(name).config)
    config.num_hidden_layers = 1
    single = type(built(name))(config).double().eval()
    (only,) = record_gradients(single, [draw_batch()], objective, own_token=True).sites
    assert only.beta_own is not None
    assert close(only.beta_own, only.beta, 1e-13)


def test_own_token_errors_do_not_depend_on_batches_and_are_recorded_only_if_asked_for(built: Build) -> None:
    model = build_wide("bert", built)
    batch = draw_batch()
    whole = record_gradients(model, [batch], "mlm", own_token=True)
    parts = [{name: x[at] for name, x in batch.items()} for at in (slice(1), slice(1, 3))]
    for one, other in zip(whole.sites, record_gradients(model, parts, "mlm", own_token=True).sites, strict=True):
        assert one.beta_own is not None
        assert other.beta_own is not None
        torch.testing.assert_close(one.beta_own, other.beta_own, rtol=1e-9, atol=1e-12)
    for one, other in zip(whole.sites, record_gradients(model, [batch], "mlm").sites, strict=True):
        assert other.beta_own is None
        assert torch.equal(one.beta, other.beta)


class MixTokens(nn.Module):
    """A layer that also reads the tokens before, as a convolution does."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["mixed", "scaled"])
def test_the_own_token_part_is_missing_if_anything_else_mixes_tokens(
    kind: str, built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution in the last layer, and a function of attention with another scale than it is told."""
    model = build_wide("gpt2", built)
    if kind == "mixed":
        model.transformer.h[1].mlp = MixTokens(model.transformer.h[1].mlp)
    else:
        file = sys.modules[type(model.transformer.h[0].attn).__module__]
        attend = file.eager_attention_forward
        monkeypatch.setattr(
            file,
            "eager_attention_forward",
            lambda module, query, *args, **more: attend(module, 2 * query, *args, **more),
        )
    recorded = record_gradients(model, [draw_batch()], "clm", own_token=True)
    assert all(gradients.beta_own is None for gradients in recorded.sites)
    for gradients in recorded.sites:
        for row in tabulate_site(gradients, torch.Generator().manual_seed(0), own_token=True):
            assert math.isnan(row["own_token_share"])
            assert math.isnan(row["other_tokens_share"])
            assert "own-token part missing" in row["note"]
            assert not math.isnan(row["symmetry"])
