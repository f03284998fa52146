"""Training goes on where it stopped, on another number of ranks and in another optimizer."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll.errors import UsageError
from cocoll.testing import run_ranks

torch = pytest.importorskip("torch")

import cocoll.torch as fused  # noqa: E402
from tests.helpers.torch_training import Net, draw_batch, make_models, parameters_of  # noqa: E402

ROWS = 24
CLOSE = {"rtol": 1e-9, "atol": 1e-12}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_optimizer(model: Net, comm: cocoll.Communicator, **options: Any) -> Any:
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.dim() > 1]},
        {"params": [p for p in params if p.dim() <= 1], "weight_decay": 0.0, "lr": 5e-3},
    ]
    return fused.FusedAdamW(groups, lr=1e-2, comm=comm, **{"bucket_bytes": 1024, **options})


def train(comm: cocoll.Communicator, model: Net, optimizer: Any, steps: range) -> list[float]:
    """Give the mean loss of each step over all rows, which the ranks divide among them."""
    share = ROWS // comm.world_size
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = model.loss(draw_batch(step, slice(comm.rank * share, (comm.rank + 1) * share)))
        loss.backward()
        optimizer.step()
        total = np.array([float(loss.detach())])
        cocoll.allreduce(total, "avg", comm=comm)
        losses.append(float(total[0]))
    return losses


def save(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def read(data: bytes) -> Any:
    # Numbers, strings, containers and tensors only: nothing that could run.
    return torch.load(io.BytesIO(data), weights_only=True)


@pytest.mark.parametrize(
    ("before", "after", "bucket_bytes"),
    [
        (4, 3, 1024),
        (4, 4, 1024),
        (1, 4, 1024),
        (3, 2, 4 << 20),
        pytest.param(8, 1, 256, marks=pytest.mark.long),
        pytest.param(2, 8, 4096, marks=pytest.mark.long),
    ],
)
def test_the_same_curve_on_another_number_of_ranks(
    before: int, after: int, bucket_bytes: int
) -> None:
    models = make_models(max(before, after))

    def whole(comm: cocoll.Communicator) -> tuple[list[float], list[np.ndarray]]:
        model = models[comm.rank]
        optimizer = make_optimizer(model, comm)
        return train(comm, model, optimizer, range(8)), parameters_of(model)

    wanted, params = run_ranks(before, whole)[0]
    models = make_models(max(before, after))

    def first_half(comm: cocoll.Communicator) -> tuple[list[float], bytes, bytes]:
        model = models[comm.rank]
        optimizer = make_optimizer(model, comm)
        losses = train(comm, model, optimizer, range(4))
        return losses, save(optimizer.state_dict()), save(model.state_dict())

    halves = run_ranks(before, first_half)
    files = [state for _, state, _ in halves]
    models = make_models(max(before, after))
    asked: list[set[int]] = [set() for _ in range(after)]

    def second_half(comm: cocoll.Communicator) -> tuple[list[float], list[np.ndarray]]:
        model = models[comm.rank]
        if comm.rank == 0:
            model.load_state_dict(read(halves[0][2]))  # the optimizer gives it to all
        optimizer = make_optimizer(model, comm, bucket_bytes=bucket_bytes)

        def fetch(rank: int) -> Any:
            asked[comm.rank].add(rank)
            return read(files[rank])

        optimizer.load_state_dict(fetch)
        return train(comm, model, optimizer, range(4, 8)), parameters_of(model)

    results = run_ranks(after, second_half)
    losses = halves[0][0] + results[0][0]
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
    assert wanted[-1] < wanted[0] - 0.01
    for mine, theirs in zip(results[0][1], params, strict=True):
        if before == after:
            assert mine.tobytes() == theirs.tobytes()
        np.testing.assert_allclose(mine, theirs, **CLOSE)
    assert all(len(ranks) <= before for ranks in asked)
    if (before, after) == (4, 4) and bucket_bytes == 1024:
        assert all(ranks <= {0, rank} for rank, ranks in enumerate(asked))


def test_the_state_of_16_bit_parameters_is_exact() -> None:
    models = make_models(3, torch.bfloat16)

    def whole(comm: cocoll.Communicator) -> list[np.ndarray]:
        model = models[comm.rank]
        train(comm, model, make_optimizer(model, comm), range(6))
        return parameters_of(model)

    wanted = run_ranks(3, whole)[0]
    models = make_models(3, torch.bfloat16)

    def first_half(comm: cocoll.Communicator) -> tuple[Any, Any, Any]:
        model = models[comm.rank]
        optimizer = make_optimizer(model, comm)
        train(comm, model, optimizer, range(3))
        return save(optimizer.state_dict()), save(model.state_dict()), optimizer.consolidate()

    halves = run_ranks(3, first_half)
    for consolidated in (False, True):
        models = make_models(3, torch.bfloat16)

        def second_half(
            comm: cocoll.Communicator, consolidated: bool = consolidated, models: Any = models
        ) -> list[np.ndarray]:
            model = models[comm.rank]
            model.load_state_dict(read(halves[0][1]))
            optimizer = make_optimizer(model, comm)
            states = [read(state) for state, _, _ in halves]
            optimizer.load_state_dict(halves[0][2] if consolidated else states)
            train(comm, model, optimizer, range(3, 6))
            return parameters_of(model)

        for mine, theirs in zip(run_ranks(3, second_half)[0], wanted, strict=True):
            assert mine.tobytes() == theirs.tobytes()


OPTIMIZERS = {
    "adam": (fused.FusedAdam, torch.optim.Adam, {"lr": 1e-2, "betas": (0.8, 0.99)}),
    "adamw": (fused.FusedAdamW, torch.optim.AdamW, {"lr": 1e-2}),
    "sgd": (fused.FusedSGD, torch.optim.SGD, {"lr": 0.1}),
    "momentum": (fused.FusedSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_to_torch_and_back(name: str) -> None:
    ours, theirs, options = OPTIMIZERS[name]
    models = make_models(3)

    def start(comm: cocoll.Communicator) -> Any:
        model = models[comm.rank]
        optimizer = ours(model.parameters(), comm=comm, bucket_bytes=1024, **options)
        train(comm, model, optimizer, range(3))
        state = optimizer.consolidate()
        assert (state is None) == (comm.rank != 0)
        model_state = {key: value.clone() for key, value in model.state_dict().items()}
        train(comm, model, optimizer, range(3, 6))
        return (None if state is None else save(state)), save(model_state), parameters_of(model)

    state, model_state, wanted = run_ranks(3, start)[0]
    # torch goes on alone, on all rows ...
    model = Net()
    model.load_state_dict(read(model_state))
    optimizer = theirs(model.parameters(), lr=0.5)
    optimizer.load_state_dict(read(state))
    for step in range(3, 6):
        optimizer.zero_grad()
        model.loss(draw_batch(step, slice(0, ROWS))).backward()
        optimizer.step()
        if step == 4:
            middle = save(optimizer.state_dict()), save(model.state_dict())
    for mine, theirs_too in zip(parameters_of(model), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs_too, **CLOSE)
    # ... and ranks take over from torch.
    models = make_models(2)

    def take_over(comm: cocoll.Communicator) -> Any:
        model = models[comm.rank]
        model.load_state_dict(read(middle[1]))
        optimizer = ours(model.parameters(), comm=comm, lr=0.5, **{
            key: value for key, value in options.items() if key != "lr"
        })  # fmt: skip
        optimizer.load_state_dict(read(middle[0]))
        train(comm, model, optimizer, range(5, 6))
        return parameters_of(model)

    for mine, theirs_too in zip(run_ranks(2, take_over)[0], wanted, strict=True):
        np.testing.assert_allclose(mine, theirs_too, **CLOSE)


def test_what_does_not_fit_is_refused() -> None:
    models = make_models(2)

    def save_states(comm: cocoll.Communicator) -> Any:
        optimizer = make_optimizer(models[comm.rank], comm)
        return optimizer.state_dict(), fused.FusedAdam(
            [torch.nn.Parameter(torch.ones(3))], comm=comm
        ).state_dict()

    saved = run_ranks(2, save_states)
    with cocoll.init() as comm:
        optimizer = make_optimizer(Net(), comm)
        with pytest.raises(UsageError, match="state of rank 1 of 2 alone"):
            optimizer.load_state_dict(saved[1][0])
        with pytest.raises(UsageError, match="got 1 of 2"):
            optimizer.load_state_dict([saved[0][0]])
        with pytest.raises(UsageError, match="wanted the state of rank 1 of 2; got that of rank 0"):
            optimizer.load_state_dict([saved[0][0], saved[0][0]])
        with pytest.raises(UsageError, match="state of a FusedAdamW"):
            optimizer.load_state_dict([state for _, state in saved])
        with pytest.raises(UsageError, match="got a dict of"):
            optimizer.load_state_dict({"model": 1})
        other = fused.FusedAdamW([torch.nn.Parameter(torch.ones(3))], comm=comm)
        with pytest.raises(UsageError, match="parameter groups of"):
            other.load_state_dict([state for state, _ in saved])
