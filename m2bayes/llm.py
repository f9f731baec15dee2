"""The shape of an LLM: what its ``config.json`` says about matrix sizes. Opens no file."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

from m2bayes._families import gated_and_tied, refuse_unmodelled
from m2bayes.errors import WorkloadError

_LIMITS = {"layers": 10**4, "heads": 10**5, "kv_heads": 10**5, "vocab": 10**8, "max_context": 10**8}
_WIDTH_LIMIT = 10**7  # hidden, intermediate, head_dim

# names of each size in config.json: the usual one, OPT's, GPT-2's
_KEYS = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "intermediate": ("intermediate_size", "ffn_dim", "n_inner"),
    "vocab": ("vocab_size",),
    "max_context": ("max_position_embeddings", "n_positions"),
}


@dataclass(frozen=True)
class LLM:
    """Shape of a dense decoder-only transformer with multi-head or grouped-query attention.

    Parameters
    ----------
    name : str
        Name used in messages and results.
    layers, hidden, heads, kv_heads, head_dim, intermediate, vocab : int
        Decoder layers, model width, query heads, key/value heads, width of a head, width of the
        MLP and number of token ids [1]; each at least 1, `heads` a multiple of `kv_heads`.
    gated : bool
        Whether the MLP has a gate beside the up projection (SwiGLU, GeGLU).
    tied_embeddings : bool
        Whether the LM head reuses the embedding table.
    max_context : int
        Longest sequence the LLM was made for [token].
    repository : str
        Where engines find it on Hugging Face, such as ``Qwen/Qwen3-8B``; empty if unknown.
    window : int or None
        How far attention looks back [token], if not over all; not modelled.
    quantised : str
        How the configuration says that its weights are stored, such as ``fp8``; empty if in full.

    Raises
    ------
    WorkloadError
        If a size is no whole number, below 1, absurdly large, or heads do not group.

    Examples
    --------
    >>> LLM(name="tiny", layers=1, hidden=8, heads=4, kv_heads=2, head_dim=2, intermediate=16,
    ...     gated=False, vocab=10, tied_embeddings=True, max_context=32).kv_heads
    2
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    gated: bool
    vocab: int
    tied_embeddings: bool
    max_context: int
    repository: str = ""
    window: int | None = None
    quantised: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                _whole(value, field.name, self.name, _LIMITS.get(field.name, _WIDTH_LIMIT))
            elif field.type == "bool" and not isinstance(value, bool):
                raise WorkloadError(f"{self.name}: {field.name} must be True or False")
        _check_grouping(self.heads, self.kv_heads, self.name)


def llm_from_config(config: Mapping[str, Any], *, name: str, origin: str) -> LLM:
    """Read the shape out of a Hugging Face style ``config.json``.

    Defaults are those of the model's own code: as many key/value heads as heads, ``head_dim`` =
    hidden / heads, a gate in the MLP by ``model_type`` (an unknown one counts as gated if its
    activation is SiLU, and is refused otherwise). A nested ``text_config`` is read in place of
    the top level. Biases, norms and position tables leave no trace.

    Parameters
    ----------
    config : Mapping
        The parsed file; sizes are whole numbers [1].
    name, origin : str
        Name of the LLM, and where the file came from, for messages.

    Returns
    -------
    LLM
        The shape, no dims; all sizes [1], `max_context` [token].

    Raises
    ------
    WorkloadError
        If a field is missing or impossible, or the LLM is of a kind that is not modelled:
        mixture-of-experts, latent attention, state-space layers, encoder-decoder.

    Examples
    --------
    >>> config = dict(model_type="gpt2", n_embd=768, n_layer=12, n_head=12, n_positions=1024,
    ...               vocab_size=50257)
    >>> gpt2 = llm_from_config(config, name="gpt2", origin="gpt2/config.json")
    >>> gpt2.head_dim, gpt2.intermediate, gpt2.gated
    (64, 3072, False)
    """
    flat = _flat(config, origin)
    gated, tied = gated_and_tied(flat, origin)
    hidden, heads = _size(flat, "hidden", origin), _size(flat, "heads", origin)
    defaults = {"kv_heads": heads}
    if hidden % heads == 0:
        defaults["head_dim"] = hidden // heads
    if flat.get("model_type") in ("gpt2", "gptj"):
        defaults["intermediate"] = 4 * hidden
    sizes = {field: _size(flat, field, origin, defaults.get(field)) for field in _KEYS}
    _check_grouping(heads, sizes["kv_heads"], origin)
    if flat.get("word_embed_proj_dim", hidden) != hidden:
        raise WorkloadError(
            f"{origin}: word_embed_proj_dim other than {hidden} is not modelled yet"
        )
    window = flat.get("sliding_window") if flat.get("use_sliding_window", True) else None
    stored = flat.get("quantization_config")
    return LLM(
        name=name,
        gated=gated,
        tied_embeddings=tied,
        **sizes,
        repository=_repository(flat),
        window=window if isinstance(window, int) and 0 < window < sizes["max_context"] else None,
        quantised=str(stored.get("quant_method", ""))[:20] if isinstance(stored, Mapping) else "",
    )


def _repository(flat: Mapping[str, Any]) -> str:
    """Repository that a configuration says it is from, if what it says looks like one."""
    said = str(flat.get("_name_or_path", ""))
    return said if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", said) else ""


def _flat(config: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Fields that are set, those of ``text_config`` first; refuses what is not modelled."""
    nested = config.get("text_config") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(nested, Mapping | None):
        raise WorkloadError(f"{origin}: expected an object of fields, as in a config.json")
    for part in (config, nested or {}):
        refuse_unmodelled(part, origin)
    merged = {**config, **{k: v for k, v in (nested or {}).items() if v is not None}}
    return {k: v for k, v in merged.items() if v is not None}


def _size(flat: Mapping[str, Any], field: str, origin: str, default: int | None = None) -> int:
    """One size [1] under any of its names."""
    key = next((k for k in _KEYS[field] if k in flat), None)
    if key is None and default is None:
        raise WorkloadError(
            f"{origin}: {_KEYS[field][0]} is missing; copy it from the LLM's config.json"
        )
    value = default if key is None else flat[key]
    return _whole(value, key or field, origin, _LIMITS.get(field, _WIDTH_LIMIT))


def _check_grouping(heads: int, kv_heads: int, origin: str) -> None:
    if heads % kv_heads:
        raise WorkloadError(
            f"{origin}: the number of attention heads, {heads}, must be a multiple of the number "
            f"of key/value heads, {kv_heads}; correct num_key_value_heads"
        )


def _whole(value: Any, field: str, origin: str, limit: int) -> int:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not 1 <= int(value) <= limit:
        raise WorkloadError(
            f"{origin}: {field} must be a whole number from 1 to {limit:,}, "
            f"not {reprlib.repr(value)}"
        )
    return int(value)
