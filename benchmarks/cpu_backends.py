"""Run the CPU backends of sentence-transformers in processes of their own, as peers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from common import Figure, Results, paired, rate, repeats_of
from cpu_backend_child import BACKENDS
from numpy.typing import NDArray
from texts import sentences

CHILD = Path(__file__).with_name("cpu_backend_child.py")
REFERENCE = "torch_fp32"
EXACT = ("fp32", "bf16")  # our precisions among which auto chooses
CALIBRATION_TEXTS = 300
SAMPLE = 8  # inputs on which all programs are tried
SLOWEST = 4  # times that a program may be slower than the fastest, and still compute all inputs
Inputs = Sequence[str] | Sequence[tuple[str, str]]


def add_peer_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the peers."""
    parser.add_argument(
        "--peer-python",
        metavar="PYTHON",
        default=sys.executable,
        help="Python of the backends that are not torch: an environment with "
        "sentence-transformers[onnx,openvino], nncf and datasets; default: this Python",
    )
    parser.add_argument(
        "--peers", default=",".join(BACKENDS), help="backends to compare with; default: all"
    )


class Backend:
    """A process that runs one backend.

    Raises:
        ChildProcessError: The backend cannot be opened; its packages may be missing.
    """

    def __init__(self, python: str, *arguments: str) -> None:
        self._child = subprocess.Popen(
            [python, str(CHILD), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if arguments[2] != REFERENCE else None,
            text=True,
        )
        self._answer("ready")

    def rate(self, inputs: Inputs, batch_size: int = 32) -> float:
        """Return the inputs a second of one call; 32 is the library's default batch size."""
        return len(inputs) / self._compute(inputs, batch_size, None)[0]

    def processor_rate(self, inputs: Inputs) -> float:
        """Return the inputs per second of processor time of one call."""
        return len(inputs) / self._compute(inputs, 32, None)[1]

    def outputs(self, inputs: Inputs) -> NDArray[np.float32]:
        """Return vectors or scores, float32 (n, ...)."""
        with TemporaryDirectory() as scratch:
            path = Path(scratch, "outputs.npy")
            self._compute(inputs, 32, str(path))
            found: NDArray[np.float32] = np.load(path)
        return found

    def close(self) -> None:
        """End the process by closing its input."""
        self._child.communicate()

    def _compute(self, inputs: Inputs, batch_size: int, out: str | None) -> list[float]:
        assert self._child.stdin is not None
        work = {"inputs": inputs, "batch_size": batch_size, "out": out}
        self._child.stdin.write(json.dumps(work) + "\n")
        self._child.stdin.flush()
        return list(map(float, self._answer("seconds").split()))

    def _answer(self, word: str) -> str:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        _, errors = self._child.communicate()
        last = (errors or "").strip().rpartition("\n")[2]
        raise ChildProcessError(f"exit code {self._child.returncode}: {last}")


@contextmanager
def open_backends(
    options: argparse.Namespace, kind: Literal["bi-encoder", "cross-encoder"], model: Path
) -> Iterator[dict[str, Backend]]:
    """Open the backends that ``options`` name; one that cannot be opened is left out, with a line.

    OpenVINO's int8 model is calibrated on sentences of the source of `texts.sentences`.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        calibration = scratch / "calibration"
        calibration.mkdir()
        _, texts = sentences(sys.maxsize)
        chosen = texts[-CALIBRATION_TEXTS:]  # the benchmarks take sentences from the front
        lines = "".join(json.dumps({"sentence": text}) + "\n" for text in chosen)
        (calibration / "train.jsonl").write_text(lines, encoding="utf-8")
        found = {}
        for name in options.peers.split(","):
            python = sys.executable if name.startswith("torch") else options.peer_python
            try:
                found[name] = Backend(
                    python, kind, str(model), name, str(calibration), str(scratch)
                )
            except ChildProcessError as error:
                print(f"{name} was not measured: {error}", flush=True)
                continue
            stack.callback(found[name].close)
        yield found


@dataclass(frozen=True, slots=True)
class Program:
    """One way to compute the vectors or scores of some inputs.

    Attributes:
        rate: Computes the inputs once, and returns the inputs a second.
        outputs: Returns the vectors or scores of the inputs, float32 (n, ...).
    """

    rate: Callable[[Inputs], float]
    outputs: Callable[[Inputs], NDArray[np.float32]]

    @classmethod
    def of(cls, compute: Callable[[Any], NDArray[np.float32]]) -> Program:
        """Make a program of a function of this process that returns the outputs."""
        return cls(lambda inputs: rate(len(inputs), partial(compute, inputs)), compute)


def measure_all(
    results: Results,
    source: str,
    ours: Mapping[str, Program],
    peers: Mapping[str, Program],
    inputs: Inputs,
    unit: str,
) -> dict[str, NDArray[np.float32]]:
    """Measure our precisions and all peers in turns, and add the figures.

    ``SOURCE_PRECISION`` compares each of our precisions with the library in fp32,
    ``SOURCE_auto_of_best`` our auto with the faster of fp32 and bf16, and
    ``SOURCE_PRECISION_against_PEER`` auto and int8, if we have it, with the other peers.

    A program that computes the first inputs at less than a quarter of the fastest program's speed
    would take hours on a CPU that lacks the instructions of its number type. It computes only these
    inputs; a line and the figure ``SOURCE_PROGRAM_inputs`` say so.

    Returns:
        The outputs of each of our precisions, and of each peer under "peer NAME", for as many of
        the first inputs as it computes.
    """
    every = dict(ours) | {f"peer {name}": program for name, program in peers.items()}
    sample = inputs[:SAMPLE]
    for program in every.values():
        program.rate(sample)  # warms up
    speeds = {name: program.rate(sample) for name, program in every.items()}
    work = {}
    for name, speed in speeds.items():
        work[name] = inputs if speed * SLOWEST >= max(speeds.values()) else sample
        if len(work[name]) < len(inputs):
            results.add(f"{source}_{name.replace(' ', '_')}_inputs", Figure(len(sample), "inputs"))
            print(f"{name} computes {speed:.2g} {unit}: {len(sample)} of the inputs.", flush=True)
    rates: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(repeats_of(results.options)):
        for name, program in every.items():
            rates[name].append(program.rate(work[name]))
    for name in ours if REFERENCE in peers else ():
        results.add(f"{source}_{name}", paired(rates[name], rates[f"peer {REFERENCE}"], unit=unit))
    best = max(EXACT, key=lambda name: float(np.median(rates[name])))
    results.add(f"{source}_auto_of_best", paired(rates["auto"], rates[best], unit=unit))
    for mine in [name for name in ours if name not in EXACT]:
        for peer in peers:
            figure = paired(rates[mine], rates[f"peer {peer}"], unit=unit)
            results.add(f"{source}_{mine}_against_{peer}", figure)
    return {name: program.outputs(work[name]) for name, program in every.items()}


def add_cosines(
    results: Results, name: str, got: NDArray[np.float32], reference: NDArray[np.float32]
) -> None:
    """Add the smallest and the mean cosine of vectors of the same texts, (n, dim) each.

    The reference may have further texts after these.
    """
    reference = reference[: len(got)]
    norms = np.linalg.norm(got, axis=1) * np.linalg.norm(reference, axis=1)
    cosines = np.einsum("ij,ij->i", got, reference) / norms
    results.add(f"{name}_min_cosine", Figure(float(cosines.min()), "cosine"))
    results.add(f"{name}_mean_cosine", Figure(float(cosines.mean()), "cosine"))
