"""The SM clock that a power limit allows under load: the factor that datasheets leave out."""

from __future__ import annotations

from typing import Any

from m2bayes._math import exp, log, maximum, minimum, sigmoid

SETTLE_TIME = 30e-3  # [s] busy time after which half of the droop is there
SETTLE_WIDTH = 0.7  # spread of that passage, in log time
REFERENCE_POWER = 0.7e-12  # [J/FLOP] power limit per peak rate that the intercept refers to
REFERENCE_WIDTH = 4096.0  # [FLOP/clock/SM] tensor width that the intercept refers to


def clock_ratio(sustained_clock: Any, boost_clock: Any) -> Any:
    """Sustained over boost SM clock [1]; droop is 1 minus it. Both clocks in [Hz], dims (sku,).

    >>> round(clock_ratio(1125e6, 1410e6), 3)
    0.798
    """
    return sustained_clock / boost_clock


def sustained_clock(
    boost_clock: Any, power_demand: Any, power_limit: Any, exponent: float = 3.0
) -> Any:
    r"""SM clock [Hz] that keeps dynamic power within its limit, dims broadcast.

    .. math:: f = f_{boost}\,\min\bigl(1, (P_{limit} / P_{demand})^{1/n}\bigr)

    Parameters
    ----------
    boost_clock : array_like, dims (sku,)
        Clock without a limit [Hz].
    power_demand, power_limit : array_like
        Power that the load would draw at boost, and the limit [W].
    exponent : float
        Power grows as this power of the clock [1]: about 3 where voltage scales with frequency.
        The cap sweep of the source (575 to 400 W, 2730 to 2452 MHz) lies at 3.4.

    Examples
    --------
    >>> float(sustained_clock(2000.0, 300.0, 600.0))
    2000.0
    >>> round(float(sustained_clock(2000.0, 800.0, 100.0)), 6)
    1000.0
    """
    return boost_clock * minimum(1.0, (power_limit / power_demand) ** (1.0 / exponent))


def power_load(busy_time: Any) -> Any:
    """How far the clock has settled under load [1], by the time the card was busy [s].

    0 for a burst, 1 for a served engine: ``sigmoid(ln(busy / 30 ms) / 0.7)``. The two constants
    were set by hand on public kernel tables.

    >>> float(power_load(30e-3))
    0.5
    """
    return sigmoid(log(maximum(busy_time, 1e-9) / SETTLE_TIME) / SETTLE_WIDTH)


def power_roof(
    clock_burst: Any,
    droop: Any,
    load: Any,
    *,
    power_slope: Any,
    width_slope: Any,
    power_per_rate: Any,
    tensor_width: Any,
) -> Any:
    r"""Share of the peak rate that the power limit sustains with all SMs busy [1], dims broadcast.

    .. math:: c = c_{burst}\,\left(\frac{P_{limit}/P}{0.7\,\mathrm{pJ}}\right)^{b_1}
              \left(\frac{w}{4096}\right)^{b_2/\ln 2} e^{-D\,\ell}

    The source's clock factor seen as a roof: idle SMs leave power to the busy ones, so a partial
    grid is not slowed by it.

    Parameters
    ----------
    clock_burst, droop : array_like, dims (sku,)
        Share in a short burst [1] and log loss once the clock has settled [1].
    load : array_like
        `power_load` [1].
    power_slope, width_slope : array_like
        Exponents of power per rate and (per doubling) of tensor width [1], shared by all SKUs.
    power_per_rate, tensor_width : array_like, dims (sku,)
        Power limit over peak rate [J/FLOP] and tensor FLOP per clock and SM [FLOP/clock].

    Examples
    --------
    >>> round(float(power_roof(0.9, 0.5, 0.0, power_slope=0.6, width_slope=0.1,
    ...     power_per_rate=0.7e-12, tensor_width=4096.0)), 12)
    0.9
    """
    covariates = power_slope * log(power_per_rate / REFERENCE_POWER) + width_slope * (
        log(tensor_width / REFERENCE_WIDTH) / 0.6931471805599453
    )
    return clock_burst * exp(covariates - droop * load)
