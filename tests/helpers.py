"""What several test modules need: commands run in this process, terms of a law as arrays."""

import contextlib
import functools
import io

import xarray as xr

from m2bayes import cli

# suites that read tables which users fetch
OUTSIDE_SUITES = {
    "fresh",
    "light",
    "served",
    "distserve",
    "calibrate",
    "power",
    "qlm",
    "vidur-home",
    "vidur-transfer",
}


@functools.cache
def run(*argv):
    """Exit code, standard output and standard error of one command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(argv)
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def refusal(outcome, code=2):
    """The one line on standard error; nothing on standard output, no traceback."""
    got, out, err = outcome
    assert (got, out) == (code, ""), err
    assert err.startswith("m2bayes")
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in err
    return err.rstrip("\n")


def plain(terms):
    """Terms as plain arrays, dims (shape, sku): a law runs on them much faster."""
    full = xr.broadcast(*terms.data_vars.values())
    arrays = (v.transpose("shape", "sku").values for v in full)
    return dict(zip(terms.data_vars, arrays, strict=True))
