"""What the weights leave for the KV cache: closed forms, public counts, draws."""

import numpy as np
import pytest
import xarray as xr

from m2bayes._spec import Step
from m2bayes.errors import UnknownNameError, WorkloadError
from m2bayes.memory import (
    ENGINE_SHARE,
    P_WIDE_CACHE,
    RESERVE,
    cached_after,
    fits,
    memory_left,
    sequences,
)
from m2bayes.residency import weight_bytes

LIKE = xr.Dataset(coords={"chain": range(4), "draw": range(500)})
LONG = 8192 + 1024
PUBLIC = {"H100-80GB-SXM": 22, "H200-141GB-SXM": 58, "B200-180GB-SXM": 82}  # of 70B in 8 bit, TP 2


def left_of(database, llm="llama-3.1-70b", skus=tuple(PUBLIC), **changes):
    given = {"tp": 2, "dtype": "fp8"} | changes
    return memory_left(database.llm(llm), database.datasheets(list(skus)), LIKE, **given)


@pytest.mark.parametrize(
    ("llm", "token"),
    [("llama-3.1-8b", 131072), ("llama-3.1-70b", 327680), ("qwen3-32b", 262144)],
)
def test_a_token_in_16_bit_takes_what_the_configuration_says(database, llm, token):
    left = left_of(database, llm, tp=1, dtype="bf16")
    assert (left["kv_bytes_per_token"] == token).all()
    assert (left_of(database, llm, tp=2, dtype="bf16")["kv_bytes_per_token"] == token / 2).all()


def test_memory_left_is_the_engines_share_less_weights_and_reserve(database):
    left = left_of(database, dtype="bf16", tp=4)
    assert float(left["weights"]) == weight_bytes(database.llm("llama-3.1-70b"), tp=4)
    memory = database.datasheets(list(PUBLIC))["memory"]
    whole = left["memory_left"] + left["weights"] + left["reserve"]
    np.testing.assert_allclose(whole, (ENGINE_SHARE * memory).broadcast_like(whole), rtol=1e-12)
    tokens = left["memory_left"] / left["kv_bytes_per_token"]
    np.testing.assert_allclose(left["kv_tokens"], tokens.clip(min=0), rtol=1e-12)


@pytest.mark.parametrize("kv_dtype", [None, "bf16"])
@pytest.mark.parametrize("sku", PUBLIC)
def test_the_interval_of_the_sequences_holds_the_public_count(database, sku, kv_dtype):
    held = sequences(left_of(database, kv_dtype=kv_dtype), LONG).sel(sku=sku)
    low, high = np.quantile(held, [0.05, 0.95])
    assert low <= PUBLIC[sku] <= high


def test_the_reserve_is_as_its_prior_and_one_for_all_skus(database):
    reserve = left_of(database)["reserve"].values
    middle, error = sum(RESERVE) / 2, np.ptp(RESERVE) / np.sqrt(12 * reserve.size)
    assert abs(reserve.mean() - middle) < 4 * error
    alone = left_of(database, skus=("H200-141GB-SXM",))
    both = left_of(database)["memory_left"].sel(sku=["H200-141GB-SXM"])
    np.testing.assert_array_equal(alone["memory_left"], both)


@pytest.mark.parametrize(("dtype", "p_wide"), [("bf16", 1), ("w4a16", 1), ("fp8", P_WIDE_CACHE)])
def test_the_cache_of_8_bit_weights_alone_may_be_in_8_bit(database, dtype, p_wide):
    token = left_of(database, dtype=dtype, tp=1)["kv_bytes_per_token"].values
    assert set(np.unique(token)) <= {327680, 327680 / 2}
    error = np.sqrt(p_wide * (1 - p_wide) / token.size)
    assert abs((token == 327680).mean() - p_wide) <= 4 * error


def test_a_type_that_is_given_is_that_of_every_draw(database):
    assert (left_of(database, kv_dtype="fp8", tp=1)["kv_bytes_per_token"] == 327680 / 2).all()
    with pytest.raises(UnknownNameError, match="unknown dtype 'fp9'"):
        left_of(database, kv_dtype="fp9")
    with pytest.raises(WorkloadError, match="tp=3"):
        left_of(database, tp=3)


def test_what_the_weights_alone_outgrow_holds_nothing(database):
    left = left_of(database, "llama-3.1-405b", dtype="bf16", tp=1)
    assert (left["memory_left"] < 0).all()
    assert (sequences(left, 1) == 0).all()
    assert not fits(left, 0).any()


def test_fits_is_settled_at_the_ends_and_drawn_between(database):
    left = left_of(database, skus=("H100-80GB-SXM",), kv_dtype="bf16")
    tokens = left["kv_tokens"].values
    share = [0.02, 0.5, 0.98]
    sizes = xr.DataArray(np.quantile(tokens, share), dims="workload")
    room = fits(left, sizes).mean(["chain", "draw", "sku"]).values
    assert room[0] == 1
    assert abs(room[1] - 0.5) < 0.01
    assert room[2] == 0


@pytest.mark.parametrize(
    ("step", "tokens"),
    [
        (Step("decode", batch=64, context=2048), 64 * 2049),
        (Step("mixed", prefill=512, batch=64, context=2048), 64 * 2049 + 512),
        (Step("prefill", tokens=4096, context=100), 4196),
    ],
)
def test_old_and_new_tokens_are_cached_at_the_end_of_a_step(step, tokens):
    assert cached_after(step) == tokens
