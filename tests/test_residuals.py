"""The discrepancy conditioned on measured cells, judged by the Gaussian conditional in full."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, t

from m2bayes.discrepancy import BLOCK, NEAREST, OUTLIER, SHARED, Residuals, moments, unit_fields
from m2bayes.factors import with_skus
from m2bayes.kernels import unit_sheets
from m2bayes.measurements import checked
from m2bayes.mechanism.laws import LAWS
from m2bayes.random_fields import ROUGH, ROUGH_LENGTH, TAIL
from m2bayes.residuals import COVERED, WIDER, inflation, known
from m2bayes.updating.carried import _mean_log_time
from m2bayes.updating.likelihood import misfit
from m2bayes.updating.rows import context, runs

LENGTHS = LAWS["gemm_time"].lengths
EXACT = {"rtol": 1e-9, "atol": 1e-12}  # of systems of equations, solved in two ways


def shapes_of(rng, n, octaves=12.0):
    """M, N, K, and the share of the traffic that L2 serves."""
    return np.column_stack([2.0 ** rng.uniform(0, octaves, (n, 3)), rng.uniform(0, 1, n)])


def made_up(rng, per_sku, skus=("A", "B", "C")):
    n = per_sku * len(skus)
    return Residuals(
        shapes=shapes_of(rng, n),
        sku=np.repeat(skus, per_sku),
        unit=rng.normal(size=n),
        noise=rng.uniform(0.01, 0.3, n),
    )


def covariance(shapes_a, sku_a, shapes_b, sku_b):
    """Of unit discrepancies, written anew: exponential in octaves and in warm share, two parts."""
    octaves = np.abs(np.log2(shapes_a[:, None, :3] / shapes_b[None, :, :3])) / LENGTHS[:3]
    warm = np.abs(shapes_a[:, None, 3:] - shapes_b[None, :, 3:]) / LENGTHS[3]
    apart = np.concatenate([octaves, warm], axis=-1)
    distance = apart.sum(axis=-1)
    field = (1 - ROUGH) * np.exp(-distance) + ROUGH * np.exp(-distance / ROUGH_LENGTH)
    return field * np.where(np.asarray(sku_a)[:, None] == np.asarray(sku_b), 1.0, SHARED)


def by_brute_force(asked, sku, known):
    """Mean and variance given all cells; covariance with each sister card at the same shape."""
    inverse = np.linalg.inv(
        covariance(known.shapes, known.sku, known.shapes, known.sku) + np.diag(known.noise)
    )
    own = covariance(asked, [sku] * len(asked), known.shapes, known.sku)
    mean = own @ inverse @ known.unit
    variance = 1 - np.diag(own @ inverse @ own.T)
    sisters = sorted(set(known.sku) - {sku}) or ["a card that nobody measured"]
    common = [
        SHARED
        - np.diag(own @ inverse @ covariance(asked, [s] * len(asked), known.shapes, known.sku).T)
        for s in sisters
    ]
    return mean, variance, np.mean(common, axis=0)


@pytest.mark.parametrize("sku", ["A", "C", "never measured"])
@pytest.mark.parametrize("skus", [("A",), ("A", "B", "C")])
def test_moments_are_those_of_the_gaussian_conditional(rng, sku, skus):
    """With no more cells than `NEAREST`, nothing is approximated."""
    known = made_up(rng, NEAREST // 3 if len(skus) > 1 else NEAREST, skus)
    asked = shapes_of(rng, 20)
    found = moments(asked, sku=sku, residuals=known, lengths=LENGTHS)
    mean, variance, common = by_brute_force(asked, sku, known)
    np.testing.assert_allclose(found.mean, mean, **EXACT)
    np.testing.assert_allclose(found.sd, np.sqrt(variance), **EXACT)
    np.testing.assert_allclose(found.shared, np.clip(common / variance, 0, 1), **EXACT)


def test_the_nearest_cells_do_nearly_as_well_as_all(rng):
    """Nothing is gained by cells left out, and little lost: at most 0.02 of the prior variance."""
    known, asked = made_up(rng, 200), shapes_of(rng, 50)
    found = moments(asked, sku="A", residuals=known, lengths=LENGTHS)
    _, variance, _ = by_brute_force(asked, "A", known)
    assert (found.sd**2 >= variance - 1e-12).all()
    assert (found.sd**2 - variance).max() < 0.02
    assert variance.min() < 0.7


def test_a_covariance_that_forgets_whose_cell_it_is_is_found_out(rng):
    known = made_up(rng, NEAREST // 3)
    one = Residuals(known.shapes, np.full(len(known.sku), "A"), known.unit, known.noise)
    asked = shapes_of(rng, 20)
    right, wrong = (
        moments(asked, sku="A", residuals=r, lengths=LENGTHS).mean for r in (known, one)
    )
    assert np.abs(right - wrong).max() > 0.01


# --- limits ----------------------------------------------------------------------------------


def single(sku="A", unit=1.5, noise=0.0, wider=1.0, shape=(64.0, 4096.0, 1024.0, 0.2)):
    return Residuals(np.array([shape]), np.array([sku]), np.array([unit]), np.array([noise]), wider)


HERE = np.array([[64.0, 4096.0, 1024.0, 0.2]])


def test_without_cells_there_is_the_prior():
    nothing = made_up(np.random.default_rng(0), 0)
    for residuals in (None, nothing):
        found = moments(HERE.repeat(3, axis=0), sku="A", residuals=residuals, lengths=LENGTHS)
        assert found.mean.tolist() == [0.0] * 3
        assert found.sd.tolist() == [1.0] * 3
        assert found.shared.tolist() == [SHARED] * 3


def test_a_cell_measured_without_noise_is_known():
    found = moments(HERE, sku="A", residuals=single(), lengths=LENGTHS)
    np.testing.assert_allclose(found.mean, 1.5, **EXACT)
    np.testing.assert_allclose(found.sd, 1e-3, **EXACT)  # where the variance is cut off


def test_a_sister_measured_without_noise_is_known_in_part():
    """Correlation SHARED: mean SHARED·r, variance 1 − SHARED², and what is left is its own."""
    found = moments(HERE, sku="B", residuals=single(), lengths=LENGTHS)
    np.testing.assert_allclose(found.mean, SHARED * 1.5, **EXACT)
    np.testing.assert_allclose(found.sd**2, 1 - SHARED**2, **EXACT)
    np.testing.assert_allclose(found.shared, 0.0, **EXACT)


@pytest.mark.parametrize("noise", [0.25, 1.0, 4.0])
def test_noise_shrinks_a_cell_towards_zero(noise):
    found = moments(HERE, sku="A", residuals=single(noise=noise), lengths=LENGTHS)
    np.testing.assert_allclose(found.mean, 1.5 / (1 + noise), **EXACT)
    np.testing.assert_allclose(found.sd**2, noise / (1 + noise), **EXACT)


def test_far_away_there_is_the_prior(rng):
    """Forty lengths off: the correlation is below 1e-17."""
    far = HERE * [2.0 ** (40 * LENGTHS[0]), 1.0, 1.0, 1.0]
    found = moments(far, sku="A", residuals=single(wider=3.0), lengths=LENGTHS)
    np.testing.assert_allclose(found.mean, 0.0, atol=1e-15)
    np.testing.assert_allclose(found.sd, 1.0, **EXACT)  # the inflation belongs to what is learnt
    np.testing.assert_allclose(found.shared, SHARED, **EXACT)


def test_one_octave_away_the_rough_part_is_forgotten():
    """Of M: exp(-1/2) of the long part; the rough part keeps exp(-10)."""
    asked = HERE * [2.0, 1.0, 1.0, 1.0]
    rho = (1 - ROUGH) * np.exp(-0.5) + ROUGH * np.exp(-0.5 / ROUGH_LENGTH)
    found = moments(asked, sku="A", residuals=single(), lengths=LENGTHS)
    np.testing.assert_allclose(found.mean, 1.5 * rho, **EXACT)
    np.testing.assert_allclose(found.sd**2, 1 - rho**2, **EXACT)


def test_cold_reads_are_half_forgotten_by_warm_ones():
    """The same shape wholly from HBM and wholly from L2: two lengths apart, exp(-2)."""
    warm, cold = (np.array([[64.0, 4096.0, 1024.0, share]]) for share in (1.0, 0.0))
    known = Residuals(warm, np.array(["A"]), np.array([1.5]), np.array([0.0]))
    found = moments(cold, sku="A", residuals=known, lengths=LENGTHS)
    rho = (1 - ROUGH) * np.exp(-2.0) + ROUGH * np.exp(-2.0 / ROUGH_LENGTH)
    np.testing.assert_allclose(found.mean, 1.5 * rho, **EXACT)
    np.testing.assert_allclose(
        moments(warm, sku="A", residuals=known, lengths=LENGTHS).mean, 1.5, **EXACT
    )


def test_a_shape_without_a_warm_share_is_read_cold():
    bare = moments(HERE[:, :3], sku="A", residuals=single(), lengths=LENGTHS)
    cold = moments(HERE * [1.0, 1.0, 1.0, 0.0], sku="A", residuals=single(), lengths=LENGTHS)
    np.testing.assert_array_equal(bare.mean, cold.mean)
    np.testing.assert_array_equal(bare.sd, cold.sd)


def test_an_outlier_is_pulled_in():
    for unit in (50.0, 1e9):
        found = moments(HERE, sku="A", residuals=single(unit=unit), lengths=LENGTHS)
        np.testing.assert_allclose(found.mean, OUTLIER, **EXACT)


def test_errors_wider_than_modelled_widen_what_was_learnt():
    plain, wide = (
        moments(HERE, sku="A", residuals=single(noise=1.0, wider=w), lengths=LENGTHS)
        for w in (1.0, 1.2)
    )
    np.testing.assert_allclose(wide.sd / plain.sd, 1 + 0.5 * 0.2, **EXACT)
    np.testing.assert_array_equal(wide.mean, plain.mean)


# --- independence of what else is asked ------------------------------------------------------


def test_other_shapes_do_not_matter(rng):
    """Not to the last bit, across the blocks in which shapes are conditioned."""
    known, asked = made_up(rng, 100), shapes_of(rng, BLOCK + 30)
    whole = moments(asked, sku="A", residuals=known, lengths=LENGTHS)
    for part in ([0], [BLOCK + 3, 5], range(BLOCK - 2, BLOCK + 30), range(BLOCK + 20, -1, -1)):
        some = moments(asked[list(part)], sku="A", residuals=known, lengths=LENGTHS)
        for name in ("mean", "sd", "shared"):
            np.testing.assert_array_equal(getattr(some, name), getattr(whole, name)[list(part)])


def test_conditioned_fields_do_not_depend_on_what_else_is_asked(rng):
    known, asked = made_up(rng, 100), shapes_of(rng, 40)
    facts = {
        "sku": "A",
        "architecture": "X",
        "draws": 50,
        "seed": 3,
        "residuals": known,
        "lengths": LENGTHS,
    }
    whole = unit_fields(asked, **facts)
    for part in ([7], [39, 0, 20]):
        for one, all_ in zip(unit_fields(asked[part], **facts), whole, strict=True):
            np.testing.assert_array_equal(one, all_[:, part])


@pytest.mark.statistical
def test_drawn_fields_have_the_conditional_moments(rng):
    """The field over its tail scale is normal: mean 0 and sd as told, shared with a sister card."""
    known, asked = made_up(rng, NEAREST // 3), shapes_of(rng, 6)
    facts = {"architecture": "X", "draws": 4000, "seed": 3, "residuals": known, "lengths": LENGTHS}
    fields, told = {}, {}
    for sku in ("A", "B"):
        unit, widening = unit_fields(asked, sku=sku, **facts)
        told[sku] = moments(asked, sku=sku, residuals=known, lengths=LENGTHS)
        fields[sku] = (unit - told[sku].mean) / widening / told[sku].sd
    one = fields["A"].astype(float)
    mcse = one.std(axis=0, ddof=1) / np.sqrt(len(one))
    assert (np.abs(one.mean(axis=0)) < 4 * mcse).all()
    square = one**2
    assert (np.abs(square.mean(axis=0) - 1) < 4 * square.std(axis=0) / np.sqrt(len(one))).all()
    product = one * fields["B"]
    expected = np.sqrt(told["A"].shared * told["B"].shared)
    mcse = product.std(axis=0, ddof=1) / np.sqrt(len(one))
    assert (np.abs(product.mean(axis=0) - expected) < 4 * mcse).all()


# --- left out, and how wide errors really are ------------------------------------------------


def test_left_out_shapes_are_predicted_from_the_others(rng):
    """As if their cells, the SKU's and its sisters', were not in the table."""
    known = made_up(rng, NEAREST)
    asked = known.shapes[:5]
    found = moments(asked, sku="A", residuals=known, left_out=True, lengths=LENGTHS)
    for i in range(5):
        rest = ~(known.shapes == asked[i]).all(axis=1)
        others = Residuals(known.shapes[rest], known.sku[rest], known.unit[rest], known.noise[rest])
        alone = moments(asked[[i]], sku="A", residuals=others, lengths=LENGTHS)
        np.testing.assert_allclose(found.mean[i], alone.mean[0], **EXACT)
        np.testing.assert_allclose(found.sd[i], alone.sd[0], **EXACT)


def test_a_left_out_shape_is_left_out_whatever_the_cache_of_a_sister(rng):
    """The same M, N and K on a card with another L2 has another warm share, and is no new shape."""
    known = made_up(rng, NEAREST, skus=("A",))
    twin = Residuals(
        shapes=np.vstack([known.shapes, known.shapes[:1] * [1, 1, 1, 0.5]]),
        sku=np.append(known.sku, "B"),
        unit=np.append(known.unit, 4.0),
        noise=np.append(known.noise, 0.01),
    )
    alone, beside = (
        moments(known.shapes[:1], sku="A", residuals=r, left_out=True, lengths=LENGTHS)
        for r in (known, twin)
    )
    np.testing.assert_allclose(beside.mean, alone.mean, atol=0.01)


@pytest.mark.parametrize("cells", [1, 5, NEAREST])
def test_left_out_shapes_are_left_out_of_small_tables_too(rng, cells):
    known = made_up(rng, cells, skus=("A",))
    found = moments(known.shapes, sku="A", residuals=known, left_out=True, lengths=LENGTHS)
    for i in range(cells):
        rest = np.arange(cells) != i
        others = Residuals(known.shapes[rest], known.sku[rest], known.unit[rest], known.noise[rest])
        alone = moments(known.shapes[[i]], sku="A", residuals=others, lengths=LENGTHS)
        np.testing.assert_allclose(found.mean[i], alone.mean[0], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found.sd[i], alone.sd[0], rtol=1e-6)


def islands(rng, count=150, cells=4):
    """Residuals of the model on groups of cells so far apart that each has its own tail scale."""
    base = np.stack(np.unravel_index(rng.permutation(8**3)[:count], (8, 8, 8)), axis=1) * 100.0
    octaves = (base[:, None] + rng.uniform(0, 2, (count, cells, 3))).reshape(-1, 3)
    shapes = np.column_stack([2.0**octaves, np.zeros(len(octaves))])
    noise = 0.05
    unit = []
    for i in range(count):
        own = shapes[i * cells : (i + 1) * cells]
        cov = covariance(own, ["A"] * cells, own, ["A"] * cells) + noise * np.eye(cells)
        scale = 1 / np.sqrt(rng.chisquare(TAIL) / TAIL)
        unit.append(scale * rng.multivariate_normal(np.zeros(cells), cov))
    n = count * cells
    return Residuals(shapes, np.full(n, "A"), np.concatenate(unit), np.full(n, noise))


def test_the_quantile_of_coverage_is_that_of_the_tail():
    assert COVERED[1] == pytest.approx(t(TAIL).ppf((1 + COVERED[0]) / 2), abs=5e-5)
    assert norm.ppf(0.95) < 1.7 < COVERED[1]


@pytest.mark.statistical
def test_inflation_is_one_where_errors_are_as_modelled(rng):
    """Over twelve tables that the model made, judged at 4 Monte Carlo errors; and doubled."""
    found = []
    for _ in range(12):
        known = islands(rng)
        wide = Residuals(known.shapes, known.sku, 2 * known.unit, known.noise)
        found.append(
            (inflation(known, "A", lengths=LENGTHS), inflation(wide, "A", lengths=LENGTHS))
        )
    plain, doubled = np.transpose(found)
    mcse = plain.std(ddof=1) / np.sqrt(len(plain))
    assert abs(plain.mean() - 1) < 4 * mcse
    assert mcse < 0.2  # it acts on what is learnt only
    assert doubled.min() > 1.5
    assert doubled.mean() > 2


def test_applied_as_prediction_applies_it_the_errors_are_covered_as_asked(rng):
    """The quantile of the errors over the widened scale is that of the tail, not merely nearer."""
    known = islands(rng)
    wide = replace(known, unit=1.2 * known.unit)
    wider = inflation(wide, "A", lengths=LENGTHS)
    held = moments(
        wide.shapes,
        sku="A",
        residuals=replace(wide, wider=wider),
        lengths=LENGTHS,
        left_out=True,
    )
    scaled = np.abs(wide.unit - held.mean) / np.sqrt(held.sd**2 + wide.noise)
    assert np.quantile(scaled, COVERED[0]) == pytest.approx(COVERED[1], rel=2e-3)


def test_what_the_factors_leave_open_is_no_error_of_the_field(rng):
    known = islands(rng)
    alone = inflation(known, "A", lengths=LENGTHS)
    assert inflation(known, "A", lengths=LENGTHS, spread=0.5) < alone
    assert inflation(known, "A", lengths=LENGTHS, spread=1e3) == pytest.approx(WIDER[0])


# --- one scale, wherever a residual is made or turned back into a time -----------------------

UNIT = "H100-80GB-SXM/vllm/gqa"  # memory decides its largest cells, launches its smallest


@pytest.fixture(scope="module")
def told(database):
    """A decode kernel's stored residuals, factors at the mean, and rows measured."""
    law, draws = (
        LAWS["decode_time"],
        database.draws(database.assembly("step_bf16").parts["attention_decode"]),
    )
    sku, backend, _ = UNIT.split("/")
    sheet = unit_sheets(law, database.datasheets([sku]), [UNIT])
    rows = checked(database.table("attention_decode_bf16"), origin="rows", law=law)
    rows = rows[(rows["sku"] == sku) & (rows["backend"] == backend)]
    rows = rows[rows["heads"] != rows["kv_heads"]]
    mean = draws.mean(("chain", "draw")).expand_dims(chain=1, draw=1).assign_attrs(draws.attrs)
    factors = with_skus(mean, sheet, seed=0).isel(chain=0, draw=0, drop=True)
    at = {str(k): v.values.reshape(1, 1) for k, v in factors.data_vars.items()}
    for kind in ("cell", "time", "run"):
        name = f"log_sigma_{kind}"
        held = mean[name].sel(sku=UNIT) if name in mean else mean[f"{name}_mean"]
        at[f"sigma_{kind}"] = np.exp(held.values.reshape(1, 1))
    family = str(sheet["architecture"].item())
    whole = known(draws, family, UNIT)
    own = whole.sku == UNIT
    parts = {k: getattr(whole, k)[own] for k in ("shapes", "sku", "unit", "noise")}
    return law, draws, sheet, rows, at, replace(whole, **parts)


def units_by_shape(residuals):
    return {
        tuple(row[:4]): unit for row, unit in zip(residuals.shapes, residuals.unit, strict=True)
    }


def test_rows_that_were_fitted_have_the_residuals_that_are_stored(told):
    law, _, sheet, rows, at, stored = told
    held = runs(law, rows, sheet, [])
    shapes = rows.sort_values([*law.sizes])[[*law.sizes]].drop_duplicates().to_numpy()
    found = misfit(held, at, None).unit[0]
    expected = [units_by_shape(stored)[tuple(row)] for row in shapes.astype(float)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)
    unspared = misfit(replace(held, law=replace(law, steady=lambda terms: None)), at, None).unit[0]
    assert np.abs(unspared - expected).max() > 0.1  # a scale that spares nothing is found out


def test_a_stored_residual_turns_back_into_the_time_that_was_measured(told):
    law, draws, sheet, rows, at, stored = told
    near = rows[[*law.sizes]].to_numpy(dtype=float)
    gain = np.zeros((len(near), 1))
    silent, shapes, _ = context(law, stored, sheet, np.hstack([near, gain]), at, labels={})
    measured = rows.groupby([*law.sizes])["op_time"].median()
    both = [i for i, row in enumerate(shapes[:, :4]) if tuple(row.astype(int)) in measured.index]
    times = np.log([measured[tuple(shapes[i, :4].astype(int))] for i in both])
    assert len(both) == len(measured)
    np.testing.assert_allclose(silent.log_time[both], times, rtol=0, atol=2e-4)
    sizes = shapes[both, :4]
    log_time, scale = _mean_log_time(draws, sheet, sizes)
    unit = [units_by_shape(stored)[tuple(row)] for row in sizes]
    np.testing.assert_allclose(log_time + np.array(unit) * scale, times, rtol=0, atol=2e-4)
