"""One engine step or kernel: which sizes each kind has, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from numbers import Integral
from typing import Any, ClassVar, NoReturn

from m2bayes.errors import UnknownNameError, WorkloadError

_BATCH, _TOKENS, _SIDE = (1, 10**6), (1, 10**8), (1, 10**7)
# kind: an example, and for each key the smallest and largest number; 0 may be left out
_FORMS: dict[str, tuple[str, dict[str, tuple[int, int]]]] = {
    "decode": ("decode:batch=64,context=2048", {"batch": _BATCH, "context": _TOKENS}),
    "prefill": (
        "prefill:tokens=4096",
        {"tokens": _TOKENS, "context": (0, 10**8), "batch": _BATCH},
    ),
    "mixed": (
        "mixed:prefill=512,batch=64,context=2048",
        {"prefill": _TOKENS, "batch": _BATCH, "context": _TOKENS},
    ),
    "gemm": ("gemm:m=64,n=6144,k=4096", {"m": _SIDE, "n": _SIDE, "k": _SIDE}),
}
_OPTIONAL = {"prefill": ("batch",)}  # of these keys; one whose smallest number is 0 is, too
_HEADS = {"heads": (1, 10**5), "kv_heads": (1, 10**5), "head_dim": (0, 10**4)}
_PHASES: dict[str, tuple[str, dict[str, tuple[int, int]]]] = {  # example, bounds of the keys
    "decode": (
        "attention:phase=decode,batch=64,context=2048,heads=32,kv_heads=8",
        {"batch": _BATCH, "context": _TOKENS, **_HEADS},
    ),
    "prefill": (
        "attention:phase=prefill,batch=1,tokens=2048,heads=32,kv_heads=8",
        {"batch": _BATCH, "tokens": _TOKENS, "context": (0, 10**8), **_HEADS},
    ),
}
_ATTENTION = _PHASES["decode"][0]


@dataclass(frozen=True, slots=True)
class Step:
    """The batch of one engine step; the sizes that `kind` has no use for are 0.

    Parameters
    ----------
    kind : {"decode", "prefill", "mixed"}
        What the step does.
    batch : int
        Sequences that decode one token each; of a prefill step its prompts, one if it is 0 [1].
    context : int
        Tokens already cached: per decoding sequence, or before each prompt of a prefill [token].
    tokens, prefill : int
        New tokens of each prompt of a prefill step, and of the prompt of a mixed step [token].

    Raises
    ------
    WorkloadError
        If a size is missing, foreign to the kind, or no whole number in range.

    Examples
    --------
    >>> step = Step("mixed", prefill=512, batch=64, context=2048)
    >>> step.label, step.new_tokens, step.cached_tokens
    ('mixed:prefill=512,batch=64,context=2048', 576, 131072)
    >>> Step("prefill", tokens=512, batch=4).new_tokens
    2048
    """

    kind: str
    batch: int = 0
    context: int = 0
    tokens: int = 0
    prefill: int = 0

    def __post_init__(self) -> None:
        where = f"a step of kind {self.kind!r}"
        given = {k: getattr(self, k) for k in ("batch", "context", "tokens", "prefill")}
        if self.kind == Kernel.kind:
            fail(where, "a gemm is a Kernel, not a Step")
        _sizes(self.kind, {k: v for k, v in given.items() if v is not None and v != 0}, where)
        if self.kind == "prefill" and self.batch == 1:
            object.__setattr__(self, "batch", 0)  # the same step, and of the same name

    @property
    def label(self) -> str:
        """The canonical SPEC, which parses back to this step."""
        return _label(self.kind, self)

    @property
    def new_tokens(self) -> int:
        """Rows M of every projection in this step [token]."""
        return self.decoding + self.tokens * self.prompts + self.prefill

    @property
    def prompts(self) -> int:
        """Prompts of which the step takes tokens [1]."""
        return max(self.batch, 1) if self.kind == "prefill" else int(self.kind == "mixed")

    @property
    def decoding(self) -> int:
        """Sequences that decode one token each [1]."""
        return 0 if self.kind == "prefill" else self.batch

    @property
    def cached_tokens(self) -> int:
        """Tokens in the KV cache before the step [token]."""
        return self.context * max(self.batch, 1)

    @property
    def place(self) -> tuple[float, float, float, float]:
        """Where the step lies: kind, new tokens, context, prompts [octave]; kinds are far apart.

        >>> Step("decode", batch=8, context=1023).place[1:]
        (3.0, 10.0, 0.0)
        """
        apart = 100.0 * ("prefill", "decode", "mixed").index(self.kind)
        prompts = log2(max(self.prompts, 1))
        return apart, log2(self.new_tokens), log2(1 + self.context), prompts


@dataclass(frozen=True, slots=True)
class Kernel:
    """One matrix product on one GPU: (m, k) activations times (k, n) weights [1].

    Raises
    ------
    WorkloadError
        If a side is no whole number in range.

    Examples
    --------
    >>> Kernel(m=64, n=6144, k=4096).label
    'gemm:m=64,n=6144,k=4096'
    """

    kind: ClassVar[str] = "gemm"
    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        _sizes("gemm", {"m": self.m, "n": self.n, "k": self.k}, "a gemm kernel")

    @property
    def label(self) -> str:
        """The canonical SPEC, which parses back to this kernel."""
        return _label("gemm", self)


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention kernel on one GPU, of a prefill or a decode step.

    Parameters
    ----------
    phase : {"decode", "prefill"}
        Which of the two.
    batch : int
        Sequences [1].
    heads, kv_heads, head_dim : int
        Query heads, key/value heads, width of a head (128 if it is 0) [1].
    context : int
        Tokens that are cached already, of each sequence [token].
    tokens : int
        New tokens of each sequence of a prefill [token].

    Raises
    ------
    WorkloadError
        If a size is missing, foreign to the phase, or no whole number in range.

    Examples
    --------
    >>> Attention("decode", batch=64, context=2048, heads=32, kv_heads=8).label
    'attention:phase=decode,batch=64,context=2048,heads=32,kv_heads=8'
    """

    kind: ClassVar[str] = "attention"
    phase: str
    batch: int
    heads: int
    kv_heads: int
    head_dim: int = 0
    context: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        names = ("batch", "context", "tokens", "heads", "kv_heads", "head_dim")
        given = {k: getattr(self, k) for k in names}
        where = "an attention kernel"
        example, keys = _phase(self.phase, where)
        checked(keys, {k: v for k, v in given.items() if v != 0}, where, example)
        if self.heads % self.kv_heads:
            fail(where, f"kv_heads={self.kv_heads} does not divide heads={self.heads}", example)

    @property
    def label(self) -> str:
        """The canonical SPEC, which parses back to this kernel."""
        sizes = {key: getattr(self, key) for key in _PHASES[self.phase][1]}
        rest = ",".join(f"{key}={n}" for key, n in sizes.items() if n)
        return f"attention:phase={self.phase},{rest}"


Workload = Step | Kernel | Attention


def _phase(phase: Any, where: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """Return an example of an attention kernel of this phase, and the bounds of its keys."""
    if phase not in _PHASES:
        fail(where, f"phase must be one of {', '.join(_PHASES)}", _ATTENTION)
    return _PHASES[phase]


def build(kind: str, given: Mapping[str, Any], where: str) -> Workload:
    """Return the step or kernel of this kind with these sizes [token], of a gemm [1]."""
    if kind == Attention.kind:
        phase = str(given.get("phase", "")).strip()
        rest = {key: value for key, value in given.items() if key != "phase"}
        example, keys = _phase(phase, where)
        return Attention(phase, **checked(keys, rest, where, example))
    sizes = _sizes(kind, given, where)
    return Kernel(**sizes) if kind == "gemm" else Step(kind, **sizes)


def _sizes(kind: str, given: Mapping[str, Any], where: str) -> dict[str, int]:
    example, keys = form_of(kind, where)
    return checked(keys, given, where, example, optional=_OPTIONAL.get(kind, ()))


def checked(
    keys: Mapping[str, tuple[int, int]],
    given: Mapping[str, Any],
    where: str,
    example: str,
    *,
    optional: Sequence[str] = (),
) -> dict[str, int]:
    """Sizes as whole numbers within their bounds; those that may be left out need not be given."""
    for key in given:
        if key not in keys:
            fail(where, str(UnknownNameError("key", key, keys)), example)
    sizes = {key: _whole(value, key, keys[key], where, example) for key, value in given.items()}
    needed = [key for key, (low, _) in keys.items() if low and key not in optional]
    missing = [key for key in needed if key not in sizes]
    if missing:
        fail(where, f"{missing[0]} is missing", example)
    return sizes


def form_of(kind: str, where: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """Return an example of this kind, and the bounds of its keys [token], of a gemm [1]."""
    kind = str(kind)
    if kind == Attention.kind:
        return _ATTENTION, {}
    if kind not in _FORMS:
        known = [*_FORMS, Attention.kind]
        unknown = UnknownNameError("workload kind", kind, known) if kind else "a kind is missing"
        fail(where, str(unknown))
    return _FORMS[kind]


def _whole(value: Any, key: str, bounds: tuple[int, int], where: str, example: str) -> int:
    low, high = bounds
    text = value.strip() if isinstance(value, str) else ""
    if text.isascii() and text.isdigit():
        value = int(text) if len(text) < 20 else high + 1
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or int(value) < low:
        fail(where, f"{key} must be a whole number of at least {low}", example)
    if int(value) > high:
        fail(where, f"{key} must be at most {high:,}", example)
    return int(value)


def _label(kind: str, workload: object) -> str:
    sizes = {key: getattr(workload, key) for key in _FORMS[kind][1]}
    return f"{kind}:" + ",".join(f"{key}={n}" for key, n in sizes.items() if n)


def fail(where: str, what: str, example: str = _FORMS["decode"][0]) -> NoReturn:
    """Raise WorkloadError: the place, what is wrong, and how it is written."""
    raise WorkloadError(f"{where}: {what}; give for instance {example}")
