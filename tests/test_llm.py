"""An LLM's shape is what its config.json says, and nothing that is not modelled slips through."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from m2bayes.errors import WorkloadError
from m2bayes.llm import LLM, llm_from_config

CARDS = sorted((Path(__file__).parents[1] / "data" / "llms").glob("*.json"))
NAMES = {
    *("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3-8b", "llama-3.2-1b"),
    *("llama-3.2-3b", "llama-2-7b", "llama-2-13b", "llama-2-70b", "mistral-7b", "qwen3-8b"),
    *("qwen3-32b", "opt-13b", "opt-66b", "phi-2"),
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def read(**changes):
    """The Llama config with fields changed, or taken out by None."""
    config = {k: v for k, v in (LLAMA | changes).items() if v is not None}
    return llm_from_config(config, name="x", origin="x/config.json")


def refusal(**changes):
    with pytest.raises(WorkloadError) as caught:
        read(**changes)
    message = str(caught.value)
    assert message.startswith("x/config.json: ")
    assert "\n" not in message
    return message


def test_every_promised_card_is_there():
    assert {path.stem for path in CARDS} == NAMES


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_a_card_has_the_agreed_fields_and_parses(path):
    card = json.loads(path.read_text())
    assert set(card) == {"name", "aliases", "source", "date", "license", "config"}
    assert card["name"] == path.stem
    assert all(isinstance(alias, str) for alias in card["aliases"])
    assert card["source"].endswith(" config.json")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", card["date"])
    llm = llm_from_config(card["config"], name=card["name"], origin=path.name)
    assert llm.heads * llm.head_dim % 128 == 0


def test_no_two_cards_answer_to_one_name():
    cards = [json.loads(path.read_text()) for path in CARDS]
    names = [name for card in cards for name in (card["name"], *card["aliases"])]
    assert len(names) == len(set(names))


def test_llama_is_gated_untied_and_grouped():
    assert read() == LLM(
        name="x",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate=14336,
        gated=True,
        vocab=128256,
        tied_embeddings=False,
        max_context=131072,
    )


def test_without_key_value_heads_attention_is_multi_head():
    assert read(num_key_value_heads=None).kv_heads == 32


def test_a_window_and_stored_numbers_are_kept_to_be_told():
    assert read(sliding_window=1024).window == 1024
    assert read(sliding_window=1024, use_sliding_window=False).window is None
    assert read(sliding_window=10**6).window is None
    assert read(quantization_config={"quant_method": "fp8"}).quantised == "fp8"
    assert (read().window, read().quantised) == (None, "")


def test_a_given_head_dim_wins_over_hidden_by_heads():
    assert read(head_dim=64).head_dim == 64
    assert read(hidden_size=4097, head_dim=64).head_dim == 64
    assert "head_dim is missing" in refusal(hidden_size=4097)


def test_tying_follows_the_config_then_the_family():
    assert read(tie_word_embeddings=True).tied_embeddings
    assert read(model_type="gemma").tied_embeddings
    assert not read(model_type="gemma", tie_word_embeddings=False).tied_embeddings
    assert "tie_word_embeddings must be true or false" in refusal(tie_word_embeddings="no")


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3"])
def test_these_families_have_a_gate(family):
    assert read(model_type=family).gated


@pytest.mark.parametrize("family", ["opt", "phi", "gpt_neox", "gpt2"])
def test_these_families_have_no_gate(family):
    assert not read(model_type=family, hidden_act="silu").gated


def test_an_unknown_family_counts_as_gated_only_with_silu_and_must_say_if_it_is_tied():
    assert read(model_type="mimo", hidden_act="silu", tie_word_embeddings=True).gated
    assert "tie_word_embeddings is missing" in refusal(model_type="mimo", hidden_act="silu")
    assert "whether the MLP of model_type 'mimo'" in refusal(model_type="mimo", hidden_act="gelu")
    assert "known model types: cohere," in refusal(model_type="mimo", hidden_act="gelu")
    assert "model_type is missing; copy it" in refusal(model_type=None)


def test_opt_is_read_by_its_own_field_names():
    llm = read(model_type="opt", intermediate_size=None, ffn_dim=20480, num_key_value_heads=None)
    assert (llm.intermediate, llm.gated, llm.tied_embeddings) == (20480, False, True)
    assert "word_embed_proj_dim" in refusal(model_type="opt", word_embed_proj_dim=512)


def test_the_language_part_of_a_multimodal_config_is_read():
    config = {"model_type": "llava", "tie_word_embeddings": True, "text_config": LLAMA}
    llm = llm_from_config(config, name="x", origin="x/config.json")
    assert llm == replace(read(), tied_embeddings=True)


@pytest.mark.parametrize(
    "mark",
    [
        {"num_experts": 8},
        {"num_local_experts": 8},
        {"n_routed_experts": 64},
        {"moe_intermediate_size": 1408},
        {"model_type": "qwen3_moe"},
        {"model_type": "mixtral"},
        {"model_type": "deepseek_v2"},
        {"model_type": "deepseek_v3"},
        {"text_config": {"num_experts": 8}},
    ],
)
def test_mixture_of_experts_is_refused_by_name(mark):
    assert re.search(r"mixture-of-experts \(.+\) is not modelled yet", refusal(**mark))


@pytest.mark.parametrize(
    ("mark", "what"),
    [
        ({"kv_lora_rank": 512}, "latent attention (kv_lora_rank)"),
        ({"model_type": "mamba2"}, "state-space or linear-attention layer (model_type mamba2)"),
        ({"mamba_d_ssm": 64}, "state-space or linear-attention layer (mamba_d_ssm)"),
        ({"ssm_cfg": {"layer": "Mamba1"}}, "(ssm_cfg)"),
        ({"linear_conv_kernel_dim": 4}, "(linear_conv_kernel_dim)"),
        ({"is_encoder_decoder": True}, "encoder-decoder (is_encoder_decoder)"),
        ({"model_type": "t5"}, "encoder-decoder (model_type t5)"),
        ({"block_configs": [{}]}, "layer of its own shape (block_configs)"),
    ],
)
def test_other_architectures_are_refused_by_name(mark, what):
    assert f"{what} is not modelled yet" in refusal(**mark)


def test_a_model_type_of_two_lines_is_refused_in_one():
    assert r"model_type t5\nx" in refusal(model_type="t5\nx")


def test_marks_that_are_off_do_not_refuse():
    assert read(is_encoder_decoder=False, num_experts=0) == read()


@pytest.mark.parametrize("key", sorted(set(LLAMA) - {"model_type", "num_key_value_heads"}))
def test_a_missing_field_is_named(key):
    assert f"{key} is missing" in refusal(**{key: None})


@pytest.mark.parametrize("key", sorted(set(LLAMA) - {"model_type"}))
@pytest.mark.parametrize(
    "bad", [0, -1, 1.5, 4096.0, float("nan"), float("inf"), True, "32", [32], 10**9, 10**400]
)
def test_an_impossible_size_is_named(key, bad):
    assert f"{key} must be a whole number from 1 to" in refusal(**{key: bad})


def test_heads_must_share_key_value_heads_evenly():
    assert "32, must be a multiple of the number of key/value heads, 5" in refusal(
        num_key_value_heads=5
    )
    with pytest.raises(WorkloadError, match=r"multiple of the number of key/value heads, 5"):
        replace(read(), kv_heads=5)


@pytest.mark.parametrize("bad", ["llama", [LLAMA], None, {"text_config": "llama"}])
def test_what_is_no_object_of_fields_is_refused(bad):
    with pytest.raises(WorkloadError, match=r"^c\.json: expected an object of fields"):
        llm_from_config(bad, name="x", origin="c.json")


def test_an_llm_made_by_hand_is_checked_too():
    with pytest.raises(WorkloadError, match="x: layers must be a whole number"):
        replace(read(), layers=0)
    with pytest.raises(WorkloadError, match="x: gated must be True or False"):
        replace(read(), gated=1)
