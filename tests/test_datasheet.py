import copy
import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from m2bayes.datasheet import QUANTITIES, combine, datasheet, lint
from m2bayes.errors import DatasheetError

FILES = sorted((Path(__file__).parents[1] / "data" / "datasheets").glob("*.json"))
CARDS = {file.stem: json.loads(file.read_text()) for file in FILES}
ALIASES = {
    "a100": "A100-80GB-SXM",
    "a100-40gb": "A100-40GB-SXM",
    "a100-pcie": "A100-80GB-PCIe",
    "h100": "H100-80GB-SXM",
    "h100-pcie": "H100-80GB-PCIe",
    "h200": "H200-141GB-SXM",
    "l40s": "L40S-48GB-PCIe",
    "l4": "L4-24GB-PCIe",
    "a40": "A40-48GB-PCIe",
    "a10": "A10-24GB-PCIe",
    "b200": "B200-180GB-SXM",
    "b300": "B300-270GB-SXM",
    "gb200": "GB200-186GB-SXM",
    "gb300": "GB300-279GB-SXM",
    "rtx-3090": "RTX-3090-24GB-PCIe",
    "rtx-4090": "RTX-4090-24GB-PCIe",
    "rtx-5090": "RTX-5090-32GB-PCIe",
    "rtx-pro-6000": "RTX-PRO-6000-96GB-PCIe",
}


def others_of(name):
    return [card for other, card in CARDS.items() if other != name]


def changed(name, path, value):
    """Copy of a shipped card with one deliberate mistake at a dotted path."""
    card = copy.deepcopy(CARDS[name])
    *parents, last = path.split(".")
    place = card
    for key in parents:
        place = place[key]
    place[last] = value
    return card


def errors(card, others=()):
    return [f for f in lint(card, origin="card.json", others=others) if f.severity == "error"]


@pytest.mark.parametrize("name", CARDS)
def test_every_shipped_card_is_free_of_findings(name):
    assert lint(CARDS[name], origin=f"{name}.json", others=others_of(name)) == []


@pytest.mark.parametrize("name", CARDS)
def test_every_shipped_file_bears_the_name_of_its_card(name):
    assert CARDS[name]["name"] == name


def test_the_aliases_people_use_are_those_of_the_contract():
    assert {alias: name for name, card in CARDS.items() for alias in card["aliases"]} == ALIASES


@pytest.mark.parametrize(
    ("name", "clock"),
    [
        ("A100-80GB-SXM", 312e12 / (108 * 2048)),  # 1410.6 MHz, boost 1410
        ("H100-80GB-SXM", 989.4e12 / (132 * 4096)),  # 1829.9 MHz, boost 1980
        ("L40S-48GB-PCIe", 362.05e12 / (142 * 1024)),  # 2489.9 MHz, boost 2520
    ],
)
def test_peak_clock_is_the_clock_that_the_printed_rate_belongs_to(name, clock):
    np.testing.assert_allclose(datasheet(CARDS[name]).peak_clock.sel(sku=name), clock, rtol=1e-12)


@pytest.mark.parametrize("name", CARDS)
def test_no_printed_rate_needs_more_than_the_boost_clock_beyond_rounding(name):
    sheet = datasheet(CARDS[name])
    assert 0.9 < (sheet.peak_clock / sheet.boost_clock).item() < 1.01


def test_a_sheet_holds_si_units_and_nan_where_a_dtype_is_lacking():
    sheet = datasheet(CARDS["A100-80GB-SXM"]).isel(sku=0)
    assert sheet.peak_bandwidth.item() == pytest.approx(2.039e12, rel=1e-12)
    assert sheet.l2.item() == 40 * 2**20
    assert sheet.memory.item() == 80e9
    assert sheet.boost_clock.item() == 1410e6
    assert sheet.peak_flop_rate.sel(dtype="int8").item() == 624e12
    assert np.isnan(sheet.peak_flop_rate.sel(dtype=["fp8", "fp4"])).all()
    assert (sheet.architecture.item(), sheet.form_factor.item()) == ("Ampere", "SXM")
    expected = {q: next(iter(units)) for q, (units, _, _) in QUANTITIES.items()}
    assert {v: a.attrs["units"] for v, a in sheet.items()} == {**expected, "peak_clock": "Hz"}


def test_no_variable_bears_a_name_that_a_dataset_has():
    assert not [v for v in datasheet(CARDS["A100-80GB-SXM"]).data_vars if hasattr(xr.Dataset, v)]


MISTAKES = [
    # a sparse rate, an SXM column, a wrong unit: hazards met in public tools
    ("L40S-48GB-PCIe", "facts.peak_flop_rate.fp8.value", 1466, "2:4-sparse"),
    ("L40S-48GB-PCIe", "facts.peak_flop_rate.int8.value", 1466, "2:4-sparse"),
    ("H100-80GB-SXM", "facts.peak_flop_rate.bf16.value", 1979, "2:4-sparse one is twice that"),
    ("H100-80GB-PCIe", "facts.peak_flop_rate.bf16.value", 989.4, "of this form factor"),
    ("H100-80GB-SXM", "facts.peak_flop_rate.bf16.value", 400, "give the dense rate and its width"),
    ("H100-80GB-SXM", "facts.peak_bandwidth.value", 3350, "check unit"),
    ("H100-80GB-SXM", "facts.peak_bandwidth.unit", "GB/s", "check unit"),
    ("H100-80GB-SXM", "facts.peak_bandwidth.unit", "TiB/s", "accepts byte/s, GB/s, TB/s"),
    ("H100-80GB-SXM", "facts.boost_clock.unit", None, "accepts Hz, MHz, GHz"),
    # the numbers themselves
    ("H100-80GB-SXM", "facts.memory.value", "80", "(str): give a finite number > 0"),
    ("H100-80GB-SXM", "facts.memory.value", float("nan"), "finite number > 0"),
    ("H100-80GB-SXM", "facts.memory.value", float("inf"), "finite number > 0"),
    ("H100-80GB-SXM", "facts.memory.value", 10**400, "finite number > 0"),
    ("H100-80GB-SXM", "facts.memory.value", -80, "finite number > 0"),
    ("H100-80GB-SXM", "facts.memory.value", 0, "finite number > 0"),
    ("H100-80GB-SXM", "facts.memory.value", True, "(bool): give a finite number > 0"),
    ("H100-80GB-SXM", "facts.memory.value", None, "(NoneType)"),
    ("H100-80GB-SXM", "facts.sm_count.value", 132.5, "whole number"),
    # the variant: name, memory, form factor, power
    ("A100-40GB-SXM", "facts.memory.value", 80, "says otherwise: correct one of them"),
    ("A100-80GB-SXM", "name", "A100-80GB-PCIe", "form factor 'SXM'"),
    ("A100-80GB-SXM", "name", "A100-SXM", "CHIP-80GB-SXM"),
    ("H100-80GB-PCIe", "facts.power_limit.value", 700, "PCIe allows 600"),
    ("A100-80GB-SXM", "name", "A100-0GB-SXM", "CHIP-80GB-SXM"),
    ("A100-80GB-SXM", "name", "A100-080GB-SXM", "CHIP-80GB-SXM"),
    ("A100-80GB-SXM", "name", "A100-٨٠GB-SXM", "CHIP-80GB-SXM"),
    # keys, types, provenance
    *(
        ("A100-80GB-SXM", key, value, "printable, no slash in it and no blanks")
        for key in ("name", "vendor", "architecture")
        for value in (
            " Ampere",
            "Ampere\n",
            "Am\x00pere",
            "Am\x1b[31mpere",
            "Am\ud800pere",
            "Am/pere",
            "A\\m",
        )
    ),
    ("H100-80GB-SXM", "aliases", ["h\x1b100"], "list of strings"),
    ("H100-80GB-SXM", "facts.l2.emp\nirical", 1.0, "no known key"),
    ("H100-80GB-SXM", "facts.l2.date", "٢٠٢٢-٠١", "YYYY-MM"),
    ("H100-80GB-SXM", "vendor", "", "non-empty string"),
    ("H100-80GB-SXM", "aliases", "h100", "list of strings"),
    ("H100-80GB-SXM", "aliases", ["H100"], "in lower case"),
    ("H100-80GB-SXM", "aliases", ["h100", "h100"], "each once"),
    ("H100-80GB-SXM", "eta_compute", 0.7, "no known key"),
    ("H100-80GB-SXM", "facts.mem_bw_empirical", 1.0, "no known key"),
    ("H100-80GB-SXM", "facts.l2.empirical", 1.0, "no known key"),
    ("H100-80GB-SXM", "facts.peak_flop_rate.fp32", {}, "use bf16, fp8, int8, fp4"),
    ("H100-80GB-SXM", "facts.l2", 50, "give value, unit, source, date"),
    ("H100-80GB-SXM", "facts.peak_flop_rate", 989.4, "for each dtype"),
    ("H100-80GB-SXM", "facts", [], "mapping from quantity to fact"),
    ("H100-80GB-SXM", "facts.l2.source", " ", "name the document"),
    ("H100-80GB-SXM", "facts.l2.date", "spring 2022", "YYYY-MM"),
    ("H100-80GB-SXM", "facts.l2.date", "2027-13", "YYYY-MM"),
    ("H100-80GB-SXM", "facts.l2.date", "2027-12-32", "YYYY-MM"),
]


@pytest.mark.parametrize(("name", "path", "value", "remedy"), MISTAKES)
def test_a_deliberate_mistake_is_refused_with_its_place_and_remedy(name, path, value, remedy):
    card = changed(name, path, value)
    found = [f for f in errors(card) if f.place.startswith(path.rsplit(".", 1)[0])]
    assert any(remedy in finding.message for finding in found)
    assert all("\n" not in finding.message for finding in found)
    with pytest.raises(DatasheetError, match=rf"^card\.json: {path.split('.', maxsplit=1)[0]}"):
        datasheet(card, origin="card.json")


REQUIRED = ["vendor", "aliases", "facts.l2", "facts.l2.value", "facts.l2.unit", "facts.l2.source"]
REQUIRED += ["facts.l2.date", "facts.peak_flop_rate.bf16", "facts.tensor_flop_per_clock"]


@pytest.mark.parametrize("path", REQUIRED)
def test_a_missing_entry_is_named(path):
    card = copy.deepcopy(CARDS["H100-80GB-SXM"])
    *parents, last = path.split(".")
    place = card
    for key in parents:
        place = place[key]
    del place[last]
    assert [(f.place, "is missing" in f.message) for f in errors(card)] == [(path, True)]


def test_a_rate_without_its_flop_per_clock_is_refused():
    card = copy.deepcopy(CARDS["H100-80GB-SXM"])
    del card["facts"]["tensor_flop_per_clock"]["fp8"]
    assert ["give both or neither" in f.message for f in errors(card)] == [True]


def test_fp8_must_be_twice_bf16_even_where_the_clock_would_allow_it():
    card = changed("H100-80GB-SXM", "facts.peak_flop_rate.fp8.value", 1850)
    assert ["1.87 × bf16, not 2 ± 5 %" in f.message for f in errors(card)] == [True]


def test_the_fp8_rule_says_nothing_outside_the_families_it_is_known_for():
    card = changed("H100-80GB-SXM", "facts.peak_flop_rate.fp8.value", 1850)
    assert errors({**card, "architecture": "Other"}) == []


def test_a_low_power_limit_on_sxm_is_a_warning():
    card = changed("A100-80GB-SXM", "facts.power_limit.value", 250)
    assert [f.severity for f in lint(card, origin="card.json")] == ["warning"]


@pytest.mark.parametrize(
    ("quantity", "value"), [("peak_bandwidth", 3.35), ("peak_bandwidth", 3.9), ("power_limit", 700)]
)
def test_a_pcie_card_with_a_number_of_its_sxm_twin_is_refused(quantity, value):
    card = changed("H100-80GB-PCIe", f"facts.{quantity}.value", value)
    places = [f.place for f in errors(card, [CARDS["H100-80GB-SXM"]])]
    assert f"facts.{quantity}.value" in places


@pytest.mark.parametrize("alias", ["h100", "h200-141gb-sxm"])
def test_an_alias_that_could_mean_two_cards_is_refused(alias):
    card = changed("H100-80GB-PCIe", "aliases", ["h100-pcie", alias])
    found = errors(card, others_of("H100-80GB-PCIe"))
    assert [(f.place, repr(alias) in f.message) for f in found] == [("aliases", True)]


def test_a_name_that_differs_by_case_only_is_refused():
    card = CARDS["L4-24GB-PCIe"]
    other = {**card, "name": "l4-24GB-PCIe", "aliases": []}
    assert [f.place for f in errors(card, [other])] == ["name"]


def test_a_known_name_with_other_facts_is_told_and_with_the_same_facts_not():
    card = changed("H100-80GB-SXM", "facts.l2.value", 60)
    found = lint(card, origin="card.json", others=CARDS.values())
    assert [(f.severity, f.place) for f in found] == [("warning", "name")]
    assert "'H100-80GB-SXM' is the name of a known card with other facts" in found[0].message
    for name, shipped in CARDS.items():
        assert lint({**shipped, "aliases": []}, origin=name, others=CARDS.values()) == []


@pytest.mark.parametrize("family", ["hopper", "HOPPER", "Hop per"])
def test_an_architecture_that_differs_by_case_or_blanks_is_refused(family):
    """It would be an architecture of its own, that nobody measured."""
    card = changed("H100-80GB-SXM", "architecture", family)
    found = errors(card, others_of("H100-80GB-SXM"))
    assert [f.place for f in found] == ["architecture"]
    assert "other cards have 'Hopper': write it as they do" in found[0].message


def test_an_unsound_neighbour_does_not_hide_behind_or_break_a_sound_card():
    assert lint(CARDS["L4-24GB-PCIe"], origin="card.json", others=[{"name": 3}, {}]) == []


def test_something_that_is_no_mapping_is_refused():
    with pytest.raises(DatasheetError, match="give a mapping"):
        datasheet(["H100"])


@st.composite
def cards_in_other_units(draw):
    """A shipped card and the same facts in units drawn at random."""
    name = draw(st.sampled_from(sorted(CARDS)))
    card = copy.deepcopy(CARDS[name])
    for quantity, fact in card["facts"].items():
        units = QUANTITIES[quantity][0]
        for entry in [fact] if "unit" in fact else fact.values():
            unit = draw(st.sampled_from(sorted(units)))
            entry["value"] = entry["value"] * units[entry["unit"]] / units[unit]
            entry["unit"] = unit
    return name, card


@given(cards_in_other_units())
def test_units_of_a_card_do_not_change_its_dataset(drawn):
    name, card = drawn
    xr.testing.assert_allclose(datasheet(card), datasheet(CARDS[name]), rtol=1e-12, atol=0)


@given(st.permutations(sorted(CARDS)))
def test_combine_keeps_the_given_order_and_depends_on_nothing_else(names):
    together = combine([datasheet(CARDS[name]) for name in names])
    assert together.sku.values.tolist() == names
    for name in names:
        alone = datasheet(CARDS[name])
        xr.testing.assert_identical(together.sel(sku=[name]), alone)


def test_combine_refuses_two_sheets_of_one_name_and_none_at_all():
    sheet = datasheet(CARDS["L4-24GB-PCIe"])
    with pytest.raises(DatasheetError, match="SKU L4-24GB-PCIe is given twice; name each once"):
        combine([sheet, sheet])
    with pytest.raises(DatasheetError, match="no SKU is given; name at least one"):
        combine([])
