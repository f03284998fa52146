"""Train a small network on handwritten digits, data parallel, twice.

Run it as ``mpirun -n 4 python examples/train_digits.py``; ``make demo`` does. The first training
averages gradients with MPI and then steps Adam in NumPy, on every rank over all parameters. The
second one makes a single call: ``cocoll.allreduce_fused`` reduces a piece of the gradient, steps
Adam on that piece while it is in cache, and hands the new parameters to all ranks, so that every
rank keeps the optimizer state of its own shard only. Both start from the same weights and see the
same samples in the same order. The first is the plain way to write it, not the fastest:
``benchmarks/run.py fused`` measures against strong peers.
"""

from __future__ import annotations

import os

# Ranks share the cores: a BLAS that starts a thread per core in every rank only gets in its own
# way. This must stand before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import abc
import itertools
import statistics
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from mpi4py import MPI
from sklearn.datasets import load_digits

import cocoll
from cocoll import epilogues

Array = npt.NDArray[np.float32]

LAYER_WIDTHS = (64, 1024, 1024, 10)
EPOCHS = 10
BATCH_SAMPLES = 64  # over all ranks
TEST_SAMPLES = 360
LEARNING_RATE = 1e-3
BETAS = (0.9, 0.999)
EPSILON = 1e-8
WANTED_ACCURACY = 0.95
WANTED_DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Samples:
    """Images as rows of 64 numbers in [0, 1], and the digit that each shows."""

    images: Array
    digits: npt.NDArray[np.int64]

    def __getitem__(self, rows: npt.NDArray[np.int64] | slice) -> Samples:
        return Samples(self.images[rows], self.digits[rows])

    def __len__(self) -> int:
        return len(self.digits)


class Network:
    """A multilayer perceptron whose weights are views of one flat vector."""

    def __init__(self, parameters: Array, gradients: Array) -> None:
        self.layers = list(zip(_layer_views(parameters), _layer_views(gradients), strict=True))

    @staticmethod
    def parameter_count() -> int:
        """Give the length of the flat vector."""
        return sum((rows + 1) * columns for rows, columns in _layer_shapes())

    @staticmethod
    def initial_parameters() -> Array:
        """Draw the same weights on every rank and in both trainings."""
        generator = np.random.default_rng(seed=7)
        parameters = np.zeros(Network.parameter_count(), np.float32)
        for weight, _ in _layer_views(parameters):
            weight[:] = generator.normal(0.0, np.sqrt(2 / len(weight)), weight.shape)
        return parameters

    def forward(self, images: Array) -> list[Array]:
        """Give the input of every layer, and last the logits."""
        values = [images]
        for index, ((weight, bias), _) in enumerate(self.layers):
            value = values[-1] @ weight + bias
            values.append(value if index == len(self.layers) - 1 else np.maximum(value, 0))
        return values

    def backward(self, samples: Samples) -> float:
        """Write the gradient of the mean loss into the gradient vector and give the loss."""
        values = self.forward(samples.images)
        logits = values[-1] - values[-1].max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(logits).sum(axis=1, keepdims=True))
        rows = np.arange(len(samples))
        loss = float((log_sum[:, 0] - logits[rows, samples.digits]).mean())
        delta = np.exp(logits - log_sum)
        delta[rows, samples.digits] -= 1
        delta /= len(samples)
        for index in reversed(range(len(self.layers))):
            (weight, _), (weight_gradient, bias_gradient) = self.layers[index]
            np.matmul(values[index].T, delta, out=weight_gradient)
            np.sum(delta, axis=0, out=bias_gradient)
            if index > 0:
                delta = (delta @ weight.T) * (values[index] > 0)
        return loss

    def count_correct(self, samples: Samples) -> int:
        """Give how many digits are recognised."""
        return int((self.forward(samples.images)[-1].argmax(axis=1) == samples.digits).sum())


def _layer_shapes() -> list[tuple[int, int]]:
    return list(itertools.pairwise(LAYER_WIDTHS))


def _layer_views(vector: Array) -> list[tuple[Array, Array]]:
    views = []
    first = 0
    for rows, columns in _layer_shapes():
        middle, last = first + rows * columns, first + (rows + 1) * columns
        views.append((vector[first:middle].reshape(rows, columns), vector[middle:last]))
        first = last
    return views


class Trainer(abc.ABC):
    """Where parameters and gradients live, and how a step updates them on all ranks."""

    name: str
    parameters: Array
    gradients: Array

    @abc.abstractmethod
    def update(self, step: int) -> None:
        """Average the gradients over the ranks and apply Adam; `step` counts from 1."""

    @abc.abstractmethod
    def state_bytes(self) -> int:
        """Give the memory of the optimizer state on this rank."""


class MpiTrainer(Trainer):
    """The plain way: an all-reduce, then Adam over all parameters on every rank."""

    name = "MPI all-reduce + NumPy Adam"

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.parameters = Network.initial_parameters()
        self.gradients = np.empty_like(self.parameters)
        self.m = np.zeros_like(self.parameters)
        self.v = np.zeros_like(self.parameters)

    def update(self, step: int) -> None:
        gradient = self.gradients
        self.comm.Allreduce(MPI.IN_PLACE, gradient, MPI.SUM)
        gradient /= self.comm.size
        beta1, beta2 = BETAS
        self.m *= beta1
        self.m += (1 - beta1) * gradient
        self.v *= beta2
        self.v += (1 - beta2) * gradient * gradient
        denominator = np.sqrt(self.v / (1 - beta2**step)) + EPSILON
        self.parameters -= LEARNING_RATE / (1 - beta1**step) * self.m / denominator

    def state_bytes(self) -> int:
        return self.m.nbytes + self.v.nbytes


class CocollTrainer(Trainer):
    """One call: reduce, Adam on this rank's shard, new parameters to everyone."""

    name = "cocoll.allreduce_fused"

    def __init__(self, comm: cocoll.Communicator) -> None:
        count = Network.parameter_count()
        self.comm = comm
        self.gradients = comm.empty(count, "float32")
        self.parameters = comm.empty(count, "float32", replicated=True)
        self.m, self.v = comm.shard_zeros(count), comm.shard_zeros(count)
        self.adam = epilogues.adam(betas=BETAS, eps=EPSILON)
        cocoll.broadcast(Network.initial_parameters(), out=self.parameters, comm=comm)

    def update(self, step: int) -> None:
        cocoll.allreduce_fused(
            self.gradients,
            self.adam,
            op="avg",
            param=self.parameters,
            m=self.m,
            v=self.v,
            lr=LEARNING_RATE,
            step=step,
            comm=self.comm,
        )

    def state_bytes(self) -> int:
        return self.m.nbytes + self.v.nbytes


@dataclass
class Record:
    """What one training did."""

    accuracy: float = 0.0
    step_seconds: list[float] = field(default_factory=list)
    update_seconds: list[float] = field(default_factory=list)

    def step_milliseconds(self) -> float:
        return 1e3 * statistics.median(self.step_seconds)

    def update_milliseconds(self) -> float:
        return 1e3 * statistics.median(self.update_seconds)


def load_samples() -> tuple[Samples, Samples]:
    """Give the training and the test samples."""
    digits = load_digits()
    samples = Samples((digits.data / 16).astype(np.float32), digits.target.astype(np.int64))
    order = np.random.default_rng(seed=3).permutation(len(samples))
    return samples[order[TEST_SAMPLES:]], samples[order[:TEST_SAMPLES]]


def train(trainer: Trainer, training: Samples, test: Samples, world: MPI.Comm) -> Record:
    """Train for all epochs, saying how it goes."""
    network = Network(trainer.parameters, trainer.gradients)
    record = Record()
    share = max(1, BATCH_SAMPLES // world.size)
    batch = share * world.size
    step = 0
    say(world, f"\n{trainer.name}")
    for epoch in range(1, EPOCHS + 1):
        order = np.random.default_rng(seed=100 + epoch).permutation(len(training))
        losses = []
        for first in range(0, len(training) - batch + 1, batch):
            mine = first + share * world.rank
            samples = training[order[mine : mine + share]]
            started = time.perf_counter()
            losses.append(network.backward(samples))
            computed = time.perf_counter()
            step += 1
            trainer.update(step)
            finished = time.perf_counter()
            record.step_seconds.append(finished - started)
            record.update_seconds.append(finished - computed)
        loss = world.allreduce(float(np.mean(losses))) / world.size
        correct = world.allreduce(network.count_correct(test[slice(world.rank, None, world.size)]))
        record.accuracy = correct / len(test)
        epoch_steps = record.step_seconds[-len(losses) :]
        say(
            world,
            f"  epoch {epoch:2d}/{EPOCHS}   loss {loss:.4f}   test accuracy {record.accuracy:.2%}"
            f"   step {1e3 * statistics.median(epoch_steps):6.2f} ms",
        )
    return record


def say(world: MPI.Comm, text: str) -> None:
    """Print on rank 0, at once."""
    if world.rank == 0:
        print(text, flush=True)


def main() -> int:
    """Train both ways, compare, and give the exit status."""
    world = MPI.COMM_WORLD
    training, test = load_samples()
    say(
        world,
        f"{len(training)} digits to train on, {len(test)} to test; a network of "
        f"{Network.parameter_count():,} parameters on {world.size} ranks",
    )
    plain_trainer = MpiTrainer(world)
    plain = train(plain_trainer, training, test, world)
    with cocoll.init() as comm:
        fused_trainer = CocollTrainer(comm)
        fused = train(fused_trainer, training, test, world)
        local_difference = float(np.abs(plain_trainer.parameters - fused_trainer.parameters).max())
        difference = world.allreduce(local_difference, op=MPI.MAX)
        states = [trainer.state_bytes() / 2**20 for trainer in (plain_trainer, fused_trainer)]
    steps = plain.step_milliseconds(), fused.step_milliseconds()
    updates = plain.update_milliseconds(), fused.update_milliseconds()
    say(world, f"\n{'':34}{'MPI + NumPy':>14}{'cocoll':>14}")
    say(world, f"{'test accuracy':34}{plain.accuracy:>14.2%}{fused.accuracy:>14.2%}")
    say(world, f"{'time per step (ms, median)':34}{steps[0]:>14.2f}{steps[1]:>14.2f}")
    say(world, f"{'  of which reduce and update (ms)':34}{updates[0]:>14.2f}{updates[1]:>14.2f}")
    say(world, f"{'optimizer state per rank (MiB)':34}{states[0]:>14.2f}{states[1]:>14.2f}")
    say(world, f"\nlargest difference of a weight     {difference:.1e}")
    say(world, f"speed-up of a whole step           {steps[0] / steps[1]:.2f}x")
    say(world, f"speed-up of reduce and update      {updates[0] / updates[1]:.2f}x")
    accurate = min(plain.accuracy, fused.accuracy) > WANTED_ACCURACY
    equal = difference < WANTED_DIFFERENCE
    if not accurate:
        say(world, f"FAILED: wanted a test accuracy above {WANTED_ACCURACY:.0%} in both")
    if not equal:
        say(world, f"FAILED: wanted weights that differ by less than {WANTED_DIFFERENCE:.0e}")
    return 0 if accurate and equal else 1


if __name__ == "__main__":
    sys.exit(main())
