"""What each figure draws: how many artists, which values, which labels and units."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import xarray as xr
from helpers import refusal, run

from m2bayes import plot
from m2bayes.errors import DataError
from m2bayes.measurements import clock_readings
from m2bayes.mechanism.clock import power_load
from m2bayes.mechanism.gemm import gemm_terms, sustained_share
from m2bayes.plot import _canvas as house
from m2bayes.plot import asked
from m2bayes.score import reliability

QUESTION = ["--llm", "llama-3.1-8b", "--sku", "h100", "l40s", "--draws", "40"]
SKUS = ["card-b", "card-a", "card-c"]


def sku(name, median, p_best, regret=0.02, fits=True):
    """One SKU of a made-up answer; its interval is ten per cent to either side."""
    low, high = (0.9 * median, 1.1 * median) if fits else (None, None)
    ops = [{"op": op, "share": s} for op, s in (("qkv", 0.5), ("o", 0.25), ("host", 0.25))]
    return {
        "sku": name,
        "median": median if fits else None,
        "mean": median if fits else None,
        "interval": {"kind": "eti", "mass": 0.9, "low": low, "high": high},
        "p_best": p_best,
        "p_best_mcse": 0.01,
        "relative_regret": regret if fits else None,
        "expected_regret": regret * median if fits else None,
        "basis": "measured",
        "fits": fits,
        "extrapolating": False,
        "ops": [
            {
                "op": o["op"],
                "median": o["share"] * median,
                "mean": o["share"] * median,
                "interval": {"low": 0.2 * median * o["share"], "high": 2 * median * o["share"]},
            }
            for o in ops
        ],
    }


def entry(workload, *skus, choice=SKUS[0], verdict="clear"):
    return {"workload": workload, "skus": [*skus], "choice": choice, "verdict": verdict}


def answer(workloads):
    """Made-up answer: card-b is best, card-a close, card-c never fits."""
    return [
        entry(
            workload,
            sku("card-b", 0.010 * (i + 1), 0.75, 0.004),
            sku("card-a", 0.012 * (i + 1), 0.25, 0.03),
            sku("card-c", 1.0, 0.0, fits=False),
        )
        for i, workload in enumerate(workloads)
    ]


BATCHES = [1, 8, 64]
SERIES = answer([f"decode:batch={b},context=1024" for b in BATCHES])
GRID = answer([f"decode:batch={b},context={c}" for b in (1, 8) for c in (512, 2048, 8192)])
CROSSING = {
    "size": "batch",
    "before": "card-b",
    "after": "card-a",
    "median": 20.0,
    "interval": {"low": 10.0, "high": 40.0, "censored": []},
    "p_between": 0.8,
}


def hovers(figure):
    """Every text that an SVG of the figure shows under the pointer."""
    found = [artist.get_gid() for artist in figure.findobj() if artist.get_gid()]
    return [text.removeprefix("hover ") for text in found]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def numbers(texts):
    return [float(n) for text in texts for n in re.findall(r"\d+\.?\d*", text)]


# --- what all figures share ------------------------------------------------------------------


def test_twenty_eight_names_look_different_and_the_order_does_not_matter():
    names = [f"sku {i:02}" for i in range(28)]
    looks = house.looks(names)
    assert len({tuple(look.values()) for look in looks.values()}) == 28
    assert house.looks(reversed(names)) == looks


COMMON = ["H100-80GB-SXM", "H200-141GB-SXM", "A100-80GB-SXM", "L40S-48GB-PCIe", "B200-180GB-SXM",
          "GB200-186GB-SXM", "B300-270GB-SXM"]  # fmt: skip


@pytest.mark.parametrize("name", COMMON)
def test_a_sku_keeps_its_look_whatever_it_is_drawn_with(name, database):
    alone = house.looks([name])[name]
    for others in (COMMON, COMMON[::2], ["A10-24GB-PCIe", "L4-24GB-PCIe"], database.skus()):
        assert house.looks([*others, name])[name] == alone


def test_every_known_sku_has_a_look_of_its_own_alone_and_with_all_others(database):
    looks = house.looks(database.skus())
    assert len({tuple(look.values()) for look in looks.values()}) == len(looks)
    assert all(house.looks([name])[name] == look for name, look in looks.items())


def test_up_to_seven_names_have_seven_colours():
    names = [*COMMON[:3], "A10-24GB-PCIe", "L4-24GB-PCIe", "my-card", "other-card"]
    looks = house.looks(names)
    assert [*looks] == names
    assert len({look["color"] for look in looks.values()}) == 7


def test_the_palette_is_okabe_and_itos():
    assert len(set(house.PALETTE)) == 7
    assert set(house.PALETTE) == {
        "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "units", "expected"),
    [
        ([2.0, 3.0], "s", (1.0, "s")),
        ([2e-3, 5.0, None, 1e-3], "s", (1e-3, "ms")),
        ([5e-6], "s", (1e-6, "µs")),
        ([5e-6], "token/s", (1.0, "token/s")),
        ([None, float("nan")], "s", (1.0, "s")),
    ],
)
def test_axes_take_a_readable_unit(values, units, expected):
    assert house.readable(values, units) == expected


@pytest.mark.parametrize(
    ("low", "high"), [(5.2, 9.8), (1.01, 1.02), (0.001, 5000), (0.3, 0.9), (7, 7)]
)
def test_logarithmic_ticks_are_few_and_within_the_values(low, high):
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    axis.set_xscale("log")
    axis.set_xlim(low / 2, high * 2)
    house.round_log(axis.xaxis, [low, high])
    ticks = axis.xaxis.get_major_locator()()
    assert 2 <= len(ticks) <= 7
    assert all(low <= tick <= high for tick in ticks)
    assert len({text.get_text() for text in axis.get_xticklabels()}) > 1 or low == high


def test_text_on_a_colour_has_the_better_contrast():
    assert house.contrasting("#000000") == "white"
    assert house.contrasting("#ffffff") == "black"


STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", STARTS)
def test_a_figure_is_saved_whole_and_twice_the_same(tmp_path, suffix):
    first, second = (tmp_path / f"{name}.{suffix}" for name in ("first", "second"))
    plot.save(plot.regret(SERIES, metric="step_time"), first)
    plot.save(plot.regret(SERIES, metric="step_time"), second)
    assert first.read_bytes().startswith(STARTS[suffix])
    assert first.read_bytes() == second.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"first.{suffix}", f"second.{suffix}"]


@pytest.mark.parametrize("name", ["figure.gif", "figure", "figure.svg.bak"])
def test_an_unknown_suffix_is_one_clear_error(tmp_path, name):
    with pytest.raises(DataError, match=r"a figure is written as \.png, \.svg, \.pdf") as caught:
        plot.save(plot.regret(SERIES, metric="step_time"), tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_svg_shows_its_values_under_the_pointer(tmp_path):
    figure = plot.regret(SERIES, metric="step_time")
    plot.save(figure, tmp_path / "a.svg")
    root = ElementTree.fromstring((tmp_path / "a.svg").read_text())
    titles = [node.text for node in root.iter() if node.tag.endswith("}title")]
    assert sorted(titles) == sorted(hovers(figure))
    assert len(titles) == 2 * len(SERIES)  # card-c fits nowhere


def test_an_inline_svg_has_own_ids_no_namespace_and_its_colours():
    figure = plot.breakdown(SERIES)  # with hatches, which refer to patterns
    texts = [
        plot.inlined(figure, label=label, title="T < 1", description="D") for label in ("a", "b")
    ]
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in texts]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, own in zip(texts, ids, strict=True):
        assert "xmlns" not in text
        assert "://" not in text
        pointed = set(re.findall(r"url\(#([^)]+)\)", text)) | set(
            re.findall(r'href="#([^"]+)', text)
        )
        assert pointed <= own
        assert pointed
        assert not re.search(r'(fill|stroke)[:=]\s*"?#[ab]-', text)  # a colour is no reference
        root = ElementTree.fromstring(text)
        assert [node.tag for node in root][:2] == ["title", "desc"]
        assert root[0].text == "T < 1"
        assert root.get("role") == "img"


def test_the_users_own_settings_neither_show_nor_change():
    from matplotlib import rc_context, rcParams

    with rc_context({"axes.facecolor": "red", "font.size": 30}):
        figure = plot.regret(SERIES, metric="step_time")
        assert rcParams["font.size"] == 30
    assert figure.axes[0].get_facecolor()[:3] == (1, 1, 1)
    assert figure.axes[0].xaxis.label.get_size() < 12


@pytest.mark.parametrize(
    ("code", "loads"),
    [
        ("import m2bayes.plot", False),
        ("from m2bayes.plot import asked", False),
        ("import m2bayes.reporting.report", False),
        ("from m2bayes.plot._canvas import canvas; canvas()", True),
    ],
)
def test_matplotlib_is_imported_when_something_is_drawn(code, loads):
    script = f"{code}\nimport sys\nprint('matplotlib' in sys.modules, 'pymc' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(loads), "False"]


# --- rankings --------------------------------------------------------------------------------


def test_a_ranking_draws_medians_bands_p_best_and_the_crossover():
    figure = plot.ranking(SERIES, metric="step_time", units="s", crossovers=[CROSSING])
    above, below = figure.axes
    lines = {line.get_label(): line for line in above.lines}
    assert list(lines["card-b"].get_xdata()) == BATCHES
    np.testing.assert_allclose(lines["card-b"].get_ydata(), [10, 20, 30])
    assert np.isnan(lines["card-c"].get_ydata()).all()
    band = above.collections[[*house.looks(SKUS)].index("card-b")]
    edges = band.get_paths()[0].get_extents()
    np.testing.assert_allclose([edges.y0, edges.y1], [9, 33])
    assert above.get_ylabel() == "step time [ms]"
    assert below.get_xlabel() == "batch [sequences]"
    assert below.get_ylabel() == "probability of\nbeing best [%]"
    assert below.get_title("left") == "not drawn, below 1 % everywhere: card-c"
    assert above.get_title("left") == "step time: decode, context 1024"
    assert {"card-a", "card-b", "card-c (does not fit)", "90 % interval of each"} < set(
        legend(figure)
    )
    assert {"choice changes, 90 % interval", "clear from 90 %"} < set(legend(figure))
    said = [text for text in hovers(figure) if "before" in text]
    assert said == ["card-b before, card-a after: batch 20 (10 to 40)"] * 2
    p = [text for text in hovers(figure) if "best with" in text]
    assert p.count("card-b, 8: best with 75.0 ± 1.0 %") == 1
    assert len(p) == 2 * len(SERIES)  # card-c has none
    assert not below.texts  # nothing is written over the lines


def test_what_may_not_fit_is_hollow_in_a_ranking():
    results = [entry(e["workload"], *(s | {"p_fits": 0.3} for s in e["skus"])) for e in SERIES]
    figure = plot.ranking(results, metric="step_time", units="s")
    points = [line for line in figure.axes[0].lines if line.get_markersize() == 5]
    assert {line.get_markerfacecolor() for line in points} == {"white"}
    assert "hollow: may not fit in memory" in legend(figure)
    assert "hollow: may not fit in memory" not in legend(
        plot.ranking(SERIES, metric="step_time", units="s")
    )


def test_many_skus_that_are_never_best_are_counted():
    names = [f"card-{i}" for i in range(6)]
    rows = [
        entry(w, sku("card-b", 0.01, 1.0), *(sku(n, 0.02, 0.0) for n in names))
        for w in ("decode:batch=1,context=9", "decode:batch=8,context=9")
    ]
    below = plot.ranking(rows, metric="step_time", units="s").axes[1]
    assert below.get_title("left") == "not drawn, below 1 % everywhere: 6 of 7 SKUs"


@pytest.mark.parametrize(("censored", "marks"), [([], set()), (["high"], {">"})])
def test_a_crossover_that_may_lie_beyond_the_sizes_has_an_arrow(censored, marks):
    beyond = CROSSING | {"interval": CROSSING["interval"] | {"censored": censored}}
    figure = plot.ranking(SERIES, metric="step_time", units="s", crossovers=[beyond])
    arrows = [line for line in figure.axes[1].lines if line.get_markersize() == 9]
    assert {line.get_marker() for line in arrows} == marks


def test_a_ranking_without_crossover_has_none_in_its_legend():
    figure = plot.ranking(SERIES, metric="tokens_per_second", units="token/s")
    assert not any("choice changes" in text for text in legend(figure))
    assert figure.axes[0].get_ylabel() == "tokens per second [token/s]"


def test_the_order_of_the_workloads_does_not_matter():
    first, second = (
        plot.ranking(results, metric="step_time", units="s") for results in (SERIES, SERIES[::-1])
    )
    for one, other in zip(first.axes[0].lines, second.axes[0].lines, strict=True):
        np.testing.assert_array_equal(one.get_xydata(), other.get_xydata())


def test_few_workloads_have_a_row_for_each_sku():
    results = answer(["prefill:tokens=9", "decode:batch=1,context=9"])
    figure = plot.times(results, metric="step_time", units="s")
    assert [axis.get_title("left") for axis in figure.axes] == [e["workload"] for e in results]
    rows = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert rows == ["card-b", "card-a", "card-c"]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["best: 75 %", "best: 25 %", "does not fit"]
    assert "probability of being the best" in figure._supxlabel.get_text()
    line = figure.axes[1].lines[0]
    np.testing.assert_allclose(line.get_xdata(), [18, 22])
    assert figure.axes[1].get_xlabel() == "step time [ms]"


def test_where_memory_decides_the_row_says_how_likely_a_sku_fits():
    row = sku("card-b", 0.01, 0.3) | {"p_fits": 0.3}
    figure = plot.times([entry("prefill:tokens=9", row)], metric="step_time", units="s")
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.texts] == ["best: 30 %, fits: 30 %"]
    assert axis.lines[1].get_markerfacecolor() == "white"
    assert "hollow" in figure._supxlabel.get_text()


def test_a_figure_that_shows_a_part_says_so():
    results = answer([f"decode:batch={b},context={b}" for b in range(1, 60)])
    assert (
        "first 12 of 59" in plot.times(results, metric="step_time", units="s")._supxlabel.get_text()
    )
    assert "first 40 of 59" in plot.regret(results, metric="step_time").axes[0].get_title("left")
    assert "first 6 of 59" in plot.breakdown(results).get_suptitle()


def test_the_heat_map_has_a_cell_for_each_pair_and_frames_the_choice():
    figure = plot.p_best_map(GRID, metric="step_time")
    axis = figure.axes[0]
    assert len(axis.patches) == len(GRID) * len(SKUS)
    framed = [patch for patch in axis.patches if patch.get_linewidth() > 2]
    assert len(framed) == len(GRID)
    assert {round(patch.get_x() + 0.5) for patch in framed} == {0}  # card-b, most often best
    texts = [text.get_text() for text in axis.texts]
    assert texts.count("75") == texts.count("25") == texts.count("does not fit") == len(GRID)
    assert [text.get_text() for text in axis.get_yticklabels()] == [e["workload"] for e in GRID]


def test_the_flip_map_colours_by_choice_and_says_how_likely_another_is_best():
    results = [*GRID[:-1], entry(GRID[-1]["workload"], *GRID[-1]["skus"], choice=None)]
    figure = plot.flip_map(results, metric="step_time")
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.texts] == ["25 %"] * 5 + ["none fits"]
    colour = house.tinted(house.looks(SKUS)["card-b"]["color"], 0.75)
    assert all(p.get_facecolor()[:3] == pytest.approx(colour) for p in axis.patches[:5])
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("batch [sequences]", "context [token]")
    assert [t.get_text() for t in axis.get_yticklabels()] == ["512", "2,048", "8,192"]
    assert legend(figure) == ["card-b"]
    assert "probability that another is best" in axis.get_title("left")


def test_a_surer_choice_is_a_stronger_colour():
    pale, strong = (sum(house.tinted("#0072B2", p)) for p in (0.4, 0.9))
    assert strong < pale
    assert house.tinted("#0072B2", 0.0) == (1, 1, 1)


def test_regret_stands_in_per_cent_and_the_choice_is_filled():
    axis = plot.regret(SERIES, metric="step_time").axes[0]
    points = [line for line in axis.lines if line.get_marker() != "None"]
    assert [float(p.get_xdata()[0]) for p in points] == pytest.approx([0.4, 3.0] * len(SERIES))
    assert [p.get_markerfacecolor() == "white" for p in points] == [False, True] * len(SERIES)
    assert "[%]" in axis.get_xlabel()


NOTHING = [entry(f"decode:batch={b},context=9", sku("a", 1.0, 0.0, fits=False), choice=None)
           for b in (1, 2)]  # fmt: skip


@pytest.mark.parametrize(
    "draw",
    [
        lambda results: plot.ranking(results, metric="step_time", units="s"),
        lambda results: plot.times(results[:1], metric="step_time", units="s"),
        lambda results: plot.p_best_map(results, metric="step_time"),
        lambda results: plot.regret(results, metric="step_time"),
        plot.breakdown,
    ],
)
def test_what_nothing_fits_is_drawn_without_a_value(draw, tmp_path):
    figure = draw(NOTHING)
    plot.save(figure, tmp_path / "a.svg")
    assert not [text for text in hovers(figure) if " ms" in text or " µs" in text]


# --- times -----------------------------------------------------------------------------------


def test_the_bars_of_a_breakdown_add_up_to_the_median_of_the_step():
    figure = plot.breakdown(SERIES[:1])
    left, right = figure.axes
    widths = [patch.get_width() for patch in left.patches]
    # projections 0.5 + 0.25, host 0.25; card-b 10 ms, card-a 12 ms, card-c does not fit
    np.testing.assert_allclose(widths, [7.5, 2.5, 9.0, 3.0])
    ends = [patch.get_x() + patch.get_width() for patch in left.patches]
    assert ends[1] == pytest.approx(10)
    whole = [line for line in left.lines if len(line.get_xdata()) == 2]
    np.testing.assert_allclose(whole[0].get_xdata(), [9, 11])
    names = [t.get_text() for t in right.get_yticklabels()]
    assert names == ["QKV projection", "output projection", "host"]
    assert right.get_xlabel() == "time in the step [ms]"
    assert {"projections", "host", "card-a", "card-b"} <= set(legend(figure))
    assert "attention" not in legend(figure)
    assert "does not fit" in [text.get_text() for text in left.texts]


@pytest.mark.parametrize("count", [2, 4, 8])
def test_rows_of_one_operator_stand_nearer_to_one_another_than_to_the_next(count):
    skus = [sku(f"card-{i}", 0.01, 1 / count) for i in range(count)]
    right = plot.breakdown([entry("prefill:tokens=9", *skus, choice="card-0")]).axes[1]
    heights = [float(line.get_ydata()[0]) for line in right.lines if line.get_marker() != "None"]
    inside = max(
        b - a for a, b in zip(sorted(heights[::3]), sorted(heights[::3])[1:], strict=False)
    )
    gap = min(heights[1::3]) - max(heights[::3])
    assert inside < gap


@pytest.fixture(scope="module")
def gemms(database):
    """Two SKUs, kernels of two widths, and draws that are the datasheet roofline, twice over."""
    sheets = database.datasheets(["h100", "l40s"])
    M = np.array([1.0, 64.0, 4096.0] * 2)
    cells = xr.Dataset(
        {"M": ("workload", M), "N": ("workload", [4096.0] * 3 + [8192.0] * 3)},
        coords={"workload": [f"w{i}" for i in range(6)]},
    )
    cells["K"] = cells["N"]
    flops = 2 * cells["M"] * cells["N"] * cells["K"]
    traffic = 2 * (cells["N"] * cells["K"] + cells["M"] * (cells["N"] + cells["K"]))
    least = np.maximum(flops / sheets["peak_flop_rate"], traffic / sheets["peak_bandwidth"])
    spread = xr.DataArray([[2.0, 2.0, 4.0, 4.0]], dims=("chain", "draw"))
    return (least * spread), cells, sheets


def test_a_roofline_draws_the_datasheet_the_band_and_what_was_measured(gemms):
    time, cells, sheets = gemms
    one = cells.isel(workload=[1]).rename(workload="cell")
    half = time.sel(sku="H100-80GB-SXM").isel(workload=[1], chain=0, draw=0) / 2
    measured = xr.Dataset(
        {
            **{v: ("cell", one[v].values) for v in "MNK"},
            "op_time": (("cell", "run"), [[half.item()]]),
        },
        coords={"sku": ("cell", ["H100-80GB-SXM"])},
    )
    figure = plot.roofline(time, cells, sheets, measured=measured)
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert [axis.get_title("left") for axis in shown] == ["H100-80GB-SXM", "L40S-48GB-PCIe"]
    axis = shown[0]
    lines = {line.get_label(): line for line in axis.lines}
    roof = lines["datasheet roofline"]
    sheet = sheets.sel(sku="H100-80GB-SXM")
    assert max(roof.get_ydata()) == pytest.approx(float(sheet["peak_flop_rate"]) / 1e12)
    dots = lines["measured, any shape, benchmark regime"]
    x, y = float(dots.get_xdata()[0]), float(dots.get_ydata()[0])
    assert y == pytest.approx(np.interp(x, roof.get_xdata(), roof.get_ydata()))  # on the roof
    for name in ("N = 4,096, K = 4,096", "N = 8,192, K = 8,192"):
        line = lines[f"{name}: median, 90 % interval"]
        at = np.interp(line.get_xdata(), roof.get_xdata(), roof.get_ydata())
        np.testing.assert_allclose(line.get_ydata(), at * (1 / 2 + 1 / 4) / 2)  # median of 4 draws
    assert len(axis.collections) == 2
    assert axis.get_xlabel().endswith("[FLOP/byte]")
    assert axis.get_ylabel().endswith("[TFLOP/s]")
    assert not any("measured cells" in text for text in hovers(figure)[1:])  # none of the L40S


def test_clock_curves_draw_the_law_the_boost_clock_and_the_reading(database, synthetic_posterior):
    sheets = database.datasheets(["h100", "h200"])
    table = database.table("clock_sustained")
    readings = clock_readings(table, sheets, origin="t")
    figure = plot.clock_curves(synthetic_posterior, sheets, readings)
    assert [axis.get_ylabel() for axis in figure.axes] == ["SM clock [MHz]"] * 2
    for axis, name in zip(figure.axes, readings["sku"].values, strict=True):
        row = table[(table["sku"] == name) & table["M"].notna()].iloc[0]
        (holder,) = axis.containers
        assert float(holder.lines[0].get_ydata()[0]) == pytest.approx(row["sustained_clock"] / 1e6)
        ends = holder.lines[1][0].get_ydata(), holder.lines[1][1].get_ydata()
        half = (float(ends[1][0]) - float(ends[0][0])) / 2
        assert half == pytest.approx(row["half_width"] / 1e6)
        boost = float(sheets["boost_clock"].sel(sku=name)) / 1e6
        assert any(list(line.get_ydata()) == [boost, boost] for line in axis.lines)
        curve = next(line for line in axis.lines if line.get_label() == "posterior median")
        assert (np.diff(curve.get_ydata()) <= 0).all()  # a clock only settles


def test_the_last_point_of_a_clock_curve_is_the_settled_clock(database, synthetic_posterior):
    sheets = database.datasheets(["h100"])
    readings = clock_readings(database.table("clock_sustained"), sheets, origin="t")
    figure = plot.clock_curves(synthetic_posterior, sheets, readings)
    curve = next(x for x in figure.axes[0].lines if x.get_label() == "posterior median")
    from m2bayes.factors import with_skus

    factors = with_skus(synthetic_posterior, sheets, seed=0).squeeze("sku", drop=True)
    terms = gemm_terms(readings, sheets, regime="served").squeeze(("sku", "reading"), drop=True)
    share = sustained_share(terms.assign(power_load=float(power_load(1.0))), factors)
    expected = float(np.median(share)) * float(sheets["boost_clock"].item()) / 1e6
    assert float(curve.get_ydata()[-1]) == pytest.approx(expected)


# --- posteriors and calibration --------------------------------------------------------------


def factor(name, unit, sku, posterior, units="1", **more):
    row = {"factor": name, "sku": sku, "units": units, "prior": [1.0, 0.5, 2.0]}
    flags = {"verdict": "moved by the data", "surprising": False, "contraction": 0.9}
    return row | flags | {"posterior": posterior} | more


FACTORS = [
    factor("eta", "1", "card-a", [0.8, 0.7, 0.9]),
    factor("eta", "1", "card-b", [2.5, 2.2, 2.8], surprising=True),
    factor("launch_time", "s", "card-a", [2e-6, 1e-6, 3e-6], units="s", prior=[1e-6, 5e-7, 2e-6]),
    factor(
        "launch_time",
        "s",
        "card-b",
        [1e-6, 5e-7, 2e-6],
        units="s",
        prior=[1e-6, 5e-7, 2e-6],
        verdict="prior only",
    ),
    factor("slope", "1", "all", [0.1, 0.0, 0.2]),
]


def test_the_forest_has_prior_and_posterior_of_every_factor_in_its_unit():
    figure = plot.factor_forest(FACTORS, title="a-b")
    shown = [axis for axis in figure.axes if axis.get_visible()]
    titles = [axis.get_title("left") for axis in shown]
    assert titles == ["eta", "launch time [µs]", "slope"]
    assert [t.get_text() for t in shown[0].get_yticklabels()] == ["card-a", "card-b"]
    prior, posterior, point = shown[1].lines[:3]
    np.testing.assert_allclose(prior.get_xdata(), [0.5, 2])
    np.testing.assert_allclose(posterior.get_xdata(), [1, 3])
    assert float(point.get_xdata()[0]) == pytest.approx(2)
    hollow = shown[1].lines[5]
    assert hollow.get_markerfacecolor() == "white"
    assert shown[0].lines[4].get_color() == house.ALARM  # card-b's median lies beyond its prior
    assert len(hovers(figure)) == 2 * len(FACTORS)


def scored(*shares):
    names = ("coverage_50", "coverage_80", "coverage_90", "coverage_95")
    return dict(zip(names, shares, strict=True)) | {"band_low": 0.8, "band_high": 0.98}


def test_coverage_stands_against_mass_beside_the_diagonal():
    scores = {"a": scored(0.4, 0.7, 0.85, 0.9), "b": scored(0.6, 0.9, 0.95, 1.0)}
    axis = plot.coverage(scores).axes[0]
    lines = {line.get_label(): line for line in axis.lines}
    assert list(lines["mean"].get_xdata()) == [0.5, 0.8, 0.9, 0.95]
    np.testing.assert_allclose(lines["mean"].get_ydata(), [0.5, 0.8, 0.9, 0.95])
    np.testing.assert_allclose(lines["each of 2"].get_ydata(), [0.4, 0.7, 0.85, 0.9])
    assert list(lines["calibrated"].get_xdata()) == list(lines["calibrated"].get_ydata())
    (band,) = axis.containers
    low, high = (float(line.get_ydata()[0]) for line in band.lines[1])
    assert (low, high) == pytest.approx((0.8, 0.98))


def test_a_pit_that_is_not_uniform_is_found_and_one_that_is_is_not():
    even = (np.arange(400) + 0.5) / 400
    suspicious, said = [], []
    for values in (even, even**2):
        axis = plot.pit(xr.DataArray(values, dims="cell")).axes[0]
        assert "[%]" in axis.get_xlabel()
        said.append((axis.get_title("left"), [text.get_text() for text in axis.texts]))
        suspicious.append(sum(len(c.get_offsets()) for c in axis.collections))
    assert suspicious[0] == 0
    assert suspicious[1] > 0
    assert said[0] == ("PIT: uniform (p = 0.5, passed from 0.01)", [])
    assert said[1][0] == "PIT: not uniform (p < 0.001, passed from 0.01)"
    assert said[1][1] == ["orange: where it departs from uniform"]


def test_reliability_draws_said_and_found_of_filled_bins():
    p = xr.DataArray([0.1, 0.1, 0.9, 0.9], dims="case")
    event = xr.DataArray([0, 1, 1, 1], dims="case")
    axis = plot.reliability(reliability(p, event, bins=5)).axes[0]
    points = [x for x in axis.lines if x.get_marker() == "o" and len(x.get_xdata()) == 1]
    assert [(float(x.get_xdata()[0]), float(x.get_ydata()[0])) for x in points] == [
        pytest.approx((0.1, 0.5)),
        pytest.approx((0.9, 1.0)),
    ]


@pytest.fixture
def checked(rng):
    """Draws of 40 cells and measurements of which four lie far outside."""
    centre = np.geomspace(1e-5, 1e-2, 40)
    draws = centre * np.exp(0.05 * rng.standard_normal((2, 300, 40)))
    observed = centre * np.exp(0.05 * np.linspace(-1, 1, 40))
    observed[::10] *= 2
    return (
        xr.DataArray(draws, dims=("chain", "draw", "cell")),
        xr.DataArray(observed, dims="cell"),
    )


def test_the_posterior_predictive_check_tells_inside_from_outside(checked):
    axis = plot.posterior_predictive(*checked).axes[0]
    dots = {line.get_label(): line for line in axis.lines if line.get_linestyle() == "None"}
    inside, outside = (
        next(x for name, x in dots.items() if word in name) for word in ("inside", "outside")
    )
    assert len(outside.get_xdata()) == 4
    assert len(inside.get_xdata()) == 36
    assert (outside.get_ydata() > 1.7).all()
    assert "10.0 % outside their 90 % interval" in dots
    assert axis.get_xlabel() == "predicted median [µs]"
    assert float(max(outside.get_xdata().max(), inside.get_xdata().max())) == pytest.approx(
        1e4, rel=0.05
    )


def test_the_check_figure_has_all_three(checked):
    figure = plot.check({"a": checked, "b": checked}, {"a": scored(0.5, 0.8, 0.9, 0.95)}, title="t")
    titles = [axis.get_title("left") for axis in figure.axes]
    assert sorted(titles) == [
        "80 measured cells of 2 SKUs or kernels",
        "Coverage of the intervals",
        "PIT: not uniform (p < 0.001, passed from 0.01)",
    ]


def test_an_evaluation_draws_its_groups_wherever_they_stand():
    row = scored(0.5, 0.8, 0.9, 0.95)
    said = {"0 to 0.1": {"said": 0.05, "found": 0.1, "cases": 40}}
    record = {
        "suite": "s",
        "results": {"model": {"all": {"a": row, "b": row}}, "x: reliability": said},
    }
    figure = plot.evaluation(record)
    shown = [axis.get_title("left") for axis in figure.axes if axis.get_visible()]
    assert shown == ["model / all", "x: reliability"]
    assert "s" in figure.get_suptitle()
    with pytest.raises(DataError, match="no coverage or reliability"):
        plot.evaluation({"suite": "s", "results": {"a": {"mape": 0.1}}})


# --- plans and measurements ------------------------------------------------------------------

PLANS = [
    {"sku": "card-a", "tp": 1, "gpus": 4, "p_slo": 0.93, "p_slo_mcse": 0.01, "cost_per_hour": 12.0},
    {"sku": "card-b", "tp": 2, "gpus": 6, "p_slo": 0.99, "cost_per_hour": 18.0,
     "cost_interval": {"low": 15.0, "high": 24.0}},
    {"sku": "card-c", "tp": 1, "gpus": None, "p_slo": None, "cost_per_hour": None},
]  # fmt: skip


def test_plans_stand_at_their_cost_and_probability():
    figure = plot.cost_against_slo(PLANS, choice="card-a")
    axis = figure.axes[0]
    points = [line for line in axis.lines if line.get_marker() == "o"]
    assert [(float(x.get_xdata()[0]), float(x.get_ydata()[0])) for x in points] == [
        (12, 0),
        (18, 1),
    ]
    assert [x.get_markeredgecolor() == house.INK for x in points] == [True, False]
    names = [text.get_text() for text in axis.get_yticklabels()]
    assert names == ["card-a\nTP 1: each GPU serves alone", "card-b\nTP 2: 2 GPUs serve together"]
    assert axis.get_xlabel() == "cost per hour [USD/h]"
    assert [text.get_text() for text in axis.texts] == ["4", "93 %", "6", "99 %"]
    assert any(list(line.get_xdata()) == [15.0, 24.0] for line in axis.lines)


def test_other_sizes_of_a_fleet_are_points_and_no_line_goes_through_what_cannot_be():
    sizes = [{"gpus": g, "p_slo": p} for g, p in ((2, 0.5), (4, 0.93), (6, 0.996))]
    axis = plot.cost_against_slo([PLANS[0] | {"curve": sizes}], confidence=0.9).axes[0]
    assert [list(line.get_xdata()) for line in axis.lines] == [[6], [12], [18]]
    assert [line.get_markerfacecolor() == "white" for line in axis.lines] == [True, False, False]
    texts = [text.get_text() for text in axis.texts]
    assert texts == ["2", "50 %", "4", "93 %", "6", "99.6 %"]


def test_numbers_of_fleets_that_lie_close_do_not_cover_one_another():
    sizes = [{"gpus": g, "p_slo": 0.9} for g in range(3, 46)]
    axis = plot.cost_against_slo([PLANS[0] | {"curve": sizes}]).axes[0]
    texts = [text.get_text() for text in axis.texts]
    assert len(axis.lines) == 43
    assert 2 * texts.count("90 %") < len(sizes)
    assert texts.count("93 %") == texts.count("4") == 1  # the plan is always told


def test_plans_without_prices_count_whole_gpus():
    free = [plan | {"cost_per_hour": None} for plan in PLANS]
    axis = plot.cost_against_slo(free).axes[0]
    assert axis.get_xlabel() == "GPUs of the fleet"
    assert all(tick == int(tick) for tick in axis.get_xticks())


def test_plans_that_serve_nothing_are_refused():
    with pytest.raises(DataError, match="nothing to draw"):
        plot.cost_against_slo(PLANS[2:])


def test_the_value_of_measurements_is_sorted_and_bounded():
    designs = [
        {"name": "small", "evsi": 1e-4, "mcse": 1e-5, "cost": "1 h"},
        {"name": "large", "evsi": 3e-4, "mcse": 1e-5, "cost": 2.5},
    ]
    figure = plot.value_of_measurements(designs, evpi=4e-4)
    axis = figure.axes[0]
    texts = [text.get_text() for text in axis.texts]
    assert texts == ["large", "2.5", "small", "1 h", "knowing everything: 400 µs"]
    np.testing.assert_allclose([p.get_width() for p in axis.patches], [300, 100])
    assert axis.get_xlabel() == "expected gain from choosing after the measurement [µs]"
    assert axis.get_xlim()[1] > 400
    with pytest.raises(DataError, match="no measurement"):
        plot.value_of_measurements([])


def test_measurements_of_no_worth_are_said_to_be_and_the_axis_ends_at_knowing_everything():
    designs = [{"name": "a", "evsi": 0.0, "mcse": 0.0}, {"name": "b", "evsi": 0.0, "mcse": 0.0}]
    figure = plot.value_of_measurements(designs, evpi=4e-4)
    (axis,) = figure.axes
    assert axis.get_title(loc="left").startswith("No measurement is worth more than its error")
    (line,) = [line for line in axis.lines if line.get_linestyle() == "--"]
    assert 0.9 * axis.get_xlim()[1] < line.get_xdata()[0] < axis.get_xlim()[1]


def test_measurements_worth_nothing_are_counted_and_not_drawn():
    rows = [{"name": str(i), "evsi": 1e-6, "mcse": 1e-6} for i in range(20)]
    figure = plot.value_of_measurements([*rows, {"name": "worth", "evsi": 1e-4, "mcse": 1e-6}])
    assert len(figure.axes[0].patches) == 1
    assert "20 more are worth nothing beyond their error" in figure._supxlabel.get_text()
    figure = plot.value_of_measurements(rows, evpi=1e-3)
    assert len(figure.axes[0].patches) == 3
    assert "none is worth more than its error; 17 more" in figure._supxlabel.get_text()
    assert "knowing everything: 1,000 µs →" in [t.get_text() for t in figure.axes[0].texts]


LONG = ["RTX-PRO-6000-BLACKWELL-96GB-PCIe", "H100-80GB-SXM", "GB300-279GB-SXM", "L4-24GB-PCIe"]


def long_answer(workloads):
    return [
        entry(w, *(sku(name, 0.01 * (i + 1), 0.25) for i, name in enumerate(LONG)), choice=LONG[0])
        for w in workloads
    ]


LONG_SERIES = long_answer([f"decode:batch={4**i},context=131072" for i in range(6)])
LONG_GRID = long_answer(
    [f"mixed:prefill={p},batch={b},context=131072" for p in (1, 99) for b in (1, 9)]
)
FIGURES = {
    "ranking": lambda: plot.ranking(
        LONG_SERIES, metric="tokens_per_second", units="token/s", crossovers=[CROSSING]
    ),
    "times": lambda: plot.times(LONG_GRID, metric="tokens_per_second", units="token/s"),
    "p_best": lambda: plot.p_best_map(LONG_GRID, metric="tokens_per_second"),
    "p_best of one": lambda: plot.p_best_map(
        [entry("prefill:tokens=1", sku("a", 1.0, 1.0), choice="a")], metric="tokens_per_second"
    ),
    "flips": lambda: plot.flip_map(LONG_GRID, metric="tokens_per_second"),
    "regret": lambda: plot.regret(LONG_GRID, metric="tokens_per_second"),
    "breakdown": lambda: plot.breakdown(LONG_GRID[:2]),
    "forest": lambda: plot.factor_forest(
        FACTORS, title="attention_decode_bf16-hier_attention_decode"
    ),
    "plans": lambda: plot.cost_against_slo(
        [p | {"sku": n} for p, n in zip(PLANS[:2], LONG, strict=False)]
    ),
    "values": lambda: plot.value_of_measurements(
        [{"name": f"{LONG_GRID[0]['workload']} on {LONG[0]}", "evsi": 1.0, "cost": "120 USD"}],
        evpi=1.2,
    ),
    "coverage": lambda: plot.coverage({"a": scored(0.5, 0.8, 0.9, 0.95)}),
    "evaluation": lambda: plot.evaluation(
        {
            "suite": "s",
            "results": {"gemm_bf16-const_ceiling": {"all": {"a": scored(0.5, 0.8, 0.9, 1)}}},
        }
    ),
}


def written(figure):
    """Every text of a figure that is to be seen."""
    legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes)]
    found = [*figure.texts, *(t for legend in legends if legend for t in legend.get_texts())]
    for axis in (axis for axis in figure.axes if axis.get_visible()):
        found += [*axis.texts, axis.xaxis.label, axis.yaxis.label, axis._left_title]
        for side, limits in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
            ticks = [t for t in side.get_major_ticks() if min(limits) <= t.get_loc() <= max(limits)]
            found += [tick.label1 for tick in ticks]
    return [text for text in found if text.get_text().strip() and text.get_visible()]


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_is_cut_off_or_lies_on_another(name):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = FIGURES[name]()
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    boxes = [(text, text.get_window_extent(renderer)) for text in written(figure)]
    assert boxes
    width, height = figure.get_size_inches() * figure.dpi
    for artist, box in boxes:
        inside = box.x0 > -2 and box.y0 > -2 and box.x1 < width + 2 and box.y1 < height + 2
        assert inside, artist.get_text()
    upright = [(text, box) for text, box in boxes if text.get_rotation() % 90 == 0]
    for i, (one, first) in enumerate(upright):
        for other, second in upright[i + 1 :]:
            lap = min(first.x1, second.x1) - max(first.x0, second.x0)
            rise = min(first.y1, second.y1) - max(first.y0, second.y0)
            assert lap < 2 or rise < 2, (one.get_text(), other.get_text())


def test_a_title_that_is_cut_off_would_be_noticed(monkeypatch):
    figure = plot.coverage({"a": scored(0.5, 0.8, 0.9, 0.95)}, title="a long title " * 9)
    monkeypatch.setitem(FIGURES, "long", lambda: figure)
    with pytest.raises(AssertionError, match="a long title"):
        test_no_text_is_cut_off_or_lies_on_another("long")


# --- which figure, and the commands ----------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (["prefill:tokens=1"], "intervals"),
        (["prefill:tokens=1", "prefill:tokens=9"], "ranking"),
        (["prefill:tokens=1", "prefill:tokens=9,context=4"], "intervals"),
        (["prefill:tokens=1", "decode:batch=1,context=9"], "intervals"),
        ([e["workload"] for e in GRID], "flips"),
        ([f"decode:batch={b},context={b}" for b in range(1, 14)], "p_best"),
    ],
)
def test_the_workloads_choose_the_figure(labels, kind):
    assert asked.kind_of(labels) == kind


def drawn(tmp_path, *argv):
    """Axis labels and titles of the SVG that a command writes."""
    path = tmp_path / "figure.svg"
    code, out, err = run(*argv, "--plot", str(path))
    assert code == 0, err
    assert out
    root = ElementTree.fromstring(path.read_text())
    return [node.text for node in root.iter() if node.tag.endswith("}text")]


def test_rank_draws_a_ranking(tmp_path):
    texts = drawn(
        tmp_path, "rank", *QUESTION, "--workload", "prefill:tokens=64", "prefill:tokens=512"
    )
    assert "step time [ms]" in texts
    assert "being best [%]" in texts
    assert "H100-80GB-SXM" in texts


def test_rank_draws_the_kind_that_is_asked_for(tmp_path):
    texts = drawn(
        tmp_path, "rank", *QUESTION, "--workload", "prefill:tokens=64", "--figure", "regret"
    )
    assert "expected loss in step time against the best [%]" in texts


@pytest.mark.parametrize("kind", ["ranking", "flips"])
def test_a_kind_that_does_not_suit_the_workloads_is_refused(tmp_path, kind):
    path = tmp_path / "a.png"
    argv = ["rank", *QUESTION, "--workload", "prefill:tokens=64", "--figure", kind]
    line = refusal(run(*argv, "--plot", str(path)))
    assert f"--figure {kind}: give" in line
    example = line.partition("such as ")[2].split()
    assert asked.kind_of(example) == kind
    assert not path.exists()


def test_predict_draws_operators_and_times(tmp_path):
    question = ["predict", *QUESTION, "--workload", "decode:batch=8,context=512"]
    assert "attention decode" in drawn(tmp_path, *question, "--by", "op")
    assert "decode:batch=8,context=512" in drawn(tmp_path, *question)


def test_predict_draws_the_roofline_of_matrix_products(tmp_path):
    question = ["predict", "--sku", "h100", "--regime", "benchmark", "--draws", "40"]
    texts = drawn(tmp_path, *question, "--workload", "gemm:m=1,n=4096,k=4096")
    assert "achieved rate [TFLOP/s]" in texts
    assert "measured, any shape, benchmark regime" in texts


def test_next_draws_what_measurements_are_worth(tmp_path):
    texts = drawn(tmp_path, "next", *QUESTION, "--count", "1", "--workload", "prefill:tokens=64")
    assert "expected gain from choosing after the measurement [% of the step time]" in texts


def test_show_draws_factors_telemetry_and_evaluations(tmp_path, database):
    assert "eta memory" in drawn(tmp_path, "show", "gemm_bf16-hier_gemm")
    assert "SM clock [MHz]" in drawn(tmp_path, "show", "clock_sustained")
    for suite, label in (
        ("gemm-cells", "mass of the interval [%]"),
        ("flips", "probability that was said [%]"),
    ):
        path = database.root / "data" / "evaluations" / f"{suite}.json"
        assert label in drawn(tmp_path, "show", str(path))


def test_check_draws_calibration(tmp_path, small_database):
    path = tmp_path / "check.png"
    code, _, err = run("check", "--database", str(small_database.root), "--plot", str(path))
    assert code == 0, err
    assert path.read_bytes().startswith(STARTS["png"])


def test_check_says_where_there_is_nothing_to_draw(tmp_path):
    outcome = run(
        "check", "vidur_a100_light-hier_light", "--plot", str(tmp_path / "a.png"), "--quiet"
    )
    assert "nothing to draw" in refusal(outcome)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.gif", "a figure is written as"),
        ("nowhere/a.png", "no such folder"),
        ("", "give the file such"),
    ],
)
def test_a_file_that_cannot_be_drawn_is_refused_before_the_work(tmp_path, name, reason):
    argv = ["rank", *QUESTION, "--workload", "prefill:tokens=64", "--plot", str(tmp_path / name)]
    assert reason in refusal(run(*argv))
    assert not list(tmp_path.iterdir())


def test_what_has_no_figure_is_said(tmp_path):
    outcome = run("show", "h100", "--plot", str(tmp_path / "a.png"))
    assert "h100 has no figure" in refusal(outcome)


def test_a_plot_changes_nothing_of_the_answer(tmp_path):
    argv = ["rank", *QUESTION, "--workload", "prefill:tokens=64", "--json"]
    with_plot = run(*argv, "--plot", str(tmp_path / "a.png"))
    assert json.loads(run(*argv)[1]) == json.loads(with_plot[1])
