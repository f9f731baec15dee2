"""Remarks beside the numbers: what the host's part rests on."""

from types import SimpleNamespace

import pytest
import xarray as xr

from m2bayes.remarks import remarks

A, B = "H100-80GB-SXM", "H200-141GB-SXM"


@pytest.mark.parametrize(
    ("learnt", "said"),
    [
        ((), "mostly prior (--calibrate FILE learns it from your own steps)"),
        ((A,), f"learnt from your own steps of {A}, else mostly prior"),
        ((A, B), "the host's part is learnt from your own steps"),
    ],
)
def test_a_calibrated_host_is_not_called_prior(learnt, said):
    question = SimpleNamespace(
        whole=True,
        regime="served",
        llm=None,
        metric="step_time",
        workloads=[],
        calibration=dict.fromkeys(learnt),
        datasheets=xr.Dataset(coords={"sku": [A, B]}),
    )
    first = next(remarks(question, []))
    assert first.endswith(said)
    assert ("--calibrate" in first) == (not learnt)
