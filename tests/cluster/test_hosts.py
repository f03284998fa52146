"""Hosts are apart: each has its own ranks, name, processes, shared memory and NICs."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import Cluster

DESCRIBE = """
    descriptor = os.memfd_create("mine")
    os.write(descriptor, b"rank %d" % rank)
    places = comm.allgather((os.getpid(), descriptor))
    open(f"/dev/shm/rank{rank}", "w").close()
    comm.Barrier()

    def read(pid, descriptor):
        try:
            with open(f"/proc/{pid}/fd/{descriptor}", "rb") as file:
                return file.read().decode()
        except OSError:
            return None

    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    tell({
        "name": socket.gethostname(),
        "neighbours": neighbours.allgather(rank),
        "read": [read(*place) for place in places],
        "files": sorted(name for name in os.listdir("/dev/shm") if name.startswith("rank")),
        "nics": sorted(os.listdir("/sys/class/net")),
        "nic": os.environ["OMPI_MCA_btl_tcp_if_include"],
        "address": socket.gethostbyname(socket.gethostname()),
        "mine": mine,
    })
"""


def test_ranks_of_a_host_are_together_and_no_others(cluster: Cluster) -> None:
    told = cluster.run("--hosts 2 --ranks-per-host 2 --nics-per-host 2 --nic 1gbit", DESCRIBE)
    for rank, fields in enumerate(told):
        host, neighbours = rank // 2, [rank // 2 * 2, rank // 2 * 2 + 1]
        assert fields["name"] == fields["mine"]["name"] == f"h{host}"
        assert fields["neighbours"] == fields["mine"]["ranks"] == neighbours
        # A process of another host cannot be reached, even where the numbers are equal.
        assert [fields["read"][peer] for peer in neighbours] == [f"rank {p}" for p in neighbours]
        others = [fields["read"][peer] for peer in range(4) if peer not in neighbours]
        assert not {f"rank {peer}" for peer in range(4) if peer not in neighbours} & set(others)
        assert fields["files"] == [f"rank{peer}" for peer in neighbours]
        assert fields["nics"] == ["e0", "e1", "lo"]
        assert fields["nic"] == fields["mine"]["nics"][rank % 2] == f"e{rank % 2}"
        assert fields["address"] == fields["mine"]["addresses"][0]
    assert len({address for fields in told for address in fields["mine"]["addresses"]}) == 4


@pytest.mark.long
def test_uneven_hosts_in_turn(cluster: Cluster) -> None:
    told = cluster.run("--hosts 3 --ranks-per-host 1 3 2 --interleave --nic 1gbit", DESCRIBE)
    wanted = [[0], [1, 3, 5], [2, 4]]
    for rank, fields in enumerate(told):
        (host,) = [number for number, ranks in enumerate(wanted) if rank in ranks]
        assert fields["name"] == f"h{host}"
        assert fields["neighbours"] == fields["mine"]["ranks"] == wanted[host]
