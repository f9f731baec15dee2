"""Kernels of a step by hand: which, of what size, and how often, on one GPU and on four."""

from dataclasses import replace

import numpy as np
import pytest

from m2bayes.errors import WorkloadError
from m2bayes.gemm import gemm_cells
from m2bayes.mechanism.host import EAGER, GRAPH_TOKENS, REPLAYED
from m2bayes.operators import operators, sampled
from m2bayes.workload import parse_workload

DECODE = "decode:batch=64,context=2048"
PREFILL = "prefill:tokens=4096"
CHUNK = "prefill:tokens=512,context=1024"
MIXED = "mixed:prefill=512,batch=64,context=2048"
SPECS = (DECODE, PREFILL, CHUNK, MIXED)
STEPS = [parse_workload(spec) for spec in SPECS]
NEW = [64, 4096, 512, 576]
LAYERS = 32


@pytest.fixture(scope="module")
def llm(database):
    return database.llm("llama-3.1-8b")


@pytest.fixture(scope="module", params=[1, 4])
def tp(request):
    return request.param


@pytest.fixture(scope="module")
def parts(llm, tp):
    return operators(llm, STEPS, tp=tp)


def test_every_part_has_the_steps_in_the_order_asked(parts):
    assert list(parts) == [
        "gemm",
        "attention_prefill",
        "attention_decode",
        "light",
        "allreduce",
        "host",
    ]
    for name, part in parts.items():
        assert part["workload"].values.tolist() == list(SPECS)
        assert set(part.sizes) == ({"workload"} if name == "host" else {"workload", "op"})


def test_sequences_that_are_sampled():
    """Each that decodes, and one prompt: a chunk is not known to be any but the last."""
    assert [sampled(step) for step in STEPS] == [64, 1, 1, 65]


def test_projections_are_those_of_all_layers(llm, tp, parts):
    ops = ["qkv", "o", "gate_up", "down"]
    own = parts["gemm"].sel(op=ops)
    alone = gemm_cells(llm, STEPS, tp=tp)
    for name in ("M", "N", "K", "calls"):
        np.testing.assert_array_equal(own[name], alone[name])
    assert parts["gemm"]["op"].values.tolist() == [*ops, "lm_head"]


def test_the_head_is_for_the_sequences_that_are_sampled(tp, parts):
    """128256 token ids, split; once a step. A head for every new token would be 4096 wide."""
    head = parts["gemm"].sel(op="lm_head")
    assert head["M"].values.tolist() == [64, 1, 1, 65] != NEW
    assert set(head["N"].values) == {128256 / tp}
    assert set(head["K"].values) == {4096}
    assert set(head["calls"].values) == {1}


def test_a_vocabulary_that_does_not_divide_is_rounded_up(llm):
    odd = operators(replace(llm, vocab=128257), STEPS, tp=4)["gemm"].sel(op="lm_head")
    assert set(odd["N"].values) == {32065}


def test_prompts_of_one_step_attend_to_themselves_alone(llm):
    """One kernel of four sequences; all else sees their tokens, the LM head one row of each."""
    steps = [parse_workload(s) for s in ("prefill:tokens=512,batch=4", "prefill:tokens=2048")]
    parts = operators(llm, steps)
    attention = parts["attention_prefill"].isel(op=0)
    assert [attention[v].values.tolist() for v in ("batch", "length")] == [[4, 1], [512, 2048]]
    assert (parts["attention_decode"]["calls"] == 0).all()
    assert parts["host"]["sequences"].values.tolist() == [4, 1]
    products = parts["gemm"]["M"].sel(op=["qkv", "lm_head"]).values.tolist()
    assert products == [[2048, 4], [2048, 1]]
    np.testing.assert_array_equal(*parts["light"]["tokens"].values)


def test_prefill_attention_by_hand(tp, parts):
    held = parts["attention_prefill"].isel(op=0)
    assert held["calls"].values.tolist() == [0, LAYERS, LAYERS, LAYERS]
    assert held["length"].values[1:].tolist() == [4096, 512, 512]
    assert held["context"].values[1:].tolist() == [0, 1024, 0]
    assert set(held["batch"].values) == {1}
    assert set(held["heads"].values) == {32 / tp}
    assert set(held["kv_heads"].values) == {8 / tp}
    assert set(held["head_dim"].values) == {128}


def test_decode_attention_by_hand(tp, parts):
    """A new token attends to itself too."""
    held = parts["attention_decode"].isel(op=0)
    assert held["calls"].values.tolist() == [LAYERS, 0, 0, LAYERS]
    assert held["length"].values[[0, 3]].tolist() == [2049, 2049]
    assert held["batch"].values[[0, 3]].tolist() == [64, 64]
    assert set(held["heads"].values) == {32 / tp}
    assert set(held["kv_heads"].values) == {8 / tp}


def test_gpus_beyond_the_kv_heads_keep_a_copy(llm):
    parts = operators(llm, STEPS, tp=16)
    for name in ("attention_prefill", "attention_decode"):
        assert set(parts[name]["heads"].values.ravel()) == {2}
        assert set(parts[name]["kv_heads"].values.ravel()) == {1}
    assert set(parts["light"]["width"].sel(op="kv_write").values) == {2 * 128}


def test_no_size_of_a_kernel_that_does_not_run_is_zero(parts):
    """Laws take logs of sizes: a step without it holds one that costs nothing but is defined."""
    for name in ("attention_prefill", "attention_decode", "allreduce"):
        for size in set(parts[name].data_vars) - {"calls", "context"}:
            assert (parts[name][size] >= 1).all(), (name, size)


def test_light_kernels_by_hand(tp, parts):
    light = parts["light"]
    widths = {
        "norm": 4096,
        "rope": (32 + 8) * 128 / tp,
        "kv_write": 2 * 8 * 128 / tp,
        "activation": 14336 / tp,
        "embedding": 4096,
    }
    calls = {"norm": 2 * LAYERS + 1, "embedding": 1}
    assert light["op"].values.tolist() == list(widths)
    for op, width in widths.items():
        one = light.sel(op=op)
        assert set(one["kernel"].values) == {op}
        assert set(one["width"].values) == {width}
        assert set(one["calls"].values) == {calls.get(op, LAYERS)}
        # a norm adds the residual on its way: twice the traffic
        twice = 2 if op == "norm" else 1
        assert one["tokens"].values.tolist() == [twice * n for n in NEW]


def test_allreduces_by_hand(tp, parts):
    """After attention and after the MLP of each layer, two bytes an element; none on one GPU."""
    held = parts["allreduce"].isel(op=0)
    assert set(held["calls"].values) == {0 if tp == 1 else 2 * LAYERS}
    assert held["bytes"].values.tolist() == [2 * n * 4096 for n in NEW]
    assert set(held["gpus"].values) == {max(tp, 2)}


def test_what_the_host_does_by_hand(tp, parts):
    host = parts["host"]
    assert set(host["kernels"].values) == {LAYERS * (10 if tp == 1 else 12) + 6}
    assert host["sequences"].values.tolist() == [64, 1, 1, 65]
    assert host["mode"].values.tolist() == [REPLAYED, EAGER, REPLAYED, EAGER]
    assert NEW[2] == GRAPH_TOKENS < NEW[3]


def test_an_engine_without_graphs_launches_kernel_by_kernel(llm):
    host = operators(llm, STEPS, graphs=False)["host"]
    assert set(host["mode"].values) == {EAGER}


def test_doubled_layers_double_what_belongs_to_a_layer(llm, tp, parts):
    twice = operators(replace(llm, layers=2 * LAYERS), STEPS, tp=tp)
    once = {"gemm": {"lm_head": 1}, "light": {"norm": 1, "embedding": 1}}
    for name in set(parts) - {"host"}:
        for op in parts[name]["op"].values:
            constant = once.get(name, {}).get(op, 0)
            before, after = (p[name]["calls"].sel(op=op).values for p in (parts, twice))
            expected = np.where(before > 0, 2 * (before - constant) + constant, 0)
            np.testing.assert_array_equal(after, expected, err_msg=f"{name} {op}")
        sizes = [v for v in parts[name].data_vars if v != "calls"]
        for size in sizes:
            np.testing.assert_array_equal(parts[name][size], twice[name][size])
    kernels = twice["host"]["kernels"] - parts["host"]["kernels"]
    assert set(kernels.values) == {LAYERS * (10 if tp == 1 else 12)}


def test_a_mixed_step_attends_as_its_two_parts_do(llm, tp):
    """Attention is that of a prefill step and of a decode step; all else sees their new tokens."""
    specs = ["mixed:prefill=512,batch=64,context=2048", "prefill:tokens=512", DECODE]
    parts = operators(llm, [parse_workload(spec) for spec in specs], tp=tp)
    for name, at in (("attention_prefill", 1), ("attention_decode", 2)):
        for size in parts[name].data_vars:
            values = parts[name][size].values[:, 0]
            assert values[0] == values[at], (name, size)
    for name, size in (("light", "tokens"), ("allreduce", "bytes")):
        mixed, prefill, decode = parts[name][size].values
        np.testing.assert_array_equal(mixed, prefill + decode)
    for name in ("light", "allreduce"):
        for row in parts[name]["calls"].values:  # run once for both, not once for each
            np.testing.assert_array_equal(row, parts[name]["calls"].values[0])
    M = parts["gemm"]["M"].values
    np.testing.assert_array_equal(M[0], M[1] + M[2])


def test_gpus_that_do_not_divide_the_heads_are_refused(llm):
    with pytest.raises(WorkloadError, match="tp=3 does not divide the 32 attention heads"):
        operators(llm, STEPS, tp=3)


def test_a_sequence_that_is_too_long_is_refused(llm):
    with pytest.raises(WorkloadError, match="exceeds the 131072"):
        operators(llm, [parse_workload("decode:batch=1,context=131072")])
