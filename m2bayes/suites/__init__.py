"""Suites of ``m2bayes evaluate``: each scores predictions beside rivals on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from m2bayes._jobs import Each, in_turn
from m2bayes.database import Database
from m2bayes.errors import UnknownNameError
from m2bayes.options import SUITES as NAMES

if TYPE_CHECKING:
    from m2bayes.leaveout import LeftOut

POSTERIOR, BASELINE = "gemm_bf16-hier_gemm", "gemm_bf16-const_ceiling"
PREFILL = "attention_prefill_bf16-hier_attention_prefill"
DECODE = "attention_decode_bf16-hier_attention_decode"
LIGHT, ASSEMBLY = "vidur_a100_light-hier_light", "step_bf16"
NARROW, NARROW_ASSEMBLY = "gemm_fp8-hier_gemm_fp8", "step_fp8"
OUT = "--out data/evaluations"


@dataclass(frozen=True)
class Setting:
    """What a suite runs with.

    Parameters
    ----------
    database : Database
        Of models, data and posteriors.
    tell : callable
        Told what is being done.
    posterior, baseline : str
        Names of the GEMM posterior that is judged and of its baseline.
    prefill, decode : str
        Names of the attention posteriors.
    light : str
        Name of the light kernels' posterior.
    assembly : str
        Name of the assembly that predicts whole steps.
    narrow, narrow_assembly : str
        Names of the 8-bit GEMM posterior and of the assembly of 8-bit steps.
    seed : int
        Of everything drawn.
    quick : bool
        Whether small versions run, to see that they do: their figures mean nothing.
    each : callable
        How refits are run, see `m2bayes.sweeping.cluster.spread`.
    former : dict
        Results of the same suite that stand where these will: a long suite goes on from them.
    """

    database: Database
    tell: Callable[[str], None] = lambda text: None
    posterior: str = POSTERIOR
    baseline: str = BASELINE
    prefill: str = PREFILL
    decode: str = DECODE
    light: str = LIGHT
    assembly: str = ASSEMBLY
    narrow: str = NARROW
    narrow_assembly: str = NARROW_ASSEMBLY
    seed: int = 0
    quick: bool = False
    each: Each = in_turn
    former: dict[str, Any] = field(default_factory=dict)

    def few(self, names: Sequence[str]) -> list[str]:
        """Two of `names` when quick, else all."""
        return [*names[:: -(-len(names) // 2) if self.quick else 1]]

    def left_out(self, name: str) -> LeftOut:
        """Fits of a stored posterior's model without some SKUs; stand-ins when quick."""
        from m2bayes.leaveout import LeftOut
        from m2bayes.suites._quick import Forgotten

        kind = Forgotten if self.quick else LeftOut
        return kind(self.database, name, tell=self.tell, each=self.each)


def run(name: str, setting: Setting) -> dict[str, Any]:
    """Run one suite.

    Returns
    -------
    dict
        ``suite``, ``command``, ``inputs`` (hashes of data and posteriors), ``versions``,
        ``seed`` and ``results``; of a small version also ``quick``; plain numbers, ready for JSON.

    Raises
    ------
    UnknownNameError
        For a suite that does not exist.
    """
    if name not in NAMES:
        raise UnknownNameError("suite", name, NAMES)
    from m2bayes.posterior import versions

    module = import_module(f"m2bayes.suites.{name.replace('-', '_')}")
    data: Sequence[str] = module.DATA
    if setting.quick:
        from m2bayes.suites._quick import Few

        setting = replace(setting, database=Few(setting.database.root))
    database = setting.database
    judged = []
    for name_ in (getattr(setting, role) for role in module.JUDGED):
        whole = name_ in database.assemblies()
        judged += [*database.assembly(name_).parts.values()] if whole else [name_]
    return {
        "suite": name,
        "command": f"m2bayes evaluate {name} {'--quick' if setting.quick else OUT}",
        **({"quick": True} if setting.quick else {}),
        "inputs": {
            **{d: database.data_record(d).sha256 for d in data},
            **{p: database.posterior(p).draws["sha256"] for p in judged},
        },
        "seed": setting.seed,
        "versions": versions(),
        "results": module.run(setting),
    }
