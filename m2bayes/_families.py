"""What each family of LLM is known to be, and which kinds are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from m2bayes.errors import WorkloadError

# model_type: (gated MLP?, embedding and LM head tied unless the config says otherwise?)
_FAMILIES = {
    **dict.fromkeys(["llama", "mistral", "qwen2", "qwen3", "qwen3_vl_text"], (True, False)),
    **dict.fromkeys(["phi3", "olmo", "olmo2", "granite", "stablelm", "glm4"], (True, False)),
    **dict.fromkeys(["gemma", "gemma2", "gemma3_text", "cohere", "smollm3"], (True, True)),
    **dict.fromkeys(["phi", "gpt_neox", "gptj", "nemotron"], (False, False)),
    **dict.fromkeys(["opt", "gpt2", "starcoder2"], (False, True)),
}
# what is refused: words in model_type, words in the name of any field that is set
_NOT_MODELLED = {
    "mixture-of-experts": (["moe", "mixtral", "deepseek_v2", "deepseek_v3"], ["expert", "moe_"]),
    "multi-head latent attention": ([], ["kv_lora_rank"]),
    "a state-space or linear-attention layer": (
        ["mamba", "ssm", "rwkv", "jamba", "bamba", "recurrent_gemma", "nemotron_h", "falcon_h1"],
        ["mamba", "ssm_", "state_size", "d_state", "linear_conv", "hybrid_override_pattern"],
    ),
    "an encoder-decoder": (["t5", "bart", "whisper", "marian"], ["is_encoder_decoder"]),
    "a layer of its own shape": ([], ["block_configs", "cross_attention_layers"]),
}


def refuse_unmodelled(config: Mapping[str, Any], origin: str) -> None:
    """Raise WorkloadError, naming kind and field, for an LLM that is no plain dense decoder."""
    kind = str(config.get("model_type") or "").lower()
    for what, (kinds, marks) in _NOT_MODELLED.items():
        found = [k for k, v in config.items() if v and any(mark in k for mark in marks)]
        found += [f"model_type {kind}"] if any(word in kind for word in kinds) else []
        if found:
            mark = found[0] if found[0].isprintable() else ascii(found[0])
            raise WorkloadError(
                f"{origin}: {what} ({mark}) is not modelled yet; give a dense decoder-only LLM"
            )


def gated_and_tied(flat: Mapping[str, Any], origin: str) -> tuple[bool, bool]:
    """Whether the MLP has a gate, and whether the LM head reuses the embedding table."""
    kind = str(flat.get("model_type", "none"))
    activation = flat.get("hidden_act") or flat.get("activation_function")
    tied = flat.get("tie_word_embeddings")
    if tied is not None and not isinstance(tied, bool):
        raise WorkloadError(f"{origin}: tie_word_embeddings must be true or false, not {tied!r}")
    if kind in _FAMILIES:
        gated, tied_default = _FAMILIES[kind]
        return gated, tied_default if tied is None else tied
    if "model_type" not in flat and activation is None:
        raise WorkloadError(f"{origin}: model_type is missing; copy it from the LLM's config.json")
    if activation not in ("silu", "swish"):
        raise WorkloadError(
            f"{origin}: cannot tell whether the MLP of model_type {kind!r} has a gate; "
            f"known model types: {', '.join(sorted(_FAMILIES))}"
        )
    if tied is None:
        raise WorkloadError(
            f"{origin}: tie_word_embeddings is missing; add true or false (model_type {kind!r} "
            "has no known default)"
        )
    return True, tied
