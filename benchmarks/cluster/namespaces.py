"""The kernel's namespaces: a job of processes that see a machine of their own, and end as one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = [
    "SCRATCH",
    "cover",
    "extend_path",
    "inside_network",
    "missing_rights",
    "run_isolated",
    "start_init",
]

#: A file system in memory, of each host's own: nothing that lies here outlives the job. It is
#: mounted where every Linux has a directory for that, so that none has to be made.
SCRATCH = Path("/dev/shm")

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_MS_REC, _MS_BIND, _MS_PRIVATE = 0x4000, 0x1000, 0x40000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
_CGROUP = Path("/sys/fs/cgroup")
_READY = "ready"


def extend_path() -> None:
    """Let programs of the administrator be found: the PATH of other users often lacks them."""
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    parts += [part for part in ("/usr/sbin", "/sbin") if part not in parts]
    os.environ["PATH"] = os.pathsep.join(parts)


def missing_rights() -> str:
    """Say what this machine or user lacks for making hosts; empty if nothing.

    Everything is tried in a process of its own, which leaves nothing behind.
    """
    if sys.platform != "linux":
        return f"namespaces are Linux's, and this is {sys.platform}"
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"the program {program} is not there: install {package}"
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _end_with(lambda: _report_attempt(writer))
    os.close(writer)
    with os.fdopen(reader) as answer:
        reason = answer.read()
    os.waitpid(pid, 0)
    return reason


def run_isolated(job: Callable[[], int]) -> int:
    """Run `job` as the first process of a machine of its own, and give its exit code.

    It has namespaces of its own for processes, mounts, network and shared memory. When it ends, or
    this process does, for whatever reason, the kernel ends all processes below it, and with them go
    all network devices and mounts. SIGINT, SIGTERM and SIGHUP are passed on to it. To be called
    once a process: what is started afterwards would belong to a machine that has ended.

    Parameters
    ----------
    job : callable
        Gives an exit code. Runs in a child of this process.

    Returns
    -------
    int
        The exit code; 128 and the number of a signal if one ended it.

    Raises
    ------
    OSError
        The kernel refused.
    """
    alive_reader, alive_writer = os.pipe()
    _unshare(_CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        os.close(alive_writer)
        _end_with(lambda: _isolate(alive_reader, job))
    os.close(alive_reader)

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        os.kill(pid, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def start_init(name: str, prepare: Callable[[], None]) -> int:
    """Start the first process of a host, and give its pid.

    The host has namespaces of its own, a name, and its own ``/proc``, ``/sys`` and :data:`SCRATCH`.
    Its first process only collects those that end. It lasts until this machine ends.

    Parameters
    ----------
    name : str
        What the host is called.
    prepare : callable
        Called there, before this returns.

    Raises
    ------
    OSError
        The kernel refused, or `prepare` failed.
    """
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reader)
        _end_with(lambda: _start_between(name, prepare, writer))
    os.close(writer)
    os.waitpid(between, 0)
    with os.fdopen(reader) as answer:
        pid, _, trouble = answer.read().partition("\n")
    if trouble != _READY:
        raise OSError(f"host {name} cannot be made: {trouble or 'its first process ended'}")
    return int(pid)


def cover(path: Path, source: Path) -> None:
    """Let `path` show the file `source`, on this machine and its hosts, as long as they last."""
    _mount(str(source), path, None, _MS_BIND)


@contextlib.contextmanager
def inside_network(pid: int) -> Iterator[None]:
    """Let this process, and what it starts, see the network of the process `pid`."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc().setns(other, _CLONE_NEWNET), "setns")
        finally:
            os.close(other)
        try:
            yield
        finally:
            _check(_libc().setns(own, _CLONE_NEWNET), "setns")
    finally:
        os.close(own)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _unshare(flags: int) -> None:
    _check(_libc().unshare(flags), "unshare")


def _mount(source: str, target: Path, kind: str | None, flags: int = 0) -> None:
    encoded = None if kind is None else kind.encode()
    result = _libc().mount(
        source.encode(), str(target).encode(), encoded, ctypes.c_ulong(flags), None
    )
    _check(result, f"mount {target}")


def _end_with(job: Callable[[], int]) -> NoReturn:
    # A forked process must not run what its parent has left to do at its own end.
    code = 1
    try:
        code = job()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _isolate(alive: int, job: Callable[[], int]) -> int:
    _check(_libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    os.set_blocking(alive, False)
    # Ended already: no signal will come.
    with contextlib.suppress(BlockingIOError):
        if os.read(alive, 1) == b"":
            return 1
    for number in _PASSED_ON:
        signal.signal(number, _leave)
    _unshare(_CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWIPC)
    _mount_own()
    try:
        return job()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    # Ctrl-C comes twice: from the terminal, and passed on.
    for other in _PASSED_ON:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def _mount_own() -> None:
    _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)
    _mount("proc", Path("/proc"), "proc")
    _mount("tmpfs", SCRATCH, "tmpfs")


def _start_between(name: str, prepare: Callable[[], None], writer: int) -> int:
    _unshare(_CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWPID)
    init_reader, init_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.close(init_reader)
        _end_with(lambda: _be_init(name, prepare, init_writer))
    os.close(init_writer)
    with os.fdopen(init_reader) as answer:
        os.write(writer, f"{pid}\n{answer.read()}".encode())
    return 0


def _be_init(name: str, prepare: Callable[[], None], writer: int) -> int:
    trouble = _READY
    try:
        Path("/proc/sys/kernel/hostname").write_text(name)
        _mount_own()
        _mount_sys()
        prepare()
    except OSError as error:
        trouble = str(error)
    os.write(writer, trouble.encode())
    os.close(writer)
    for number in _PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        signal.pause()


def _mount_sys() -> None:
    """Show this host's network devices, and the control groups that were there."""
    kept = SCRATCH / "cgroup"
    has_groups = os.path.ismount(_CGROUP)
    if has_groups:
        kept.mkdir()
        _mount(str(_CGROUP), kept, None, _MS_BIND | _MS_REC)
    _mount("sysfs", Path("/sys"), "sysfs")
    if has_groups:
        _mount(str(kept), _CGROUP, None, _MS_BIND | _MS_REC)
        _check(_libc().umount2(str(kept).encode(), _MNT_DETACH), f"umount {kept}")
        kept.rmdir()


def _report_attempt(writer: int) -> int:
    with os.fdopen(writer, "w") as answer:
        answer.write(_attempt())
    return 0


def _attempt() -> str:
    try:
        _unshare(_CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS)
        _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)
        _mount("tmpfs", SCRATCH, "tmpfs")
        _mount("sysfs", Path("/sys"), "sysfs")
    except OSError as error:
        return f"namespaces may not be made here ({error}): be root, with CAP_SYS_ADMIN"
    for command in (
        "ip link add e0 type veth peer name e1",
        "ip link add s0 type bridge",
        "tc qdisc add dev e0 root handle 1: htb default 1",
    ):
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return f"the kernel refused '{command}': {lines[0]}"
    return ""
