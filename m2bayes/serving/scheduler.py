"""Continuous batching as vLLM does it: what one engine step reads, decodes, admits and evicts.

The state of an engine is changed in place, step by step: only `m2bayes.serving.simulate` holds one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from m2bayes.errors import WorkloadError

WATERMARK = 0.01  # [1] of the blocks that whole-prompt scheduling keeps free on admission


@dataclass(frozen=True)
class Server:
    """What the engine may hold, and do in one step; the defaults are vLLM's.

    Parameters
    ----------
    kv_tokens : int
        Tokens that the KV cache holds [token].
    max_num_seqs : int
        Sequences in the batch at most [1].
    token_budget : int
        Tokens of one step at most [token].
    block : int
        Tokens of one block of the cache [token].
    chunked : bool
        Prompts are read in chunks within the budget, in the steps that also decode. If not,
        whole prompts are read in steps of their own, before anything decodes.

    Raises
    ------
    WorkloadError
        If a size is no whole number of at least 1, no block fits, or the budget has no room for
        one token of each sequence.
    """

    kv_tokens: int
    max_num_seqs: int = 256
    token_budget: int = 2048
    block: int = 16
    chunked: bool = True

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "max_num_seqs", "token_budget", "block"):
            value = getattr(self, name)
            if int(value) != value or value < 1:
                raise WorkloadError(f"{name} is {value}; give a whole number of at least 1")
        if self.kv_tokens < self.block:
            raise WorkloadError(
                f"the KV cache of {self.kv_tokens} tokens holds no block of {self.block}"
            )
        if self.token_budget < self.max_num_seqs:
            raise WorkloadError(
                f"token_budget is {self.token_budget}, less than one token for each of "
                f"{self.max_num_seqs} sequences; lower max_num_seqs"
            )

    @property
    def blocks(self) -> int:
        """Blocks of the cache [1]."""
        return int(self.kv_tokens) // int(self.block)

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many tokens of one sequence [1]."""
        return -(-tokens // self.block)


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way: number, tokens to read, to come, and read so far [token].

    ``joined`` is the decode step of the engine at which it decodes first; −1 before.
    """

    at: int
    prompt: int
    rest: int
    read: int = 0
    joined: int = -1


Chunks = list[tuple[Sequence, int]]  # and the tokens that a step reads of each [token]


@dataclass
class Engine:
    """What changes from step to step.

    All sequences that decode gain one token in each decode step, so sums and the steps at which
    blocks fill and sequences finish are kept, and no step looks at every sequence.

    Parameters
    ----------
    server : Server
        The limits.
    """

    server: Server
    waiting: deque[Sequence] = field(default_factory=deque)
    running: dict[int, Sequence] = field(default_factory=dict)  # in the order of admission
    reading: list[Sequence] = field(default_factory=list)  # those with a prompt half read
    due: dict[int, list[Sequence]] = field(default_factory=dict)  # by their last decode step
    free: int = 0  # blocks
    decoded: int = 0  # decode steps so far
    batch: int = 0  # sequences that decode
    cached: int = 0  # tokens of theirs
    # sequences that fill a block before a decode step, by the step's remainder of the block
    filling: list[int] = field(default_factory=list)
    scheduled: dict[int, float] = field(default_factory=dict)  # first admission [s]
    first_token: dict[int, float] = field(default_factory=dict)  # [s]
    finish: dict[int, float] = field(default_factory=dict)  # [s]
    preemptions: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free, self.filling = self.server.blocks, [0] * self.server.block


def schedule(engine: Engine, now: float) -> tuple[Chunks, bool]:
    """What the next step does, with blocks taken for all of it.

    Parameters
    ----------
    engine : Engine
        Changed in place.
    now : float
        Time of admission [s].

    Returns
    -------
    list of (Sequence, int), bool
        Prompts read, and the tokens of each [token]; whether the batch decodes.
    """
    budget = engine.server.token_budget
    if not engine.server.chunked:
        chunks = _admitted(engine, budget, now)
        if not chunks:
            _grow(engine)
        return chunks, not chunks
    preempted = _grow(engine)
    budget -= engine.batch
    chunks = []
    for sequence in engine.reading:
        count = min(sequence.prompt - sequence.read, budget)
        if count:
            chunks.append((sequence, count))
            budget -= count
    if not preempted:
        chunks += _admitted(engine, budget, now)
    return chunks, engine.batch > 0


def complete(engine: Engine, chunks: Chunks, *, decoding: bool, now: float) -> None:
    """Account for a step that has been done.

    Parameters
    ----------
    engine : Engine
        Changed in place.
    chunks, decoding
        From `schedule` [token].
    now : float
        Time at the end of the step [s].
    """
    if decoding:
        ready = engine.due.pop(engine.decoded, [])
        engine.decoded += 1
        engine.cached += engine.batch
        for sequence in ready:
            _leave(engine, sequence)
            _done(engine, sequence, now)
    for sequence, count in chunks:
        _read(engine, sequence, count, now)


def _admitted(engine: Engine, budget: int, now: float) -> Chunks:
    """Waiting sequences that fit, taken into the batch, and what the step reads of each."""
    server = engine.server
    chunks: Chunks = []
    spare = 0 if server.chunked else int(WATERMARK * server.blocks)
    while engine.waiting and len(engine.running) < server.max_num_seqs and budget > 0:
        sequence = engine.waiting[0]
        blocks = server.blocks_of(sequence.prompt)
        count = min(sequence.prompt, budget) if server.chunked else sequence.prompt
        if blocks + (spare if engine.running else 0) > engine.free or (count > budget and chunks):
            break
        engine.waiting.popleft()
        engine.free -= blocks
        engine.running[sequence.at] = sequence
        engine.reading.append(sequence)
        engine.scheduled.setdefault(sequence.at, now)
        chunks.append((sequence, count))
        budget -= count
    return chunks


def _grow(engine: Engine) -> bool:
    """Take a block for each sequence that has filled its last; whether any was preempted."""
    at, preempted = engine.decoded % engine.server.block, False
    while engine.filling[at] > engine.free:
        _, sequence = engine.running.popitem()
        if sequence.joined < 0:
            engine.reading.remove(sequence)
            engine.free += engine.server.blocks_of(sequence.prompt)
        else:
            engine.due[sequence.joined + sequence.rest - 1].remove(sequence)
            sequence.prompt = _leave(engine, sequence) + 1  # the last token is not cached yet
        sequence.read, sequence.joined = 0, -1
        engine.preemptions[sequence.at] = engine.preemptions.get(sequence.at, 0) + 1
        engine.waiting.appendleft(sequence)
        preempted = True
    engine.free -= engine.filling[at]
    return preempted


def _leave(engine: Engine, sequence: Sequence) -> int:
    """Take a sequence out of those that decode and free its blocks; the tokens that it held."""
    decoded = engine.decoded - sequence.joined
    held = sequence.prompt + decoded
    engine.free += engine.server.blocks_of(held)
    engine.filling[(sequence.joined - sequence.prompt) % engine.server.block] -= 1
    engine.batch -= 1
    engine.cached -= held
    sequence.rest -= decoded
    return held


def _read(engine: Engine, sequence: Sequence, count: int, now: float) -> None:
    """A chunk has been read; with its last one a prompt gives a token."""
    sequence.read += count
    if sequence.read < sequence.prompt:
        return
    engine.reading.remove(sequence)
    engine.first_token.setdefault(sequence.at, now)
    sequence.rest -= 1
    if not sequence.rest:
        engine.free += engine.server.blocks_of(sequence.prompt)
        _done(engine, sequence, now)
        return
    sequence.joined = engine.decoded
    engine.filling[(sequence.joined - sequence.prompt) % engine.server.block] += 1
    engine.due.setdefault(sequence.joined + sequence.rest - 1, []).append(sequence)
    engine.batch += 1
    engine.cached += sequence.prompt


def _done(engine: Engine, sequence: Sequence, now: float) -> None:
    del engine.running[sequence.at]
    engine.finish[sequence.at] = now
