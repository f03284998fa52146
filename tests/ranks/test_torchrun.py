"""Under torchrun ranks meet without a process group and with one, and DDP uses cocoll."""

from __future__ import annotations

import sys

import pytest

from tests.helpers.scripts import run_script

pytest.importorskip("torch")

TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python",
)  # fmt: skip

BELOW_DDP = """
    import copy
    import os

    import torch
    import torch.distributed as dist

    import cocoll
    import cocoll.torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    # Before there is a process group: the ranks meet at torchrun's store; and again after it.
    first = cocoll.init()
    dist.init_process_group("gloo")
    comm = cocoll.init()
    assert (first.rank, first.world_size) == (comm.rank, comm.world_size) == (dist.get_rank(), 2)
    total = torch.tensor([float(comm.rank + 1)])
    cocoll.allreduce(total, comm=first)
    assert total == 3.0

    torch.manual_seed(5)
    plain = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(6))).double()
    models = []
    for hooked in (False, True):
        model = DistributedDataParallel(
            copy.deepcopy(plain), bucket_cap_mb=0.03, gradient_as_bucket_view=True
        )
        if hooked:
            model.register_comm_hook(None, cocoll.torch.ddp_hook(comm))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * step + comm.rank)
            optimizer.zero_grad()
            x = torch.randn(4, 40, generator=generator, dtype=torch.float64)
            model(x).square().mean().backward()
            optimizer.step()
        models.append(model)
    for mine, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)
        everyone = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(everyone, mine.detach())
        assert torch.equal(everyone[0], everyone[1])
    dist.destroy_process_group()
    os.write(1, b"equal\\n")
"""


@pytest.mark.long  # both ranks import torch and its compiler
def test_ddp_on_cocoll() -> None:
    ran = run_script(BELOW_DDP, launcher=TORCHRUN)
    assert (ran.code, ran.out.count("equal")) == (0, 2), ran.err
