# distutils: language = c++
"""The binding of ``cuda/*.h``: a GPU, one rank's end on it, and operations made once, run often."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, intptr_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.unistd cimport getpid
from posix.time cimport nanosleep, timespec

from cocoll.errors import (
    ClosedError, CommTimeoutError, CudaError, ForkedProcessError, NcclError, UsageError,
)

#: What a communicator may have at most: blocks of a grid and ranks on GPUs.
MAX_BLOCKS = COCOLL_GRID_MAX_BLOCKS
MAX_RANKS = COCOLL_GRID_MAX_RANKS
#: How many layouts a launch takes.
MAX_LAYOUTS = COCOLL_GRID_MAX_LAYOUTS
#: How many streams an operation is spread over, and how many flags plans have between two ranks.
MAX_STREAMS = kStreams
MAX_SIGNALS = COCOLL_GRID_SIGNALS

include "devices.pxi"
include "memory.pxi"
include "endpoint.pxi"
include "operations.pxi"
include "bound.pxi"
