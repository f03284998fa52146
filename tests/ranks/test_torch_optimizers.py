"""Fused optimizers do what torch.optim does on averaged gradients, the same bits on all ranks."""

from __future__ import annotations

import copy
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cocoll
from cocoll.errors import (
    AbortedError,
    CollectiveMismatchError,
    DTypeError,
    UnsupportedError,
    UsageError,
)
from cocoll.testing import run_ranks

torch = pytest.importorskip("torch")

import cocoll.torch as fused  # noqa: E402
from cocoll.torch.bucket import plan_buckets  # noqa: E402
from tests.helpers.torch_training import (  # noqa: E402
    Net,
    average_reference,
    draw_batch,
    make_models,
    parameters_of,
)

#: Beside torch in float64: both round differently, and a step divides by roots of small numbers.
CLOSE = {"rtol": 1e-9, "atol": 1e-12}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def grouped(model: Net, **second: Any) -> list[dict[str, Any]]:
    """Give two groups: matrices, and the rest with hyperparameters of its own."""
    params = list(model.parameters())
    return [
        {"params": [p for p in params if p.dim() > 1]},
        {"params": [p for p in params if p.dim() <= 1], **second},
    ]


LONG_WORLD_SIZES = [pytest.param(size, marks=pytest.mark.long) for size in (1, 2, 4, 5, 8)]


class Lamb(torch.optim.Optimizer):
    """LAMB parameter by parameter, as its paper writes it."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(
            params, {"betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01, **options}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            (beta1, beta2), decay = group["betas"], group["weight_decay"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state.update(step=0, m=torch.zeros_like(param), v=torch.zeros_like(param))
                state["step"] += 1
                state["m"].mul_(beta1).add_(param.grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
                mean = state["m"] / (1 - beta1 ** state["step"])
                root = (state["v"] / (1 - beta2 ** state["step"])).sqrt()
                update = mean / (root + group["eps"]) + decay * param
                of_param, of_update = float(param.norm()), float(update.norm())
                trust = of_param / of_update if of_param > 0 and of_update > 0 else 1.0
                param.sub_(update, alpha=group["lr"] * trust)


ADAM_GROUP = {"lr": 3e-3, "betas": (0.8, 0.95), "weight_decay": 0.1, "eps": 1e-6}
OPTIMIZERS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "adam": (fused.FusedAdam, torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.02}, ADAM_GROUP),
    "adamw": (fused.FusedAdamW, torch.optim.AdamW, {"lr": 1e-2}, ADAM_GROUP),
    "lamb": (fused.FusedLAMB, Lamb, {"lr": 1e-2}, ADAM_GROUP),
    "sgd": (fused.FusedSGD, torch.optim.SGD, {"lr": 0.1}, {"weight_decay": 0.1}),
    "momentum": (
        fused.FusedSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3},
        {"lr": 0.05, "momentum": 0.5},
    ),
    "nesterov": (
        fused.FusedSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        {"momentum": 0.8},
    ),
    "dampened": (
        fused.FusedSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
        {"momentum": 0.8, "dampening": 0.1},
    ),
}


def check_equal(results: list[list[np.ndarray]], wanted: Any, close: dict[str, float]) -> None:
    for rank, params in enumerate(results):
        for index, (mine, first) in enumerate(zip(params, results[0], strict=True)):
            assert mine.tobytes() == first.tobytes(), f"parameter {index} of rank {rank}"
    for mine, theirs in zip(results[0], parameters_of(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, **close)


@pytest.mark.parametrize("world_size", [3, *LONG_WORLD_SIZES])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name == "dampened" else ())
        for name in OPTIMIZERS
    ],
)
def test_as_torch(name: str, world_size: int) -> None:
    ours, theirs, options, second = OPTIMIZERS[name]
    models = make_models(world_size)
    before = parameters_of(models[0])

    def train(comm: cocoll.Communicator) -> list[np.ndarray]:
        model = models[comm.rank]
        if comm.rank > 0:
            torch.nn.init.zeros_(model.hidden.weight)  # rank 0's values hold
        # Small buckets: several a group, and each dtype and group has its own.
        optimizer = ours(grouped(model, **second), comm=comm, bucket_bytes=1024, **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(5):
            optimizer.zero_grad()
            # Gradients come in another order on odd ranks; a layer is used from step 1 on.
            model.loss(draw_batch(step, comm.rank), swap=comm.rank % 2 == 1).backward()
            optimizer.step()
            schedule.step()
        assert model.idle.weight.grad is None
        assert model.out.weight is model.embed.weight
        result = parameters_of(model)
        optimizer.close()
        return result

    schedules: list[Any] = []

    def make_theirs(model: Net) -> Any:
        optimizer = theirs(grouped(model, **second), **options)
        schedules.append(torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        return optimizer

    wanted, _ = average_reference(
        make_theirs,
        [
            lambda model, s=step: [model.loss(draw_batch(s, r)) for r in range(world_size)]
            for step in range(5)
        ],
        after_step=lambda _: schedules[0].step(),
    )
    results = run_ranks(world_size, train)
    check_equal(results, wanted, CLOSE)
    names = [name for name, _ in Net().named_parameters()]
    for index, name in enumerate(names):
        changed = bool((results[0][index] != before[index]).any())
        untouched = name.startswith(("idle", "extra", "frozen"))
        assert changed != untouched, name


@pytest.mark.parametrize(("replicated", "overlap"), [(True, True), (False, False)])
def test_waiting_for_all_gradients_gives_the_same_bits(replicated: bool, overlap: bool) -> None:
    world_size = 3
    results = []
    for max_norm in (None, 1e30):
        models = make_models(world_size)

        def train(comm: cocoll.Communicator, max_norm: Any = max_norm, models: Any = models) -> Any:
            model = models[comm.rank]
            optimizer = fused.FusedAdamW(
                model.parameters(), comm=comm, bucket_bytes=2048, max_norm=max_norm,
                replicated=replicated, overlap=overlap,
            )  # fmt: skip
            for step in range(4):
                optimizer.zero_grad()
                model.loss(draw_batch(step, comm.rank)).backward()
                optimizer.step()
                assert max_norm is None or optimizer.grad_norm is not None
            return parameters_of(model)

        results.append(run_ranks(world_size, train))
    for plain, waited in zip(results[0], results[1], strict=True):
        for mine, theirs in zip(plain, waited, strict=True):
            assert mine.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_other_dtypes(dtype: str) -> None:
    world_size, kind = 2, getattr(torch, dtype)
    half = dtype != "float32"
    models = make_models(world_size, kind)
    start = [p.detach().float().clone() for p in models[0].parameters()]

    def train(comm: cocoll.Communicator, **options: Any) -> list[np.ndarray]:
        model = models[comm.rank]
        optimizer = fused.FusedAdamW(model.parameters(), lr=1e-2, comm=comm, **options)
        for step in range(4):
            optimizer.zero_grad()
            model.loss(draw_batch(step, comm.rank)).backward()
            optimizer.step()
            # After the step gradients are still this rank's own.
            seen[comm.rank].append(
                [None if p.grad is None else p.grad.float().clone() for p in model.parameters()]
            )
        return parameters_of(model)

    for options in ({}, {"max_norm": 1e30}):
        models = make_models(world_size, kind)
        seen: list[list[Any]] = [[] for _ in range(world_size)]
        results = run_ranks(world_size, lambda comm, options=options: train(comm, **options))
        # The same in float32, from the same gradients, rounded at the end.
        masters = [torch.nn.Parameter(value.clone()) for value in start]
        reference = torch.optim.AdamW(masters, lr=1e-2)
        for step in range(4):
            for index, master in enumerate(masters):
                parts = [seen[rank][step][index] for rank in range(world_size)]
                master.grad = None if parts[0] is None else (parts[0] + parts[1]) / world_size
            reference.step()
        for index, master in enumerate(masters):
            mine = torch.from_numpy(results[0][index])
            mine = (mine.view(kind) if half else mine).float()
            wanted = master.detach().to(kind).float()
            assert results[0][index].tobytes() == results[1][index].tobytes()
            tolerance = torch.finfo(kind).eps if half else 1e-6
            torch.testing.assert_close(mine, wanted, rtol=tolerance, atol=1e-6)


def test_a_parameter_may_be_without_gradient_in_any_step() -> None:
    world_size = 2
    # By step: which ranks use the layer. A rank that does not contributes zeros, as in DDP.
    uses = [(0,), (), (0, 1), (1,), (), (0, 1)]
    models = make_models(world_size)

    def train(comm: cocoll.Communicator) -> list[np.ndarray]:
        model = models[comm.rank]
        optimizer = fused.FusedAdam(
            model.parameters(), lr=1e-2, weight_decay=0.1, comm=comm, find_unused_parameters=True
        )
        for step, ranks in enumerate(uses):
            optimizer.zero_grad()
            model.loss(draw_batch(step, comm.rank), extra=comm.rank in ranks).backward()
            optimizer.step()
        return parameters_of(model)

    wanted, _ = average_reference(
        lambda model: torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1),
        [
            lambda model, s=step, u=ranks: [
                model.loss(draw_batch(s, r), extra=r in u) for r in range(world_size)
            ]
            for step, ranks in enumerate(uses)
        ],
    )
    check_equal(run_ranks(world_size, train), wanted, CLOSE)


def test_a_layer_that_comes_into_use_is_taken_in() -> None:
    world_size = 2
    uses = [False, False, True, True, True]
    models = make_models(world_size)

    def train(comm: cocoll.Communicator) -> list[np.ndarray]:
        model = models[comm.rank]
        optimizer = fused.FusedAdamW(model.parameters(), lr=1e-2, comm=comm)
        for step, extra in enumerate(uses):
            optimizer.zero_grad()
            # On one rank alone in one of the steps: its gradient counts, the other's is zero.
            used = extra and not (step == 3 and comm.rank == 1)
            model.loss(draw_batch(step, comm.rank), extra=used).backward()
            optimizer.step()
        return parameters_of(model)

    wanted, _ = average_reference(
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        [
            lambda model, s=step, e=extra: [
                model.loss(draw_batch(s, r), extra=e and not (s == 3 and r == 1))
                for r in range(world_size)
            ]
            for step, extra in enumerate(uses)
        ],
    )
    check_equal(run_ranks(world_size, train), wanted, CLOSE)


def test_a_gradient_that_is_missed_is_told_on_all_ranks() -> None:
    models = make_models(2)

    def train(comm: cocoll.Communicator) -> str:
        model = models[comm.rank]
        optimizer = fused.FusedAdam(model.extra.parameters(), comm=comm)
        other = torch.ones(1, 8, dtype=torch.float64)
        for _ in range(2):
            optimizer.zero_grad()
            model.extra(other).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        with pytest.raises(UsageError, match="find_unused_parameters=True") as caught:
            optimizer.step()
        # The optimizer can be used again.
        optimizer.zero_grad()
        model.extra(other).sum().backward()
        optimizer.step()
        return str(caught.value).replace(f"rank {comm.rank}", "")

    assert len(set(run_ranks(2, train))) == 1


@pytest.mark.parametrize("max_norm", [None, 0.05])
def test_gradients_add_up(max_norm: float | None) -> None:
    world_size = 2
    models = make_models(world_size)

    def train(comm: cocoll.Communicator) -> list[np.ndarray]:
        model = models[comm.rank]
        optimizer = fused.FusedAdamW(
            model.parameters(), lr=1e-2, comm=comm, bucket_bytes=1024, max_norm=max_norm
        )
        for step in range(3):
            optimizer.zero_grad(set_to_none=step != 1)
            with optimizer.no_sync():
                # The layer has a gradient from this pass alone.
                model.loss(draw_batch(step, comm.rank), extra=True).backward()
                model.loss(draw_batch(step + 10, comm.rank)).backward()
            model.loss(draw_batch(step + 20, comm.rank)).backward()
            optimizer.step()
        return parameters_of(model)

    def losses(model: Net, step: int) -> list[Any]:
        return [
            model.loss(draw_batch(step, rank), extra=True)
            + model.loss(draw_batch(step + 10, rank))
            + model.loss(draw_batch(step + 20, rank))
            for rank in range(world_size)
        ]

    def clip(model: Net) -> None:
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    wanted, _ = average_reference(
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        [lambda model, s=step: losses(model, s) for step in range(3)],
        before_step=clip,
    )
    check_equal(run_ranks(world_size, train), wanted, CLOSE)


def test_a_second_pass_outside_no_sync_is_refused() -> None:
    def train(comm: cocoll.Communicator) -> None:
        param = torch.nn.Parameter(torch.ones(5))
        optimizer = fused.FusedSGD([param], lr=0.5, comm=comm)
        (param * 2).sum().backward()
        with pytest.raises(UsageError, match="arrived twice on rank"):
            (param * 3).sum().backward()
        with pytest.raises(UsageError, match="between backward and step"):
            optimizer.state_dict()
        optimizer.step()

    run_ranks(2, train)


@pytest.mark.parametrize("max_norm", [0.02, 1.0])
def test_clipping(max_norm: float) -> None:
    world_size = 3
    models = make_models(world_size)
    norms: list[float] = []

    def train(comm: cocoll.Communicator) -> tuple[list[np.ndarray], list[float]]:
        model = models[comm.rank]
        optimizer = fused.FusedSGD(
            grouped(model, lr=0.2), lr=0.5, momentum=0.9, comm=comm, max_norm=max_norm,
            bucket_bytes=1024,
        )  # fmt: skip
        seen = []
        for step in range(4):
            optimizer.zero_grad()
            model.loss(draw_batch(step, comm.rank)).backward()
            optimizer.step()
            assert optimizer.grad_norm is not None
            seen.append(optimizer.grad_norm)
        return parameters_of(model), seen

    def clip(model: Net) -> None:
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)))

    wanted, _ = average_reference(
        lambda model: torch.optim.SGD(grouped(model, lr=0.2), lr=0.5, momentum=0.9),
        [
            lambda model, s=step: [model.loss(draw_batch(s, r)) for r in range(world_size)]
            for step in range(4)
        ],
        before_step=clip,
    )
    results = run_ranks(world_size, train)
    check_equal([params for params, _ in results], wanted, CLOSE)
    assert all(seen == results[0][1] for _, seen in results)
    np.testing.assert_allclose(results[0][1], norms, rtol=1e-12)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_step_that_overflows_is_skipped_on_all_ranks(value: float) -> None:
    world_size = 3
    models = make_models(world_size)

    def train(comm: cocoll.Communicator) -> tuple[list[np.ndarray], list[float]]:
        model = models[comm.rank]
        scaler = fused.LossScaler(init_scale=1024.0, growth_interval=2)
        optimizer = fused.FusedAdamW(
            model.parameters(), lr=1e-2, comm=comm, scaler=scaler, max_norm=0.1
        )
        scales = []
        for step in range(5):
            optimizer.zero_grad()
            loss = scaler.scale(model.loss(draw_batch(step, comm.rank)))
            # On one rank, in one step, one gradient is lost.
            (loss * value if (step, comm.rank) == (1, 2) else loss).backward()
            before = parameters_of(model)
            optimizer.step()
            after = parameters_of(model)
            same = all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))
            assert same == (step == 1)
            scales.append(scaler.get_scale())
        return parameters_of(model), scales

    wanted, _ = average_reference(
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        [
            lambda model, s=step: [model.loss(draw_batch(s, r)) for r in range(world_size)]
            for step in (0, 2, 3, 4)
        ],
        before_step=lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    )
    results = run_ranks(world_size, train)
    check_equal([params for params, _ in results], wanted, CLOSE)
    assert all(scales == [1024.0, 512.0, 512.0, 1024.0, 1024.0] for _, scales in results)


def test_the_scaler_speaks_as_torchs_does() -> None:
    theirs = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    ours = fused.LossScaler(init_scale=64.0, growth_interval=3)
    for is_finite in (True, True, True, False, True):
        ours.adapt(is_finite)
    assert ours.get_scale() == 64.0
    state = ours.state_dict()
    assert set(state) == set(theirs.state_dict())
    theirs.load_state_dict(state)
    assert theirs.get_scale() == 64.0
    again = fused.LossScaler()
    again.load_state_dict(theirs.state_dict())
    assert again.state_dict() == state
    with pytest.raises(UsageError):
        fused.LossScaler(backoff_factor=1.5)


def test_ranks_of_a_host_share_one_copy() -> None:
    def look(comm: cocoll.Communicator) -> None:
        for replicated in (True, False):
            param = torch.nn.Parameter(torch.full((1000,), float(comm.rank)))
            optimizer = fused.FusedSGD([param], comm=comm, replicated=replicated)
            comm.barrier()
            assert param[0] == 0.0  # rank 0's
            comm.barrier()
            if comm.rank == 1:
                with torch.no_grad():
                    param[0] = 5.0
            comm.barrier()
            assert param[0] == (5.0 if replicated or comm.rank == 1 else 0.0)
            comm.barrier()
            optimizer.close()

    run_ranks(3, look)


def test_state_is_divided() -> None:
    models = make_models(4)

    def count(comm: cocoll.Communicator) -> int:
        optimizer = fused.FusedAdam(models[comm.rank].parameters(), comm=comm)
        return optimizer.state_bytes

    found = run_ranks(4, count)
    params = [p for p in models[0].parameters() if p.requires_grad]
    padded = sum(-(-p.numel() // 16) * 16 for p in params)
    assert sum(found) == 2 * 8 * padded
    assert max(found) == 2 * 8 * ((padded // 4 + 15) // 16 * 16)


def test_buckets() -> None:
    assert plan_buckets([], 10) == []
    planned = plan_buckets([3, 40, 0, 17, 16], 64)
    seen = [[(s.index, s.offset, s.length) for s in slots] for slots, _ in planned]
    assert seen == [[(4, 0, 16), (3, 16, 17), (2, 48, 0)], [(1, 0, 40), (0, 48, 3)]]
    assert [count for _, count in planned] == [48, 64]
    # A parameter larger than a bucket has one to itself.
    assert [len(slots) for slots, _ in plan_buckets([8, 1000, 8], 16)] == [1, 1, 1]


def test_a_group_can_be_added() -> None:
    models = make_models(2)

    def train(comm: cocoll.Communicator) -> list[np.ndarray]:
        model = models[comm.rank]
        late = list(model.extra.parameters())
        first = [p for p in model.parameters() if not any(p is q for q in late)]
        optimizer = fused.FusedAdamW(first, lr=1e-2, comm=comm)
        for step in range(4):
            if step == 2:
                optimizer.add_param_group({"params": late, "lr": 1e-3})
            optimizer.zero_grad()
            model.loss(draw_batch(step, comm.rank), extra=step >= 2).backward()
            optimizer.step()
        return parameters_of(model)

    reference = Net()
    late = list(reference.extra.parameters())
    optimizer = torch.optim.AdamW(
        [p for p in reference.parameters() if not any(p is q for q in late)], lr=1e-2
    )
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": late, "lr": 1e-3})
        optimizer.zero_grad()
        for rank in range(2):
            (reference.loss(draw_batch(step, rank), extra=step >= 2) / 2).backward()
        optimizer.step()
    check_equal(run_ranks(2, train), reference, CLOSE)


def test_it_goes_when_nobody_has_it_any_more() -> None:
    with cocoll.init() as comm:
        model = Net()
        optimizer = fused.FusedAdam(model.parameters(), comm=comm)
        model.loss(draw_batch(0, 0)).backward()
        optimizer.step()
        optimizer.close()
        optimizer.close()
        gone = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert gone() is None
        # The model lives on, without hooks.
        model.loss(draw_batch(1, 0)).backward()


def refusals() -> dict[str, tuple[Callable[[], Any], dict[str, Any], type[Exception], str]]:
    weight = torch.nn.Parameter(torch.ones(4))
    return {
        "lr": (lambda: [weight], {"lr": -1.0}, UsageError, "lr"),
        "betas": (lambda: [weight], {"betas": (0.9, 1.0)}, UsageError, "betas"),
        "reduction": (lambda: [weight], {"reduction": "max"}, UsageError, "'avg' or 'sum'"),
        "bucket_bytes": (lambda: [weight], {"bucket_bytes": 0}, UsageError, "at least 1"),
        "max_norm": (lambda: [weight], {"max_norm": 0.0}, UsageError, "above 0"),
        "dtype": (
            lambda: [torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))],
            {},
            DTypeError,
            "parameter 0 of torch.complex64",
        ),
        "device": (
            lambda: [torch.nn.Parameter(torch.ones(3, device="meta"))],
            {},
            UnsupportedError,
            "host memory",
        ),
    }


@pytest.mark.parametrize("name", refusals())
def test_what_cannot_be_trained_is_refused(name: str) -> None:
    params, options, error, message = refusals()[name]
    with cocoll.init() as comm, pytest.raises(error, match=message):
        fused.FusedAdam(params(), comm=comm, **options)


def test_a_sparse_gradient_is_refused() -> None:
    with cocoll.init() as comm:
        embedding = torch.nn.Embedding(10, 3, sparse=True)
        optimizer = fused.FusedSGD(embedding.parameters(), comm=comm)
        with pytest.raises(UnsupportedError, match="sparse=False"):
            embedding(torch.tensor([1])).sum().backward()
        optimizer.close()


def test_ranks_with_other_parameters_find_out() -> None:
    def make(comm: cocoll.Communicator) -> None:
        param = torch.nn.Parameter(torch.ones(5 if comm.rank == 0 else 500))
        with pytest.raises((CollectiveMismatchError, AbortedError)):
            fused.FusedAdam([param], comm=comm)

    run_ranks(2, make)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("options", [{}, {"max_norm": 100.0}, {"find_unused_parameters": True}])
def test_parameters_change_while_backward_goes_on(options: dict[str, Any], overlap: bool) -> None:
    with cocoll.init() as comm:
        first, last = (torch.nn.Parameter(torch.full((20,), 2.0)) for _ in range(2))
        optimizer = fused.FusedSGD(
            [first, last], lr=0.5, comm=comm, bucket_bytes=64, overlap=overlap, **options
        )
        values: list[float] = []

        def look(gradient: Any) -> Any:
            # What has been issued by now, the last parameter's bucket, is waited for.
            step = optimizer._engine._step
            for work in step.works if step is not None else ():
                work.wait()
            values.append(last[0].item())
            return gradient

        for _ in range(3):
            optimizer.zero_grad()
            product = first * 3.0
            product.register_hook(look)
            # The gradient of the last parameter comes first.
            (product.sum() + (last * 1.0).sum()).backward()
            values.append(last[0].item())
            optimizer.step()
        assert last[0] == 0.5
        changes = [before != after for before, after in itertools.pairwise([2.0, *values])]
        if options or not overlap:
            assert changes == [False, False, True, False, True, False]
        else:
            # Which parameters have gradients is found out in the first step.
            assert changes[:2] == [False, False]
            assert values[3] == 1.0
            assert values[5] == 0.5


@pytest.mark.parametrize("max_norm", [None, 1e30])
def test_several_hosts(max_norm: float | None) -> None:
    hosts = [0, 1, 0, 1, 1]
    world_size = len(hosts)
    models = make_models(world_size)

    def train(comm: cocoll.Communicator) -> list[np.ndarray]:
        model = models[comm.rank]
        optimizer = fused.FusedSGD(
            model.parameters(), lr=0.1, momentum=0.9, comm=comm, bucket_bytes=1024,
            max_norm=max_norm,
        )  # fmt: skip
        for step in range(3):
            optimizer.zero_grad()
            model.loss(draw_batch(step, comm.rank)).backward()
            optimizer.step()
        return parameters_of(model)

    wanted, _ = average_reference(
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        [
            lambda model, s=step: [model.loss(draw_batch(s, r)) for r in range(world_size)]
            for step in range(3)
        ],
    )
    check_equal(run_ranks(world_size, train, hosts=hosts), wanted, CLOSE)


def test_empty_parameters() -> None:
    def train(comm: cocoll.Communicator) -> None:
        empty = torch.nn.Parameter(torch.zeros(0, 4))
        full = torch.nn.Parameter(torch.ones(3))
        optimizer = fused.FusedAdam([{"params": [empty]}, {"params": [full]}], lr=0.1, comm=comm)
        for _ in range(3):
            optimizer.zero_grad()
            (empty.sum() + full.sum()).backward()
            optimizer.step()
        torch.testing.assert_close(full.detach(), torch.full((3,), 0.7))

    run_ranks(2, train)


def test_a_parameter_that_is_thawed_needs_a_new_optimizer() -> None:
    with cocoll.init() as comm:
        param = torch.nn.Parameter(torch.ones(3))
        frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        optimizer = fused.FusedSGD([param, frozen], lr=0.5, comm=comm)
        (param * frozen).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        frozen.requires_grad_()
        (param * frozen).sum().backward()
        with pytest.raises(UsageError, match=r"parameters \[1\] have gradients"):
            optimizer.step()


def test_a_closure_is_called() -> None:
    with cocoll.init() as comm:
        param = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
        optimizer = fused.FusedSGD([param], lr=0.5, comm=comm, reduction="sum")

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (param**2).sum()
            loss.backward()
            return loss

        assert optimizer.step(closure) == 13.0
        assert param.tolist() == [0.0, 0.0]
        model = copy.deepcopy(param)
        assert model.tolist() == [0.0, 0.0]
