"""The connection to a Ray cluster: its machines, and processes on them. Only this module uses Ray.

Ray starts processes and sends calls to them. It does not repeat failed calls, so the modules that
use this one decide which calls to repeat.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypedDict, cast

from sbert_search.base.progress import note
from sbert_search.errors import ClusterError, ConfigError, install

OBJECT_STORE_BYTES = 256 << 20  # memory for shared objects of a cluster that `connect` starts
MORE_MACHINES = "connect more machines with `ray start --address=...`"  # for error messages
# Environment variables that are set to 0 while `connect` is open, unless the user has set them.
# By default Ray hides all GPUs from a process with no share of a GPU, and warns that a later
# version will not hide them. With RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0 it hides no GPU and does not
# warn.
_VARIABLES = {"RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"}
_CONNECT_S = 10.0
PATIENCE_S = 10.0  # after which a note says that a cluster has not answered; Ray tries for minutes
_FETCH_S = 5.0  # minimum wait for a result: a finished result may still have to be transferred


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of a cluster, with the CPUs and GPUs that Ray may use."""

    host: str
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Share:
    """The number of processes, and the CPUs and GPUs that each process gets."""

    processes: int
    cpus: int  # of each process; threads of its model unless OMP_NUM_THREADS is set
    gpus: int


class Lost(Exception):  # noqa: N818 (not an error of the user)
    """A process of the cluster, or its machine, has ended; calls to it must be made again."""


class Hung(Lost):
    """A process has not answered in time, for example because its machine is cut off."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"It has not answered for {timeout_s:,.0f} s.")
        self.timeout_s = timeout_s


class _Node(TypedDict):  # the keys are those of Ray
    NodeManagerHostname: str
    Alive: bool
    Resources: dict[str, float]


class _ActorClass(Protocol):
    def options(self, **options: object) -> _ActorClass: ...

    def remote(self) -> object: ...


class _Ray(Protocol):
    def is_initialized(self) -> bool: ...

    def init(self, **options: object) -> object: ...

    def shutdown(self) -> None: ...

    def nodes(self) -> list[_Node]: ...

    def remote(
        self, *, concurrency_groups: dict[str, int]
    ) -> Callable[[Callable[[], object]], _ActorClass]: ...

    def put(self, value: object) -> object: ...

    def kill(self, actor: object) -> None: ...

    def get(self, reference: object, *, timeout: float | None) -> object: ...

    def wait(
        self, references: list[object], *, num_returns: int, timeout: float
    ) -> tuple[list[object], list[object]]: ...


def _ray() -> _Ray:
    import ray

    return cast("_Ray", ray)


class Process:
    """A process on a machine of the cluster; it contains one object, whose methods can be called.

    Calls of the method ``own_thread`` run in a separate thread of the process.
    """

    def __init__(self, handle: object, own_thread: str | None = None) -> None:
        self._handle, self._own_thread = handle, own_thread

    def call(self, method: str, *arguments: object) -> Call:
        """Start a call of a method of the object, and return at once."""
        called = getattr(self._handle, method)
        if method == self._own_thread:
            called = called.options(concurrency_group=method)
        return Call(called.remote(*arguments))

    def end(self) -> None:
        """End the process if it is running."""
        with contextlib.suppress(Exception):  # the machine may be gone
            _ray().kill(self._handle)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a method in another process."""

    _reference: object
    _begun_s: float = field(default_factory=time.monotonic)

    def result(self, timeout_s: float | None = None) -> object:
        """Wait for the result and return it; an exception of the method is raised here.

        The time limit counts from the beginning of the call, but the wait is at least `_FETCH_S`.
        Raises `Lost` if the process has ended, and `Hung` if there is no result in time. An
        exception that cannot be sent to this process becomes a `ClusterError`.
        """
        from ray import exceptions

        left_s = None
        if timeout_s is not None:
            left_s = max(_FETCH_S, self._begun_s + timeout_s - time.monotonic())
        try:
            return _ray().get(self._reference, timeout=left_s)
        except exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            raise (cause if isinstance(cause, Exception) else error) from None
        except exceptions.GetTimeoutError:
            raise Hung(timeout_s or 0.0) from None
        except exceptions.UnserializableException as error:
            said = str(error).strip().splitlines()[-1]
            raise ClusterError(f"A process on the cluster failed: {said}") from None
        except exceptions.RayActorError as error:
            never_began = error.actor_init_failed
            raise Lost(_not_started(error) if never_began else _first_line(error)) from None
        except exceptions.RayError as error:
            raise Lost(_first_line(error)) from None


def wait_for_any(calls: Sequence[Call], timeout_s: float) -> list[Call]:
    """Wait until a call has finished, at most ``timeout_s``; return all finished calls."""
    wait = _ray().wait
    by_reference = {call._reference: call for call in calls}
    references = list(by_reference)
    # The first wait returns with one finished call; the second one finds all that have finished.
    ready, _ = wait(references, num_returns=1, timeout=timeout_s)
    if ready:
        ready, _ = wait(references, num_returns=len(references), timeout=0)
    return [by_reference[reference] for reference in ready]


class Cluster:
    """A connection to a cluster; made by `connect`."""

    def machines(self) -> list[Machine]:
        """List the machines that are alive."""
        return [
            Machine(
                node["NodeManagerHostname"],
                int(node["Resources"].get("CPU", 0)),
                int(node["Resources"].get("GPU", 0)),
            )
            for node in _ray().nodes()
            if node["Alive"]
        ]

    def start(
        self,
        make: Callable[[], object],
        share: Share,
        *,
        calls: int = 1,
        own_thread: str | None = None,
        restarts: bool = False,
    ) -> Process:
        """Request a process, and return at once; it starts as soon as a machine has room for it.

        Args:
            make: The class of the object in the process; its constructor has no arguments.
            share: What the process gets.
            calls: Number of calls that the process works on at the same time.
            own_thread: Name of a method whose calls run one after another in a separate thread, so
                that other calls do not wait for them.
            restarts: Whether Ray restarts the process, on any machine with room, when it has ended.
                Unfinished calls raise `Lost` then, and so do new calls until the process runs
                again.
        """
        groups = {} if own_thread is None else {own_thread: 1}
        actor = (
            _ray()
            .remote(concurrency_groups=groups)(make)
            .options(
                num_cpus=share.cpus,
                num_gpus=share.gpus,
                max_concurrency=calls,
                max_restarts=-1 if restarts else 0,
                scheduling_strategy="SPREAD",
            )
        )
        return Process(actor.remote(), own_thread)

    def put(self, value: object) -> object:
        """Copy a value to the cluster once, for several calls; return its reference."""
        return _ray().put(value)


@contextlib.contextmanager
def connect(address: str | None = None) -> Iterator[Cluster]:
    """Connect this process to a cluster: ``HOST:PORT``, or ``auto`` for the one on this machine.

    Without an address, the environment variable RAY_ADDRESS names the cluster. If it is not set, a
    cluster of this machine alone is started, and ends with this context. If this process is
    connected to Ray already, the address is ignored; that connection is used and stays open.
    """
    try:
        ray = _ray()
    except ModuleNotFoundError as error:
        raise ConfigError(f"--runner ray needs Ray: {install('ray')}.") from error
    if ray.is_initialized():  # the program that uses this package has connected to Ray
        yield Cluster()
        return
    address = address or os.environ.get("RAY_ADDRESS")
    own: dict[str, object] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    message = f"The Ray cluster {address} has not answered for {PATIENCE_S:.0f} s; still waiting."
    waiting = threading.Timer(PATIENCE_S, note, [message])
    with _quiet():
        try:
            if address:
                _require_listener(address)
                waiting.start()
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level="ERROR",
                **({} if address else own),
            )
        except Exception as error:
            where = f"The Ray cluster {address}" if address else "Ray on this machine"
            raise ClusterError(
                f"{where} cannot be reached: {_first_line(error)} Start it with `ray start "
                "--head`, and pass the address that this command prints. If the cluster has a "
                "token, set RAY_AUTH_MODE=token."
            ) from error
        finally:
            waiting.cancel()
        try:
            yield Cluster()
        finally:
            ray.shutdown()


def share_of(
    machines: Sequence[Machine],
    processes: int | None,
    *,
    on_gpu: bool,
    cpus: int | None = None,
) -> Share:
    """Compute how many processes to start, and how many CPUs and GPUs each gets.

    By default, there is a process for each GPU if ``on_gpu``, else one for each machine with CPUs;
    if the machines differ in size, a large one may get several processes, and a small one none. The
    default of ``cpus`` is the largest number with which all processes fit on the machines.
    """
    for name, number in (("workers", processes), ("cpus", cpus)):
        if number is not None and number < 1:
            raise ConfigError(f"{name} is {number}; it must be at least 1.")
    gpus = sum(m.gpus for m in machines)
    wanted = processes or (gpus if on_gpu else sum(m.cpus > 0 for m in machines))
    if on_gpu and not 1 <= wanted <= gpus:
        fewer = "fewer --workers, or " if processes and gpus else ""
        raise ConfigError(
            f"The cluster has {gpus} GPUs, and each worker needs one: {_counted(machines)}. "
            f"Pass {fewer}--device cpu."
        )

    def room(n_cpus: int) -> int:
        """Return the number of processes that the machines have room for."""
        fit = ((m.cpus // n_cpus, m.gpus) for m in machines)
        return sum(min(each) if on_gpu else each[0] for each in fit)

    sizes = range(max((m.cpus for m in machines), default=0), 0, -1) if cpus is None else [cpus]
    each = next((n for n in sizes if room(n) >= wanted), 0)
    if not wanted or not each:
        kind = " with a GPU each" if on_gpu else ""
        needed = f" of {cpus} CPUs" if cpus else ""
        ways = ["pass fewer --workers"] * bool(processes) + ["pass fewer cpus"] * bool(cpus)
        remedy = ", or ".join([*ways, MORE_MACHINES])
        raise ConfigError(
            f"The cluster has too few CPUs for {wanted:,} workers{needed}{kind}: "
            f"{_counted(machines)}. {remedy[0].upper()}{remedy[1:]}."
        )
    return Share(wanted, each, int(on_gpu))


def host_and_python() -> tuple[str, str]:
    """Return the name of this machine, and the versions that must be equal on all machines."""
    import platform

    import ray

    from sbert_search.version import __version__

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return platform.node(), f"sbert-search {__version__}, Python {python}, Ray {ray.__version__}"


def _require_listener(address: str) -> None:
    """Refuse an address at which nothing listens; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let Ray send no statistics and print no messages about lost processes to stdout."""
    from ray._private import worker  # noqa: PLC2701 (no public name)

    flag = "_worker_logs_enabled"  # `worker` has no type hints
    logs, added = getattr(worker, flag, True), dict.fromkeys(_VARIABLES - os.environ.keys(), "0")
    setattr(worker, flag, False)
    os.environ.update(added)
    try:
        yield
    finally:
        setattr(worker, flag, logs)
        for name in added:
            os.environ.pop(name, None)


def _counted(machines: Sequence[Machine]) -> str:
    return ", ".join(f"{m.host} has {m.cpus} CPUs and {m.gpus} GPUs" for m in machines) or "none"


def _not_started(error: Exception) -> str:
    """Return why a process could not create its object, such as that a package is missing."""
    said = str(error)
    place = re.search(r"\bip=([\w.:]+)", said)
    return (
        f"A process on {place[1] if place else 'a machine'} cannot start: "
        f"{said.strip().splitlines()[-1].strip().rstrip('.')}. Install the same versions of "
        "sbert-search, Ray and Python on all machines."
    )


def _first_line(error: BaseException) -> str:
    line = next(iter(str(error).strip().splitlines()), type(error).__name__).strip()
    return line if line.endswith(".") else f"{line}."
