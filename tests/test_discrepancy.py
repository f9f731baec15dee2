"""The discrepancy is a function of (seed, SKU, shape), with the declared marginal and sharing."""

import numpy as np
import pytest
from scipy.stats import kstest, norm, t

from m2bayes.discrepancy import SHARED, cell_scale, run_noise, tapered, unit_fields
from m2bayes.mechanism.laws import LAWS
from m2bayes.random_fields import FREQUENCIES, TAIL, features

LENGTHS = LAWS["gemm_time"].lengths
DRAWS = 4000
SHAPES = np.array(
    [[m, n, k] for m in (1, 64, 128, 4096) for n, k in ((6144, 4096), (4096, 1024), (28672, 4096))]
)


def fields(shapes=SHAPES, sku="H100-80GB-SXM", architecture="Hopper", draws=DRAWS, seed=7):
    facts = {"sku": sku, "architecture": architecture, "lengths": LENGTHS}
    return unit_fields(shapes, draws=draws, seed=seed, **facts)


def gaussian(**asked):
    """The Gaussian field under the heavy tail: both factors come back, so their ratio is it."""
    unit, widening = fields(**asked)
    return unit / widening


def correlation(a, b):
    """Mean product of two standard normals along the draws, and its Monte Carlo error."""
    product = (a * b).astype(float)
    return product.mean(axis=0), product.std(axis=0, ddof=1) / np.sqrt(len(product))


def assert_same(asked, reference):
    for a, b in zip(asked, reference, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_same_question_gets_the_same_bits():
    assert_same(fields(), fields())


@pytest.mark.parametrize(
    "part", [[3], [0, 5], [11, 2, 7], list(range(11, -1, -1)), [*range(12)] * 30]
)
def test_other_shapes_do_not_matter(part):
    whole = fields()
    asked = fields(SHAPES[part])
    assert_same(asked, [field[:, part] for field in whole])


def test_a_repeated_shape_gets_the_same_value():
    assert_same(fields(SHAPES[[4, 4]]), [field[:, [4, 4]] for field in fields()])


def test_other_skus_seeds_and_architectures_give_other_fields():
    base = fields()[0]
    for other in ({"sku": "H200-141GB-SXM"}, {"seed": 8}, {"architecture": "Ada"}):
        assert np.abs(fields(**other)[0] - base).max() > 1


@pytest.mark.statistical
def test_one_draw_of_many_cards_is_standard_normal():
    """All take their weights from one pool of rows: no draw has a row for all of them."""
    cards = [gaussian(shapes=SHAPES[:1], sku=f"s{i}", architecture=f"a{i}") for i in range(200)]
    for draw in np.concatenate(cards, axis=1)[:5].astype(float):
        assert kstest(draw, norm.cdf).pvalue > 0.001
        assert kstest(draw + 0.5, norm.cdf).pvalue < 0.001  # negative control


@pytest.mark.statistical
def test_marginal_is_student_t_with_four_degrees_of_freedom():
    unit, _ = fields(SHAPES[:4])
    for column in unit.T.astype(float):
        assert kstest(column, t(TAIL).cdf).pvalue > 0.001
        # negative controls: lighter tails, and the covariance in place of the scale
        assert kstest(column, norm.cdf).pvalue < 0.001
        assert kstest(column / np.sqrt(2), t(TAIL).cdf).pvalue < 0.001


@pytest.mark.statistical
def test_the_field_under_the_tail_is_standard_normal():
    for column in gaussian(shapes=SHAPES[:4]).T.astype(float):
        assert kstest(column, norm.cdf).pvalue > 0.001
        assert kstest(column, t(TAIL).cdf).pvalue < 0.001  # negative control


def test_steady_time_is_spared_seven_tenths_of_the_relative_error():
    """All steady, half, none; a time no law gives, below what is steady, counts as all of it."""
    scale = cell_scale(0.1, 0.0, np.array([1e-5, 2e-5, 1.0, 5e-6]), np.array([1e-5, 1e-5, 0, 1e-5]))
    np.testing.assert_allclose(scale, [0.03, 0.065, 0.1, 0.03], rtol=1e-12)
    assert cell_scale(0.3, 4e-6, 1e-5, 1e-5) == pytest.approx(np.hypot(0.09, 0.4))
    assert cell_scale(0.3, 4e-6, 1e-5) == pytest.approx(0.5)


@pytest.mark.statistical
def test_tail_scale_is_that_of_four_degrees_of_freedom():
    """1 / widening² is a mean of four squares: its mean is 1, its variance 2 / 4."""
    square = fields(SHAPES[:4])[1].astype(float) ** -2.0
    mcse = square.std(axis=0, ddof=1) / np.sqrt(DRAWS)
    assert (np.abs(square.mean(axis=0) - 1) < 4 * mcse).all()
    spread = (square - square.mean(axis=0)) ** 2
    mcse = spread.std(axis=0, ddof=1) / np.sqrt(DRAWS)
    assert (np.abs(spread.mean(axis=0) - 0.5) < 4 * mcse).all()


@pytest.mark.statistical
def test_cards_of_one_architecture_share_the_declared_part():
    rho, mcse = correlation(gaussian(), gaussian(sku="H200-141GB-SXM"))
    assert (np.abs(rho - SHARED) < 4 * mcse).all()
    assert (np.abs(rho - 1) > 4 * mcse).all()  # a field of the architecture alone is found out
    assert (np.abs(rho) > 4 * mcse).all()  # and one of the SKU alone


@pytest.mark.statistical
def test_architectures_share_nothing():
    rho, mcse = correlation(gaussian(), gaussian(sku="L40S-48GB-PCIe", architecture="Ada"))
    assert (np.abs(rho) < 4 * mcse).all()


@pytest.mark.statistical
def test_tails_come_together_inside_an_architecture():
    """The scale is a field too: a shape that is odd on one card is odd on its sister."""
    logs = [
        np.log(fields(sku=sku, architecture=architecture)[1][:, 0].astype(float))
        for sku, architecture in (
            ("H100-80GB-SXM", "Hopper"),
            ("H200-141GB-SXM", "Hopper"),
            ("L40S-48GB-PCIe", "Ada"),
        )
    ]
    one, sister, stranger = ((x - x.mean()) / x.std() for x in logs)
    (near, near_mcse), (far, far_mcse) = correlation(one, sister), correlation(one, stranger)
    assert near > 4 * near_mcse
    assert abs(far) < 4 * far_mcse


@pytest.mark.statistical
def test_nearer_shapes_are_more_alike():
    """M of 64 and 128, one octave apart; then 64 and 4096, six octaves."""
    line = np.array([[64, 6144, 4096], [128, 6144, 4096], [4096, 6144, 4096]])
    field = gaussian(shapes=line)
    near, near_mcse = correlation(field[:, 0], field[:, 1])
    far, far_mcse = correlation(field[:, 0], field[:, 2])
    assert near - far > 4 * np.hypot(near_mcse, far_mcse)


@pytest.mark.statistical
def test_covariance_is_exponential_in_octaves():
    """exp(-Σ |Δlog2| / length), up to the Monte Carlo error of the frequencies themselves.

    The features are one fixed draw of 64 frequencies: the covariance of two shapes is the mean of
    their 64 cosines, and its error is estimated from those.
    """
    count = FREQUENCIES[0]
    waves = features(SHAPES.astype(float), count, LENGTHS).astype(float) * np.sqrt(count)
    cosines, sines = waves[:, :count], waves[:, count:]
    terms = cosines[:, None] * cosines + sines[:, None] * sines
    apart = np.abs(np.log2(SHAPES)[:, None] - np.log2(SHAPES)) / LENGTHS[:3]
    expected = np.exp(-apart.sum(axis=-1))
    mcse = terms.std(axis=-1, ddof=1) / np.sqrt(count)
    assert (np.abs(terms.mean(axis=-1) - expected) <= 4 * mcse + 1e-6).all()
    # negative controls: an effect of the card alone, and noise without memory of the shape
    for wrong in (np.ones_like(expected), np.eye(len(SHAPES))):
        assert (np.abs(terms.mean(axis=-1) - wrong) > 4 * mcse + 1e-6).any()


# --- noise of new runs -----------------------------------------------------------------------

ASKED = {"sku": "H100-80GB-SXM", "backend": "vllm", "draws": 500, "runs": 3, "seed": 0}


def test_run_noise_of_a_shape_does_not_depend_on_the_others():
    both = run_noise(["1x2x3", "4x5x6"], **ASKED)
    assert both.shape == (3, 500, 2)
    np.testing.assert_array_equal(both[..., [1]], run_noise(["4x5x6"], **ASKED))


def test_run_noise_differs_by_sku_backend_shape_and_seed():
    base = run_noise(["1x2x3"], **ASKED)
    for other in ({"sku": "L4-24GB-PCIe"}, {"backend": "sglang"}, {"seed": 1}):
        assert not np.array_equal(run_noise(["1x2x3"], **ASKED | other), base)
    assert not np.array_equal(run_noise(["1x2x4"], **ASKED), base)


@pytest.mark.statistical
def test_run_noise_is_standard_normal_and_fresh_in_each_run():
    noise = run_noise(["1x2x3"], **ASKED)[..., 0].astype(float)
    assert kstest(noise.ravel(), norm.cdf).pvalue > 0.001
    assert kstest(noise.ravel() * 1.3, norm.cdf).pvalue < 0.001  # negative control
    rho, mcse = correlation(noise[0], noise[1])
    assert abs(rho) < 4 * mcse


def test_a_large_error_adds_beyond_an_e_fold_and_small_ones_stay():
    delta = np.array([-8.0, -0.5, 0.0, 0.99, 1.0])
    assert np.array_equal(tapered(delta), delta)
    near = np.array([1 - 1e-7, 1 + 1e-7])
    assert np.diff(np.exp(tapered(near)))[0] / 2e-7 == pytest.approx(np.e, rel=1e-6)
    steps = np.diff(np.exp(tapered(np.array([2.0, 3.0, 13.0]))))
    assert steps == pytest.approx(np.e * np.array([1.0, 10.0]), rel=1e-12)
