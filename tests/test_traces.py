"""Outside files become tidy tables, and runs become weighted sums of engine steps."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from m2bayes.errors import DataError
from m2bayes.outside import VARIABLE, outside
from m2bayes.suites import Setting, _steps, distserve, served
from m2bayes.traces import (
    distserve_profile,
    generation_runs,
    huggyllama_rows,
    overflow,
)
from m2bayes.workload import Step, kv_bytes_per_token, weight_bytes

SKUS, LLMS = {"Card one": "H100-80GB-SXM"}, {"org/seven": "llama-2-7b"}
RUN = {
    "Hardware": "Card one",
    "Num of Hardware": 1,
    "Framework": "vLLM",
    "Model": "org/seven",
    "Input Output Length": 128,
    "Batch Size": 4,
    "Latency": 1.5,
    "Throughput": 682.7,
}
CELL = {
    "tp_world_size": 2,
    "batch_size": 3,
    "input_len": 256,
    "output_len": 128,
    "avg_prefill_time_usage": 50.0,
    "avg_decoding_time_usage": 12.0,
    "tag": "huggyllama/x",
}
ENTRY = {
    "decoding_large_small_bs_threshold": 95,
    "prefill": [10.0, 0.1, 1e-5],
    "decoding_smallbs": [20.0, 1e-3, 0.05],
    "decoding_largebs": [15.0, 2e-3, 0.1],
}


def table(tmp_path, *rows):
    path = tmp_path / "table.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def profile(tmp_path, content):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content))
    return path


# --- whole generations -----------------------------------------------------------------------


def test_only_runs_of_known_cards_llms_and_engines_on_one_gpu_are_read(tmp_path):
    others = [
        {"Hardware": "Card two"},
        {"Num of Hardware": 2},
        {"Framework": "llama.cpp"},
        {"Model": "org/eight"},
    ]
    path = table(tmp_path, RUN, *(RUN | other for other in others))
    found = generation_runs(path, skus=SKUS, llms=LLMS)
    assert found.to_dict("records") == [
        {
            "sku": "H100-80GB-SXM",
            "engine": "vllm",
            "llm": "llama-2-7b",
            "length": 128,
            "batch": 4,
            "time": 1.5,
        }
    ]


def test_repeated_runs_stay_and_the_order_of_rows_is_free(tmp_path):
    rows = [RUN, RUN | {"Batch Size": 1}, RUN | {"Latency": 1.4}]
    found = generation_runs(table(tmp_path, *rows), skus=SKUS, llms=LLMS)
    assert found["time"].tolist() == [1.5, 1.4, 1.5]
    again = generation_runs(table(tmp_path, *rows[::-1]), skus=SKUS, llms=LLMS)
    pd.testing.assert_frame_equal(found, again)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"Latency": 0.0}, r"row 2, column Latency: '0\.0' is not a time above zero"),
        ({"Latency": np.nan}, "column Latency: 'nan' is not a time"),
        ({"Latency": np.inf}, "column Latency: 'inf' is not a time"),
        ({"Latency": "1.2 s"}, "column Latency: '1.2 s' is not a time"),
        ({"Batch Size": 1.5}, "row 2, column Batch Size: '1.5' is not a whole number"),
        ({"Input Output Length": 0}, "column Input Output Length: '0' is not a whole number"),
        ({"Num of Hardware": -1}, "column Num of Hardware: '-1' is not a whole number"),
    ],
)
def test_an_impossible_number_of_a_run_is_named(tmp_path, change, complaint):
    path = table(tmp_path, RUN, RUN | change)
    with pytest.raises(DataError, match=complaint) as error:
        generation_runs(path, skus=SKUS, llms=LLMS)
    assert "\n" not in str(error.value)


def test_odd_rows_that_nobody_asked_for_do_no_harm(tmp_path):
    path = table(tmp_path, RUN, RUN | {"Framework": "llama.cpp", "Latency": -1.0})
    assert len(generation_runs(path, skus=SKUS, llms=LLMS)) == 1


@pytest.mark.parametrize("column", [name for name in RUN if name != "Throughput"])
def test_a_missing_column_of_runs_is_named(tmp_path, column):
    path = table(tmp_path, {k: v for k, v in RUN.items() if k != column})
    with pytest.raises(DataError, match=f"no column {column}; is it the file"):
        generation_runs(path, skus=SKUS, llms=LLMS)


def test_files_that_are_not_there_or_not_the_right_ones_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        generation_runs(tmp_path / "none.csv", skus=SKUS, llms=LLMS)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    with pytest.raises(DataError, match="not a CSV table"):
        generation_runs(empty, skus=SKUS, llms=LLMS)
    with pytest.raises(DataError, match="no run of org/seven on one GPU"):
        generation_runs(table(tmp_path, RUN | {"Hardware": "?"}), skus=SKUS, llms=LLMS)


def test_a_run_overflows_from_the_first_token_that_no_longer_fits(database):
    llm = database.llm("llama-2-7b")
    tokens = 2 * 128 * 4
    needed = weight_bytes(llm) + tokens * kv_bytes_per_token(llm)
    runs = pd.DataFrame({"sku": ["x", "y"], "llm": "a", "length": 128, "batch": 4})
    exact = (needed + 1.5e9) / 0.9
    memory = {"x": exact * (1 + 1e-12), "y": exact * (1 - 1e-12)}
    assert overflow(runs, {"a": llm}, memory).tolist() == [False, True]


# --- DistServe's profiles --------------------------------------------------------------------


def test_coefficients_become_seconds_and_keep_their_branch(tmp_path):
    path = profile(tmp_path, {"org/seven": {"2": ENTRY}, "org/other": {"1": {}}})
    found = distserve_profile(path, llms=LLMS).set_index("phase")
    assert set(found.index) == {"prefill", "decode, small batch", "decode, large batch"}
    row = found.loc["decode, large batch"]
    assert row.tolist() == ["llama-2-7b", 2, 0.015, 2e-6, 1e-4, 95.0]


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({k: v for k, v in ENTRY.items() if k != "prefill"}, "prefill: expected three numbers"),
        (ENTRY | {"decoding_smallbs": [1.0, 2.0]}, "decoding_smallbs: expected three numbers"),
        (ENTRY | {"decoding_largebs": [1, 2, "x"]}, "decoding_largebs: expected three numbers"),
        (ENTRY | {"decoding_large_small_bs_threshold": None}, "no decoding_large_small_bs"),
        ([], "expected an object"),
    ],
)
def test_a_broken_profile_is_refused_in_one_line(tmp_path, entry, complaint):
    path = profile(tmp_path, {"org/seven": {"1": entry}})
    with pytest.raises(DataError, match=complaint) as error:
        distserve_profile(path, llms=LLMS)
    assert "\n" not in str(error.value)


def test_a_profile_of_other_llms_or_parallelism_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds none of org/seven"):
        distserve_profile(profile(tmp_path, {"org/other": {}}), llms=LLMS)
    with pytest.raises(DataError, match="'two' is no number of GPUs"):
        distserve_profile(profile(tmp_path, {"org/seven": {"two": ENTRY}}), llms=LLMS)


def test_a_profile_implies_times_by_hand(tmp_path):
    path = profile(tmp_path, {"org/seven": {"1": ENTRY}})
    own = distserve_profile(path, llms=LLMS)
    batch, context = np.array([94, 95]), np.array([10, 10])
    small = 20 + 1e-3 * 940 + 0.05 * 94
    large = 15 + 2e-3 * 950 + 0.1 * 95
    found = distserve.decode_time(own, batch, context)
    np.testing.assert_allclose(found, [small / 1e3, large / 1e3], rtol=1e-12)
    prompt = distserve.prefill_time(own, np.array([100]))
    np.testing.assert_allclose(prompt, (10 + 0.1 * 100 + 1e-5 * 100**2) / 1e3, rtol=1e-12)


# --- Llama-7B --------------------------------------------------------------------------------


def test_only_the_rows_of_huggyllama_are_read_in_seconds(tmp_path):
    path = table(tmp_path, CELL, CELL | {"tag": "other", "avg_decoding_time_usage": -1.0})
    assert huggyllama_rows(path).to_dict("records") == [
        {"tp": 2, "batch": 3, "length": 256, "output": 128, "prefill": 0.05, "decode": 0.012}
    ]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"avg_decoding_time_usage": 0.0}, "column avg_decoding_time_usage: '0.0' is not a time"),
        ({"input_len": 2.5}, "column input_len: '2.5' is not a whole number"),
    ],
)
def test_an_impossible_number_of_a_cell_is_named(tmp_path, change, complaint):
    with pytest.raises(DataError, match=complaint):
        huggyllama_rows(table(tmp_path, CELL | change))


def test_a_table_without_column_or_rows_is_refused(tmp_path):
    with pytest.raises(DataError, match="no column tag"):
        huggyllama_rows(table(tmp_path, {k: v for k, v in CELL.items() if k != "tag"}))
    with pytest.raises(DataError, match="no row has a tag huggyllama"):
        huggyllama_rows(table(tmp_path, CELL | {"tag": "other"}))


# --- from steps to runs ----------------------------------------------------------------------


def summed(parts, law):
    return sum(weight * law(step) for step, weight in parts.items())


@pytest.mark.parametrize(("first", "last"), [(128, 254), (2048, 4094), (7, 9), (1, 6), (5, 5)])
def test_few_contexts_sum_a_quartic_over_all_of_them(first, last):
    def law(step):
        x = step.context / last
        return 3 + 2 * x - x**2 + 4 * x**3 - 2 * x**4

    exact = sum(law(Step("decode", batch=2, context=c)) for c in range(first, last + 1))
    parts = _steps.decode_steps(first, last, 2)
    assert len(parts) <= _steps.POINTS
    assert summed(parts, law) == pytest.approx(exact, rel=1e-12)
    assert sum(parts.values()) == pytest.approx(last - first + 1, rel=1e-12)


def test_one_midpoint_would_miss_a_knee_that_the_points_see():
    def law(step):
        return max(10.0, step.context / 20)

    contexts = range(128, 255)
    exact = sum(law(Step("decode", batch=1, context=c)) for c in contexts)
    several, one = (_steps.decode_steps(128, 254, 1, points=n) for n in (5, 1))
    assert abs(summed(several, law) / exact - 1) < 0.01 < abs(summed(one, law) / exact - 1)


@pytest.mark.parametrize(("length", "batch"), [(128, 64), (512, 6), (2048, 3), (300, 1), (999, 5)])
def test_prompts_share_steps_of_as_many_tokens_as_an_engine_takes(length, batch):
    parts = _steps.prefill_steps(length, batch)
    assert summed(parts, lambda step: step.prompts) == batch
    assert {step.tokens for step in parts} == {length}
    assert max(step.new_tokens for step in parts) <= max(_steps.PREFILL_TOKENS, length)


def test_a_generation_is_its_prefill_and_one_step_less_than_its_tokens():
    parts = _steps.generation_steps(256, 4)
    decode = {s: w for s, w in parts.items() if s.kind == "decode"}
    assert sum(decode.values()) == pytest.approx(255, rel=1e-12)
    assert min(s.context for s in decode) >= 256
    assert max(s.context for s in decode) <= 510
    assert all(s.kind == "prefill" for s in _steps.generation_steps(1, 4))


def test_each_step_is_asked_for_once_and_draws_stay_joint():
    asked = []

    def step_times(sku, llm, workloads, *, tp, engine, graphs=True):
        asked.append((sku, llm, tp, engine, graphs, list(workloads)))
        return np.array([[1.0], [2.0]]) * [step.new_tokens for step in workloads]

    a, b = Step("decode", batch=1, context=5), Step("decode", batch=3, context=5)
    found = _steps.composed(step_times, [{a: 2.0}, {a: 1.0, b: 1.0}], "s", "l", engine="e")
    np.testing.assert_array_equal(found, [[2, 4], [4, 8]])
    assert asked == [("s", "l", 1, "e", True, [a, b])]


def test_generations_keep_the_order_of_the_table(database):
    steps = _steps.datasheet_steps(database)
    rows = [("H100-80GB-SXM", "vllm", "llama-2-7b", 128, b) for b in (1, 2)]
    rows += [("A100-40GB-SXM", "vllm", "llama-2-7b", 128, b) for b in (1, 2)]
    cells = pd.DataFrame(rows, columns=served.CELL)
    times = served.generation_times(steps, cells)
    turned = served.generation_times(steps, cells.iloc[[3, 1, 0, 2]])
    np.testing.assert_allclose(turned, times[:, [3, 1, 0, 2]], rtol=1e-12)


def test_the_roofline_of_a_decode_step_by_hand(database):
    """One sequence at one token: all weights but the embedding, and two tokens of KV cache."""
    llm, sheet = database.llm("llama-2-7b"), database.datasheets(["H100-80GB-SXM"])
    step = Step("decode", batch=1, context=1)
    found = _steps.datasheet_steps(database)("H100-80GB-SXM", "llama-2-7b", [step], tp=1, engine="")
    traffic = weight_bytes(llm) - 2 * llm.vocab * llm.hidden + 2 * kv_bytes_per_token(llm)
    least = traffic / float(sheet["peak_bandwidth"].item())
    assert found.shape == (1, 1)
    assert least < found[0, 0] < 1.001 * least  # activations are the rest


# --- judging ---------------------------------------------------------------------------------


def made_up(database, rng, *, host=0.002, noise=0.01):
    """Generations as a roofline with a host time of each engine would measure them."""
    lengths, batches = (128, 512, 1024), (1, 16, 32)
    rows = [
        (sku, engine, llm, length, batch)
        for sku in ("A100-40GB-SXM", "H100-80GB-SXM")
        for engine in ("trtllm", "vllm")
        for llm in ("llama-3-8b", "mistral-7b")
        for length in lengths
        for batch in batches
    ]
    cells = pd.DataFrame(rows, columns=served.CELL)
    cells["overflow"] = cells["anomalous"] = False
    cells.loc[0, "overflow"] = cells.loc[5, "anomalous"] = True
    sheet = served.generation_times(_steps.datasheet_steps(database), cells)[0]
    cells["time"] = (sheet + host * cells["length"]) * np.exp(noise * rng.normal(size=len(cells)))
    return cells


def widened(steps, rng):
    factor = np.exp(0.01 * rng.normal(size=(200, 1)))

    def step_times(sku, llm, workloads, **kwargs):
        return steps(sku, llm, workloads, **kwargs) * factor

    return step_times


def test_a_host_time_that_is_there_is_found_and_its_rivals_miss_it(database, rng, monkeypatch):
    monkeypatch.setattr(served, "SPLITS", 2)
    cells = made_up(database, rng)
    steps = _steps.datasheet_steps(database)
    found = served.judged(widened(steps, rng), steps, cells)
    assert found["all"]["cells"] == len(cells) - 1
    assert found["without the pair"]["cells"] == len(cells) - 2
    assert found["overflow"]["cells"] == 1
    for part in (found["all"]["calibrated"], found["all"]["one LLM"]["mean"]):
        assert part["model"]["overall"]["mape"] < 0.02
        assert part["datasheet roofline + one time"]["overall"]["mape"] < 0.02
        factor = part["datasheet roofline x one factor"]["overall"]["mape"]
        assert factor > 2 * part["model"]["overall"]["mape"]
        assert part["model"]["overall"]["coverage_90"] > 0.85
        hosts = [v["host_time"] for k, v in part["model"].items() if k != "overall"]
        np.testing.assert_allclose(hosts, 0.002, rtol=0.2)
    assert found["all"]["zero-shot"]["overall"]["mape"] > 0.1
    assert found["overflow"]["calibrated"]["overall"]["mape"] < 0.05
    json.dumps(found, allow_nan=False)


def test_a_cell_is_never_scored_by_a_fit_that_saw_it(database, rng, monkeypatch):
    """A wild measurement among the calibration cells must not show in their own scores."""
    seen = []
    split = served._split

    def spied(times, sheet, cells, chosen, *, seed):
        seen.append(chosen)
        return split(times, sheet, cells, chosen, seed=seed)

    monkeypatch.setattr(served, "_split", spied)
    monkeypatch.setattr(served, "SPLITS", 3)
    cells = made_up(database, rng)
    steps = _steps.datasheet_steps(database)
    sheet = served.generation_times(steps, cells)
    served.calibrated(np.repeat(sheet, 50, axis=0), sheet[0], cells)
    assert len(seen) == 3
    for chosen in seen:
        assert sum(len(train) + len(rest) for train, rest in chosen.values()) == len(cells)
        assert all(not set(train) & set(rest) for train, rest in chosen.values())
    assert any((a["A100-40GB-SXM vllm"][0] != seen[0]["A100-40GB-SXM vllm"][0]).any() for a in seen)


def test_a_table_that_the_polynomial_made_is_predicted_by_it(database):
    rows = [
        (tp, b, n, m) for tp in (1, 2) for b in (1, 2, 4) for n in (128, 512) for m in (64, 256)
    ]
    table = pd.DataFrame(rows, columns=["tp", "batch", "length", "output"])
    context = table["length"] + (table["output"] - 1) / 2
    table["decode"] = 0.01 + 1e-7 * table["batch"] * context + 1e-4 * table["batch"]
    table["prefill"] = 0.02 + 1e-4 * table["batch"] * table["length"]
    whole = _steps.datasheet_steps(database)
    found = distserve.against_table(whole, lambda *a, **k: 0.2 * whole(*a, **k), table)
    for name in distserve.TABLES:
        for split in ("eight folds", "batch left out"):
            assert found[name][split]["polynomial"]["mape"] < 1e-9
            assert found[name][split]["time + model"]["mape"] > 1e-5


def test_held_out_cells_take_no_part_in_their_own_fit():
    y = np.array([1.0, 1.0, 1.0, 5.0])
    labels = np.array([0, 0, 1, 2])
    found = distserve.held_out([np.ones(4)], y, labels)
    assert found[3] == pytest.approx(1.0, rel=1e-12)
    assert (found[:3] > 1).all()


def table_of(step_times, attention, *, host, kernel, rest):
    """Rows of an engine whose step is a host time, a kernel's factor and one on the rest."""
    grid = [(b, n, 8, tp) for tp in (1, 2) for b in (1, 2, 4, 8) for n in (64, 256, 512)]
    rows = pd.DataFrame(grid, columns=["batch", "length", "output", "tp"])
    times = {}
    for phase in ("decode", "prefill"):
        parts = [distserve.parts_of(phase, b, n, m) for b, n, m, _ in grid]
        whole, part = (
            _steps.composed(p, parts, distserve.UNNAMED, distserve.TWIN, engine="x", tp=1)[0]
            for p in (step_times, attention)
        )
        times[phase] = host + kernel * part + rest * (whole - part)
    return rows.assign(**times)


def test_an_engine_of_three_terms_is_met_exactly_and_the_polynomial_is_above(database):
    whole = _steps.datasheet_steps(database)

    def attention(sku, llm, workloads, **engine):
        length = np.array([step.batch * step.context + step.tokens for step in workloads])
        return 1e-8 * length[None] + 0.1 * np.asarray(whole(sku, llm, workloads, **engine))

    rows = table_of(whole, attention, host=2e-3, kernel=1.7, rest=0.8)
    rows = rows[rows["tp"] == 1]
    tables = {k: v for k, v in distserve.TABLES.items() if v[1] == 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distserve, "TABLES", tables)
        found = distserve.against_table(whole, attention, rows, engine="x")
    for held in found.values():
        three = held["eight folds"]["time + attention x factor + rest x factor"]
        assert three["mape"] < 1e-9
        assert three["above"] == pytest.approx(-held["eight folds"]["polynomial"]["mape"], rel=0.2)
        assert held["eight folds"]["polynomial"]["above"] == 0


def test_a_profile_that_adds_a_host_time_is_met_by_calibration(database, rng, tmp_path):
    keys = {"facebook/opt-13b": {"1": ENTRY, "3": ENTRY}}
    coefficients = {"DistServe": distserve_profile(profile(tmp_path, keys), llms=distserve.LLMS)}
    steps = widened(_steps.datasheet_steps(database), rng)
    found = distserve.against_profiles(steps, coefficients)["DistServe"]
    assert list(found) == ["opt-13b tp 1"]
    decode = found["opt-13b tp 1"]["decode"]
    assert decode["calibrated"]["mape"] < decode["zero-shot"]["mape"]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("suite", [served, distserve])
def test_without_outside_data_a_suite_says_what_it_needs(suite, database, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(DataError, match=f"set {VARIABLE} to the folder of"):
        suite.run(Setting(database))
    assert suite.DATA == ()
    assert suite.JUDGED == ("assembly",)


def test_the_folder_of_one_project_is_inside_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(DataError, match="project/, it is not in"):
        outside("served", "project")
    (tmp_path / "project").mkdir()
    assert outside("served", "project") == tmp_path / "project"


# --- the files themselves --------------------------------------------------------------------


def external(*parts):
    folder = os.environ.get(VARIABLE)
    path = Path(folder or "nowhere").joinpath(*parts)
    return pytest.mark.skipif(
        not path.exists(), reason=f"{VARIABLE} names no folder with {'/'.join(parts)}"
    ), path


needs_runs, RUNS = external("llm-inference-bench", "All_results.csv")
needs_profiles, PROFILES = external("distserve")
needs_table, TABLE = external("distserve-learneraf", "read_db.csv")


@needs_runs
def test_the_generations_are_those_of_the_notes(database):
    runs = generation_runs(RUNS, skus=served.HARDWARE, llms=served.LLMS)
    assert len(runs) == 241
    cells = served.generations(database, RUNS)
    assert len(cells) == 240
    assert cells["anomalous"].sum() == 10
    assert (~cells["overflow"]).sum() == 218
    by_sku = cells[cells["overflow"]].groupby("sku").size()
    assert by_sku.to_dict() == {"A100-40GB-SXM": 16, "H100-80GB-SXM": 6}


@needs_profiles
def test_the_profiles_hold_both_llms():
    for file, _, _ in distserve.PROFILES.values():
        found = distserve_profile(PROFILES / file, llms=distserve.LLMS)
        assert {1, 2, 4} <= set(found.loc[found["llm"] == "opt-13b", "tp"])
        assert (found["threshold"] == 95).all()


@needs_table
def test_the_table_holds_two_degrees_of_parallelism():
    rows = huggyllama_rows(TABLE)
    assert rows.groupby("tp").size().tolist() == [256, 256]
    assert rows["decode"].between(0.01, 0.02).all()


@needs_table
def test_the_polynomial_of_the_table_errs_as_published_in_the_notes(database):
    """1.23, 1.13 and 2.38 % in eight folds: folds are random, so to a twentieth of a percent."""
    steps = _steps.datasheet_steps(database)
    rows = huggyllama_rows(TABLE)
    found = distserve.against_table(steps, lambda *a, **k: 0.2 * steps(*a, **k), rows)
    mapes = [found[name]["eight folds"]["polynomial"]["mape"] for name in distserve.TABLES]
    np.testing.assert_allclose(mapes, [0.0123, 0.0113, 0.0238], atol=5e-4)


def test_neighbours_of_timed_steps_are_known_better_where_misfits_are_alike():
    """An engine that is slower the larger the batch: the suite's two ways of telling it."""
    from m2bayes.suites import calibrate

    def whole(sku, llm, steps, **settings):
        base = np.array([5e-3 + 1e-4 * step.batch for step in steps])
        return base * (1 + 0.01 * np.random.default_rng(0).standard_normal((200, 1)))

    grid = [(b, n, 128) for b in (1, 2, 4, 8, 16, 32, 64) for n in (128, 256, 512)]
    rows = pd.DataFrame(grid, columns=["batch", "length", "output"])
    rows["decode"] = [(5e-3 + 1e-4 * b) * 1.1 ** np.log2(b) for b in rows["batch"]]
    found = calibrate._told(whole, rows, "x", "decode", 1)
    assert list(found) == [str(n) for n in calibrate.TIMED]
    ways = found["16"]
    assert ways["alike"]["crps"] < 0.5 * ways["alone"]["crps"]
    assert ways["alike"]["mape"] < 0.5 * ways["uncalibrated"]["mape"]
