"""What a lower power limit does: to the SM clock, and through the clock to the memory bandwidth."""

from __future__ import annotations

from typing import Any

from m2bayes._math import minimum

LOWEST_SHARE = 0.5  # of a card's limit: no public LLM result is from a lower one
MEASURED_SHARE = 0.7  # of a card's limit: above it one exponent describes a sweep
BANDWIDTH_KNEE = 0.62  # of boost: the SM clock below which an A100's bandwidth falls


def capped_clock(clock: Any, power_limit: Any, card_limit: Any, cap_slope: Any) -> Any:
    r"""SM clock under a lowered power limit, in the units of `clock`, dims broadcast.

    .. math:: f = f_0\,\min\bigl(1, (P / P_{card})^{s}\bigr)

    Parameters
    ----------
    clock : array_like
        Clock, or share of boost, that the card's own limit sustains under the same load
        [Hz or 1]. A load that the card's limit does not slow is slowed later than this says.
    power_limit, card_limit : array_like
        The lowered limit and the card's own [W].
    cap_slope : array_like
        Exponent [1], posterior draws or a number; 1/3 where voltage scales with frequency.

    Notes
    -----
    Of a compute-bound load, and down to about 0.7 of the card's limit: there log clock against
    log limit is nearly straight in public sweeps. Below it the clock falls faster, for part of the
    power does not clock down: an RTX 3090 in prefill has an exponent above 2 from 0.54 to 0.69
    of its limit. Exponents differ between cards by more than one sweep lets a posterior know: the
    offline throughput of an H200 falls with 0.55 to 0.64 from 700 to 500 W, and with 0.30 from
    1000 to 700 W, where the chassis differs too.

    References
    ----------
    .. [1] Measured exponents: 0.30, the source's RTX 5090 from 575 to 400 W; 0.32, the DGEMM of an
       A100 at locked clocks from 476 to 285 W,
       https://github.com/ghazanfarttu/Optimal-GPU-frequency-using-DNN-based-models;
       0.63 and 0.68, prefill on an RTX 3090 from 330 to 250 W,
       https://github.com/noonghunna/club-3090.
    .. [2] MLPerf Inference v4.1, https://github.com/mlcommons/inference_results_v4.1

    Examples
    --------
    >>> float(capped_clock(2000.0, 800.0, 400.0, 0.5))
    2000.0
    >>> float(capped_clock(2000.0, 100.0, 400.0, 0.5))
    1000.0
    """
    return clock * minimum(1.0, power_limit / card_limit) ** cap_slope


def capped_bandwidth(share_of_boost: Any, knee: Any = BANDWIDTH_KNEE) -> Any:
    r"""Share of its bandwidth that a memory-bound kernel keeps at a lower SM clock [1].

    .. math:: \min(1, x / k)

    Parameters
    ----------
    share_of_boost : array_like
        SM over boost clock :math:`x` [1], dims broadcast.
    knee : float
        Share of boost :math:`k` at which the SMs stop being able to ask for all of it [1].

    Notes
    -----
    One card, one kernel: STREAM on an A100-SXM at 61 locked clocks from 510 to 1410 MHz. Bandwidth
    stays within 1 % of its peak down to 0.70 of boost and is 0.96, 0.81 and 0.67 of it at 0.6, 0.5
    and 0.4. The law misses it by 3 % (root mean square) and 11 % at most, for the card falls in
    steps; a smooth corner fits no better. Cards with another ratio of bandwidth to SM clock have
    another knee, so it says from where on memory-bound work is affected, not by how much.

    References
    ----------
    .. [1] https://github.com/ghazanfarttu/Optimal-GPU-frequency-using-DNN-based-models

    Examples
    --------
    >>> capped_bandwidth(0.8).item(), capped_bandwidth(0.31).item()
    (1.0, 0.5)
    """
    return minimum(1.0, share_of_boost / knee)


def lowest_limit(power_limit: Any) -> Any:
    """Lowest power limit [W] for which a forecast is given, of a card's own limit [W], same dims.

    Half of it. Datasheets print no idle power and no smallest limit, so the rule is what was
    measured: the lowest share among public LLM results is an H200 at 350 of 700 W (MLPerf
    Inference v4.1), and an A100 at boost draws in STREAM 0.47 of what it draws in DGEMM, so that
    below half even memory-bound work, which the law leaves alone, is slowed. Half is well above
    idle, about 70 of 700 W, and above most limits that drivers refuse, below 200 of 700 W; but an
    RTX 5090 takes nothing below 400 of 575 W.

    References
    ----------
    .. [1] Range from 200 to 700 W, as ``nvidia-smi`` prints it:
       https://github.com/stackhpc/ansible-slurm-appliance/pull/975
    .. [2] https://github.com/mlcommons/inference_results_v4.1

    Examples
    --------
    >>> lowest_limit(700.0)
    350.0
    """
    return LOWEST_SHARE * power_limit
