from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, TypeAlias, final

from typing_extensions import Buffer

from cocoll.errors import CollectiveMismatchError

_Op: TypeAlias = Literal["sum", "prod", "min", "max", "avg"]

default_communicator: ContextVar[CommunicatorBase]
DONE: Work

def set_slow_path(hooks: Any) -> None: ...
def allreduce(
    x: Any,
    op: _Op = "sum",
    *,
    out: Any = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Work: ...
def reduce_scatter(
    x: Any,
    op: _Op = "sum",
    *,
    out: Any = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
    layout: Literal["block", "shard"] | None = None,
) -> Work: ...
def allgather(
    x: Any,
    *,
    out: Any = None,
    counts: Sequence[int] | None = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
    layout: Literal["block", "shard"] | None = None,
) -> Work: ...
def broadcast(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Work: ...
def reduce(
    x: Any,
    op: _Op = "sum",
    root: int = 0,
    *,
    out: Any = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Work: ...
def gather(
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    counts: Sequence[int] | None = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Work: ...
def scatter(
    x: Any = None,
    root: int = 0,
    *,
    out: Any = None,
    counts: Sequence[int] | None = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Work: ...
def alltoall(
    x: Any,
    *,
    out: Any = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Work: ...
def alltoallv(
    x: Any,
    send_counts: Sequence[int],
    recv_counts: Sequence[int] | None = None,
    *,
    out: Any = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Work: ...
def barrier(*, comm: CommunicatorBase | None = None, stream: Any = None) -> Work: ...
def allreduce_fused(
    x: Any,
    epilogue: Any,
    *,
    op: _Op = "sum",
    out: Any = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
    zero_grad: bool = False,
    **operands: Any,
) -> Work: ...
def reduce_scatter_fused(
    x: Any,
    epilogue: Any,
    *,
    op: _Op = "sum",
    out: Any = None,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
    zero_grad: bool = False,
    **operands: Any,
) -> Work: ...
def send(
    x: Any,
    peer: int,
    *,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Work: ...
def recv(
    x: Any,
    peer: int,
    *,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Work: ...
def sendrecv(
    x: Any,
    destination: int,
    *,
    source: int,
    out: Any,
    comm: CommunicatorBase | None = None,
    stream: Any = None,
    dtype: str | None = None,
) -> Work: ...
def group(comm: CommunicatorBase | None = None) -> Group: ...
def meet_points(
    comm: CommunicatorBase, ends: list[tuple[bool, int, int, int]]
) -> tuple[CollectiveMismatchError | None, list[bool]]: ...
def inspect_control(address: int, nbytes: int) -> dict[str, Any] | None: ...
def exchange(
    comm: CommunicatorBase, purpose: int, data: bytes, *, inside: bool = False
) -> list[bytes]: ...
def bind(
    comm: CommunicatorBase,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> BoundOperation: ...
def bind_program(
    comm: CommunicatorBase,
    program: Program,
    x: Any,
    out: Any,
    *,
    op: int,
    dtype: str | None = None,
    digest: int = 0,
    maps_source: bool = False,
    maps_result: bool = False,
) -> BoundOperation: ...
def resolve_communicator(comm: CommunicatorBase | None) -> Any: ...
def bind_parts(
    comm: CommunicatorBase,
    program: Program,
    parts: Parts,
    keep: Any,
    output: Any,
    *,
    kind: int,
    op: int,
    dtype: int,
    nbytes: int,
    digest: int,
    stream: Stream | None = None,
) -> BoundOperation: ...

@final
class WireEnd: ...

class ThreadNetwork:
    def __init__(self, world_size: int, seed: int = 0) -> None: ...
    @property
    def messages(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def lose(self, rank: int) -> None: ...
    def open(self, ranks: Sequence[int], rank: int, first_tag: int) -> WireEnd: ...

def open_mpi(
    functions: Mapping[str, int],
    constants: Mapping[str, int],
    ranks: Sequence[int],
    first_tag: int,
) -> WireEnd: ...
def open_messages(messages: Any) -> WireEnd: ...

class Call: ...
class Stages: ...
class TensorList: ...

@final
class Block(Buffer):
    @property
    def address(self) -> int: ...

class CommunicatorBase:
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def shard_counts(self) -> dict[int, int]: ...
    @property
    def cached_programs(self) -> int: ...
    @property
    def timeout_seconds(self) -> float: ...
    def _open(
        self,
        rank: int,
        world_size: int,
        *,
        small_bytes: int,
        staging_bytes: int,
        inline_bytes: int,
        one_shot_bytes: int,
        streaming_bytes: int,
        timeout_seconds: float,
        reserved_bytes: int,
        token: int,
        program_limit: int,
        launcher_pid: int,
    ) -> bytes: ...
    def _attach(self, peer: int, ticket: bytes) -> int: ...
    def _detach(self, peer: int) -> None: ...
    def _set_waiting(self, oversubscribed: bool) -> None: ...
    def _connect_hosts(self, hosts: Sequence[int], end: WireEnd) -> None: ...
    def _wire_detail(self) -> str: ...
    def _start_recording(self) -> None: ...
    def _stop_recording(self) -> tuple[list[tuple[Any, ...]], dict[int, Any], int]: ...
    def _is_leader(self) -> bool: ...
    def _create_commons(self, reserved_bytes: int) -> bytes: ...
    def _attach_commons(self, ticket: bytes) -> None: ...
    def _opened(self) -> None: ...
    def _heap_start(self) -> int: ...
    def _grow(self, replicated: bool, nbytes: int) -> int: ...
    def _block(self, replicated: bool, offset: int, nbytes: int, key: Any) -> Block: ...
    def _take_freed(self) -> list[Any]: ...
    def _huge_pages(self) -> bool: ...
    def _is_symmetric(self, address: int, nbytes: int) -> bool: ...
    def _abort_word(self) -> tuple[int, int, int] | None: ...
    def _abort_address(self) -> int: ...
    def _abort(self, reason: int) -> None: ...
    def _flight(self, peer: int, sequence: int) -> tuple[int, ...] | None: ...
    def _inspect(self, peer: int) -> dict[str, Any] | None: ...
    def _leave(self) -> None: ...
    def _part(self) -> None: ...
    def _has_died(self, peer: int) -> bool: ...
    def _drain(self, timeout_seconds: float) -> bool: ...
    def _next_sequence(self) -> int: ...
    def _is_entered(self) -> bool: ...
    def _is_inherited(self) -> bool: ...

class Survivors:
    def __new__(cls, comm: CommunicatorBase) -> Survivors: ...
    def announce(self, round: int) -> None: ...
    def announced(self, peer: int) -> int: ...
    def has_gone(self, peer: int) -> bool: ...
    def propose(self, round: int, members: Sequence[int]) -> None: ...
    def decided(self) -> tuple[int, list[int]]: ...
    def conclude(self, round: int, succeeded: bool) -> bool: ...
    def outcome(self, round: int) -> bool | None: ...
    def post(self, turn: int, total_bytes: int, part: bytes) -> None: ...
    def read(self, peer: int, turn: int) -> tuple[int, bytes] | None: ...
    @property
    def letter_bytes(self) -> int: ...
    def doorbell(self) -> int: ...
    def doze(self, seen: int, seconds: float) -> None: ...

@final
class Program:
    def __init__(
        self,
        comm: CommunicatorBase,
        mapped: bytes | None,
        staged: bytes | None,
        *,
        reduce_address: int = 0,
        partial_address: int = 0,
        prepare_address: int = 0,
        derived_count: int = 0,
        result_count: int = 1,
        algorithm: int = 0,
        facts: Any = None,
        part_count: int = 0,
    ) -> None: ...
    @property
    def facts(self) -> Any: ...

class Parts:
    def __init__(
        self, entries: Sequence[tuple[int, Sequence[int], Sequence[int], int]]
    ) -> None: ...

class Work:
    def wait(self, timeout_seconds: float | None = None) -> None: ...
    def done(self) -> bool: ...
    def exception(self, timeout_seconds: float | None = None) -> BaseException | None: ...
    def result(self, timeout_seconds: float | None = None) -> Any: ...
    def totals(self) -> dict[str, float | list[float]]: ...

class Stream:
    def __enter__(self) -> Stream: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def synchronize(self) -> None: ...
    def close(self) -> None: ...

@final
class PointArray: ...

class PointCall(Call): ...

class Group:
    def __enter__(self) -> Group: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class BoundOperation:
    def __call__(self, **scalars: float) -> Work: ...
    def explain(self) -> Any: ...
    def close(self) -> None: ...
    @property
    def algorithm(self) -> str: ...
