"""cocoll's collectives between hosts: right, through MPI, and no port carries more than it must."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import Cluster

COLLECTIVES = """
    import cocoll
    from cocoll import epilogues
    from cocoll.errors import CollectiveMismatchError

    world = cocoll.init(timeout_seconds=30)
    n = 60 << 10
    inputs = [
        np.random.default_rng(one).standard_normal(n).astype(np.float32) for one in range(size)
    ]
    total = np.sum(np.array(inputs, np.float64), axis=0)
    bound = 2e-6 * np.sum(np.abs(np.array(inputs, np.float64)), axis=0)
    wrong = []

    def expect(name, got, wanted, bound=0.0):
        if not np.all(np.abs(got - wanted) <= bound):
            wrong.append(name)

    for memory in ("ordinary", "symmetric"):
        make = world.empty if memory == "symmetric" else lambda n: np.empty(n, np.float32)
        x = make(n)
        x[:] = inputs[rank]
        cocoll.allreduce(x)
        expect(f"allreduce {memory}", x, total, bound)
        bits = comm.allgather(x.tobytes())
        if len(set(bits)) != 1:
            wrong.append(f"bits {memory}")
        x[:] = inputs[rank]
        cocoll.broadcast(x, root=size - 1)
        expect(f"broadcast {memory}", x, inputs[-1])
        x[:] = inputs[rank]
        part = cocoll.reduce_scatter(x).result()
        mine_ = slice(rank * n // size, (rank + 1) * n // size)
        expect(f"reduce_scatter {memory}", part, total[mine_], bound[mine_])
        whole = make(n)
        cocoll.allgather(np.ascontiguousarray(inputs[rank][mine_]), out=whole)
        wanted = np.concatenate([
            one[number * n // size : (number + 1) * n // size] for number, one in enumerate(inputs)
        ])
        expect(f"allgather {memory}", whole, wanted)
    grad, param = world.empty(n), world.empty(n, replicated=True)
    start = np.zeros(n, np.float32)
    cocoll.broadcast(start, out=param)
    grad[:] = inputs[rank]
    m, v = world.shard_zeros(n), world.shard_zeros(n)
    cocoll.allreduce_fused(grad, epilogues.adam(), param=param, m=m, v=v, lr=0.5, step=1)
    expect("adam", np.abs(param), 0.5, 1e-2)
    # A rank of one host wants something else: all of them say so, and go on.
    try:
        cocoll.allreduce(np.zeros(5 if rank == size - 1 else 4, np.float32))
        wrong.append("no mismatch")
    except CollectiveMismatchError as error:
        if len(error.requests) != size or "count=5" not in error.requests[size - 1]:
            wrong.append(f"mismatch: {error.requests}")
    # Waiting for a slow rank costs no processor.
    world.barrier()
    before = time.process_time()
    if rank == 0:
        time.sleep(1)
    cocoll.allreduce(np.zeros(4, np.float32))
    cpu_seconds = time.process_time() - before
    world.barrier()
    world.close()
    tell({"hosts": world.hosts, "wrong": wrong, "cpu_seconds": cpu_seconds,
          "source": world.topology.source})
"""


def test_between_hosts(cluster: Cluster) -> None:
    told = cluster.run("--hosts 3 --ranks-per-host 2 --nic 1gbit", COLLECTIVES)
    for rank, fields in enumerate(told):
        assert fields["wrong"] == [], f"rank {rank}: {fields['wrong']}"
        assert fields["hosts"] == [0, 0, 1, 1, 2, 2]
        assert fields["source"].startswith("file ")
        assert fields["cpu_seconds"] < 0.2, f"rank {rank}"


PORTS = """
    import cocoll

    world = cocoll.init(timeout_seconds=30)
    x = world.empty(1 << 20)
    x[:] = 1

    def carried(call):
        call()
        comm.Barrier()
        before = [count(nic, way) for nic in mine["nics"] for way in ("tx", "rx")]
        call()
        comm.Barrier()
        after = [count(nic, way) for nic in mine["nics"] for way in ("tx", "rx")]
        return [late - early for early, late in zip(before, after)]

    told = {"allreduce": carried(lambda: cocoll.allreduce(x)),
            "broadcast": carried(lambda: cocoll.broadcast(x))}
    world.close()
    tell(told)
"""


@pytest.mark.long
@pytest.mark.parametrize("nics_per_host", [1, 2])
def test_ports_carry_what_they_must(cluster: Cluster, nics_per_host: int) -> None:
    options = f"--hosts 3 --ranks-per-host 2 --nics-per-host {nics_per_host} --nic 1gbit"
    told = cluster.run(options, PORTS)
    nbytes = (4 << 20) / nics_per_host
    for fields in told[::2]:
        # Frames have headers, and answers go the other way.
        for carried in fields["allreduce"]:
            assert 1.0 <= carried / (nbytes * 4 / 3) <= 1.12
        assert all(carried <= nbytes * 1.12 for carried in fields["broadcast"])
