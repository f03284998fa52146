"""Predicted, not measured: a fused all-reduce on 8 to 65,536 GPUs beside its lower bound."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common.machine import commit_of, describe_machine, python_below
from benchmarks.common.plotting import load_pyplot
from benchmarks.common.sizes import format_bytes
from benchmarks.common.terminal import Progress, format_seconds
from cocoll.commands.questions import Question, explain_question, reduce_spec
from cocoll.errors import CocollError
from cocoll.topology.presets import load_preset

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["DEFAULT_RANKS", "NAME", "Prediction", "check_options", "draw", "predict", "run"]

NAME = "scale"
DEFAULT_RANKS = tuple(8 << doubling for doubling in range(14))

_ROOT = Path(__file__).resolve().parents[2]
_PRESET, _RANKS_PER_HOST = "dgx-h100", 8
_DEFAULT_BYTES = (1 << 30,)
_DTYPE = "float32"
# An 80th of such a GPU's memory.
_STAGING_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Prediction:
    """One line of the JSON; fields that other suites have too mean the same."""

    suite: str
    case: str
    operation: str
    dtype: str
    ranks: int
    hosts: int
    elements: int
    bytes: int
    memory: str
    implementation: str
    algorithm: str
    predicted_seconds: float
    limit_seconds: float
    fraction_of_limit: float
    messages: int
    steps: int
    simulated_ranks: int
    simulation_seconds: float
    command: str
    commit: str | None
    machine: str

    def to_json(self) -> dict[str, Any]:
        """Give the fields in their order."""
        return asdict(self)


def check_options(options: argparse.Namespace) -> str | None:
    """Say what is wrong with the command line; None: nothing."""
    for ranks in options.ranks or ():
        if ranks < 1 or ranks % _RANKS_PER_HOST:
            return f"--ranks: the suite {NAME} wants multiples of {_RANKS_PER_HOST}, got {ranks}"
    for size_bytes in options.sizes or ():
        if size_bytes % 4:
            return f"--sizes: wanted whole float32 elements; got {size_bytes} bytes"
    if options.dtypes and list(options.dtypes) != [_DTYPE]:
        return f"--dtypes: the suite {NAME} knows float32 alone; got {', '.join(options.dtypes)}"
    if options.peers:
        return f"--peers: the suite {NAME} has none"
    return None


def run(options: argparse.Namespace) -> int:
    """Predict all cases, print and write them; give the exit status.

    Parameters
    ----------
    options : argparse.Namespace
        Of the command line, checked.
    """
    progress = Progress()
    predictions: list[Prediction] = []
    for size_bytes in options.sizes or _DEFAULT_BYTES:
        for ranks in options.ranks or DEFAULT_RANKS:
            progress.step(f"{format_bytes(size_bytes)}, {ranks} ranks")
            try:
                prediction = predict(size_bytes, ranks)
            except CocollError as error:
                progress.say(f"{format_bytes(size_bytes)}, {ranks} ranks: {error}")
                return 1
            predictions.append(prediction)
            progress.say(_line(prediction))
            if options.json:
                # Written as they come, so that a run that is stopped leaves what it has.
                lines = [json.dumps(one.to_json()) for one in predictions]
                options.json.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.plot:
        draw(predictions, options.plot)
        progress.say(f"drew {options.plot}")
    progress.say("done")
    return 0


def predict(size_bytes: int, ranks: int) -> Prediction:
    """Plan and simulate one case.

    Parameters
    ----------
    size_bytes : int
        Of the gradients of one rank.
    ranks : int
        GPUs, eight a host.
    """
    started = time.perf_counter()
    hosts = ranks // _RANKS_PER_HOST
    topology = load_preset(f"{_PRESET}:{hosts}")
    count = size_bytes // 4
    spec = reduce_spec(_DTYPE, "adam")
    question = Question("allreduce", spec, count, topology, staging_bytes=_STAGING_BYTES)
    explanation = explain_question(question, alternatives=False)
    return Prediction(
        suite=NAME,
        case=f"{format_bytes(size_bytes)}/{_PRESET}",
        operation="allreduce_fused",
        dtype=_DTYPE,
        ranks=ranks,
        hosts=hosts,
        elements=count,
        bytes=size_bytes,
        memory="symmetric",
        implementation="cocoll",
        algorithm=explanation.algorithm,
        predicted_seconds=explanation.predicted_nanoseconds / 1e9,
        limit_seconds=explanation.bound.nanoseconds / 1e9,
        fraction_of_limit=explanation.fraction,
        messages=explanation.messages,
        steps=explanation.steps,
        simulated_ranks=explanation.simulated_ranks,
        simulation_seconds=time.perf_counter() - started,
        command=_command(size_bytes, ranks),
        commit=commit_of(_ROOT),
        machine=describe_machine(),
    )


def _command(size_bytes: int, ranks: int) -> str:
    python = python_below(_ROOT)
    return f"{python} benchmarks/run.py {NAME} --ranks {ranks} --sizes {format_bytes(size_bytes)}"


def _line(prediction: Prediction) -> str:
    return (
        f"{NAME} {prediction.case}, {prediction.ranks} ranks: {prediction.algorithm} "
        f"{format_seconds(prediction.predicted_seconds)} predicted => "
        f"{100 * prediction.fraction_of_limit:.0f}% of the limit of "
        f"{format_seconds(prediction.limit_seconds)} ({prediction.simulated_ranks} ranks simulated "
        f"in {format_seconds(prediction.simulation_seconds)})"
    )


def draw(predictions: Sequence[Prediction], path: Path) -> None:
    """Draw predicted times and limits against ranks.

    Parameters
    ----------
    predictions : sequence of Prediction
        At least one.
    path : Path
        The picture.

    Raises
    ------
    PlotError
        matplotlib is not installed.
    """
    pyplot = load_pyplot()
    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, size_bytes in enumerate(sorted({one.bytes for one in predictions})):
        cases = sorted((one for one in predictions if one.bytes == size_bytes), key=_ranks_of)
        ranks = [one.ranks for one in cases]
        colour = f"C{number % 10}"
        size = format_bytes(size_bytes)
        times = [one.predicted_seconds for one in cases]
        limits = [one.limit_seconds for one in cases]
        axis.plot(ranks, times, marker="o", color=colour, label=f"{size}, predicted")
        axis.plot(ranks, limits, linestyle="--", color=colour, label=f"{size}, lower bound")
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="ranks (GPUs, 8 a host)",
        ylabel="seconds",
        title=f"allreduce_fused(adam), {_DTYPE}, {_PRESET} hosts",
    )
    axis.set_xscale("log", base=2)
    axis.grid(visible=True, alpha=0.3)
    axis.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _ranks_of(prediction: Prediction) -> int:
    return prediction.ranks
