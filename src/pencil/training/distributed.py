"""Several processes that train together: the process group, and its launcher on one machine."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pencil.errors import RecipeError, TrainingError, reason_of

TIMEOUT = timedelta(minutes=10)
"""Timeout for a process that does not answer; a process that dies is noticed at once."""
LAUNCHER = "PENCIL_LAUNCHER_PID"
GRACE = 25.0
"""Seconds that the other processes have to exit on their own once one has failed."""


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask training to save and stop: SIGTERM, SIGINT, and SIGHUP unless nohup ignores it.

    An ignored SIGINT is still one of them: shells ignore it for programs in the background, which `kill -INT` may stop.
    """
    found = [signal.SIGTERM, signal.SIGINT]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # Windows has no SIGHUP
        found.append(signal.SIGHUP)
    return found


class World:
    """The processes of one training. This class is a single process; :class:`ProcessGroup` is several.

    Every global batch is split into one part per rank, in order, so that the parts of all ranks together are the batch
    of a single process.
    """

    rank, size = 0, 1

    def local(self, rows: Tensor) -> Tensor:
        """Return this rank's part of these rows."""
        return rows

    def all_gather(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Return the rows of all ranks in order, ``counts`` of each; this rank's rows keep their gradient."""
        return rows

    def all_gather_local(self, rows: Tensor, total: int) -> Tensor:
        """Return the rows of all ranks, where each has its :meth:`local` part of ``total`` rows."""
        return self.all_gather(rows, [len(part) for part in torch.arange(total).tensor_split(self.size)])

    def all_gather_ints(self, *values: int) -> list[tuple[int, ...]]:
        """Return the integers of every rank."""
        return [values]

    def all_to_all(self, rows: Tensor, ranks: Tensor) -> tuple[Tensor, list[int]]:
        """Send each row to its rank; return the rows received, rank by rank, and how many came from each."""
        return rows, [len(rows)]

    def return_to_senders(self, rows: Tensor, counts: list[int], ranks: Tensor) -> Tensor:
        """Answer :meth:`all_to_all` with one row per row received; return the answers in request order."""
        return rows

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        return values

    def broadcast_object(self, value: Any) -> Any:
        """Return the value that rank 0 passed."""
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the values that all ranks passed."""
        return [value]

    def wrap_ddp(self, network: nn.Module) -> nn.Module:
        """Return the network with gradients averaged over all ranks."""
        return network

    def broadcast_buffers(self, network: nn.Module) -> None:
        """Copy rank 0's buffers (batch statistics) to every rank, because DDP averages only gradients."""

    def leave(self) -> None:
        """Leave the process group if it was joined here."""


class ProcessGroup(World):
    """Several processes, connected by torch.distributed: NCCL between GPUs, gloo elsewhere."""

    def __init__(self, device: torch.device):
        self.device = device
        self.joined_here = not dist.is_initialized()  # a caller's own process group is not destroyed
        if self.joined_here:
            with _peer_errors():
                _connect("nccl" if device.type == "cuda" else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def local(self, rows: Tensor) -> Tensor:
        return rows.tensor_split(self.size)[self.rank]

    def all_gather(self, rows: Tensor, counts: list[int]) -> Tensor:
        longest = max(counts)
        if longest == 0:  # a batch without any readable row on any rank
            return rows
        sent = rows.detach().to(self.device)
        if len(sent) < longest:  # the collective needs parts of equal length
            sent = torch.cat([sent, sent.new_zeros(longest - len(sent), *sent.shape[1:])])
        received = sent.new_empty(self.size * longest, *sent.shape[1:])
        with _peer_errors():
            dist.all_gather_into_tensor(received, sent.contiguous())
        parts = [part[:count].to(rows.device) for part, count in zip(received.split(longest), counts, strict=True)]
        parts[self.rank] = rows
        return torch.cat(parts)

    def all_gather_ints(self, *values: int) -> list[tuple[int, ...]]:
        sent = torch.tensor(values, device=self.device)
        received = sent.new_empty(self.size * len(values))
        with _peer_errors():
            dist.all_gather_into_tensor(received, sent)
        return [tuple(part) for part in received.view(self.size, -1).tolist()]

    def all_to_all(self, rows: Tensor, ranks: Tensor) -> tuple[Tensor, list[int]]:
        counts = torch.bincount(ranks, minlength=self.size).tolist()
        incoming = [asked[self.rank] for asked in self.all_gather_ints(*counts)]
        return self._exchange(rows[ranks.argsort(stable=True)], counts, incoming), incoming

    def return_to_senders(self, rows: Tensor, counts: list[int], ranks: Tensor) -> Tensor:
        sent = torch.bincount(ranks, minlength=self.size).tolist()
        by_rank = self._exchange(rows, counts, sent)
        in_order = torch.empty_like(by_rank)
        in_order[ranks.argsort(stable=True)] = by_rank
        return in_order

    def _exchange(self, rows: Tensor, outgoing: list[int], incoming: list[int]) -> Tensor:
        received = rows.new_empty(sum(incoming), *rows.shape[1:], device=self.device)
        with _peer_errors():
            dist.all_to_all_single(received, rows.to(self.device).contiguous(), incoming, outgoing)
        return received.to(rows.device)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        summed = values.detach().to(self.device, copy=True)
        with _peer_errors():
            dist.all_reduce(summed)
        return summed.to(values.device)

    def broadcast_object(self, value: Any) -> Any:
        box = [value]
        with _peer_errors():
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def all_gather_object(self, value: Any) -> list[Any]:
        received: list[Any] = [None] * self.size
        with _peer_errors():
            dist.all_gather_object(received, value)
        return received

    def wrap_ddp(self, network: nn.Module) -> nn.Module:
        """On GPUs batch statistics cover all ranks; on CPUs they cover each rank, and rank 0's are kept."""
        if self.device.type == "cuda":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        with _peer_errors():
            return DistributedDataParallel(network)

    def broadcast_buffers(self, network: nn.Module) -> None:
        buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        if not buffers:
            return
        flat = torch.cat([buffer.detach().flatten() for buffer in buffers])
        with _peer_errors():
            dist.broadcast(flat, src=0)
        for buffer, values in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(values.view_as(buffer))

    def leave(self) -> None:
        if self.joined_here:
            dist.destroy_process_group()


SINGLE_PROCESS = World()


def join(device: torch.device) -> World:
    """Return the world in which torchrun or ``pencil train --processes`` launched this process."""
    launched = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    return ProcessGroup(device) if launched > 1 else SINGLE_PROCESS


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """Join the world for the duration of a block: joined once, left once."""
    with _stopping_without_launcher():
        world = join(device)
        try:
            yield world
        finally:
            world.leave()


@contextmanager
def _stopping_without_launcher() -> Iterator[None]:
    """Request a stop once the launcher is gone, because nothing else would end this process.

    The watching thread is joined at the end: a thread that runs during interpreter shutdown could abort the process.
    """
    if LAUNCHER not in os.environ:
        yield
        return
    launcher, ended = int(os.environ[LAUNCHER]), threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, name="pencil-launcher", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _connect(backend: str) -> None:
    """Connect under a prefix of this start, because torchrun's store still has the addresses of dead processes."""
    store, rank, size = next(dist.rendezvous("env://", timeout=TIMEOUT))  # type: ignore[attr-defined]
    token = _welcome(store, size) if rank == 0 else _ask_for_token(store, rank)
    prefixed = dist.PrefixStore(f"pencil/{token}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=size, timeout=TIMEOUT)


def _welcome(store: Any, size: int) -> str:
    """Send every other rank a token that no earlier start had, and return it.

    The restart count cannot serve as token, because each torchrun agent counts its own restarts. A rank asks under a
    random name, so an answer to a dead process has no effect, and rank 0 waits for the process that replaced it.
    """
    token, waiting, end = uuid.uuid4().hex, set(range(1, size)), time.monotonic() + TIMEOUT.total_seconds()
    while waiting:
        for rank in sorted(waiting):
            if not store.check([f"pencil/asks/{rank}"]):
                continue
            name = store.get(f"pencil/asks/{rank}").decode()
            store.set(f"pencil/token/{name}", token)
            if store.check([f"pencil/has/{name}/{token}"]):
                waiting.remove(rank)
        if time.monotonic() > end:
            raise TimeoutError(f"rank {min(waiting)} has not joined within {TIMEOUT.total_seconds():.0f} s")
        time.sleep(0.01)
    return token


def _ask_for_token(store: Any, rank: int) -> str:
    """Return the token of this start, which rank 0 chose."""
    name = uuid.uuid4().hex
    store.set(f"pencil/asks/{rank}", name)
    token: str = store.get(f"pencil/token/{name}").decode()
    store.set(f"pencil/has/{name}/{token}", b"")
    return token


@contextmanager
def _peer_errors() -> Iterator[None]:
    """A process that dies closes its connections; the others report this and exit."""
    try:
        yield
    except (dist.DistError, RuntimeError, TimeoutError) as error:
        raise lost_contact(error) from error


def lost_contact(error: BaseException) -> TrainingError:
    """Return the error of a rank that cannot reach another one."""
    rank, reason = os.environ.get("RANK", "0"), reason_of(error)[:200]
    return TrainingError(
        f"rank {rank} lost contact with another process ({reason}), which ended or cannot be reached; see its own "
        "message; checkpoints are kept, and --resume continues from them."
    )


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run ``python -m pencil ARGUMENTS`` in this many processes on this machine; return 0, or an exit code.

    The launcher owns the rendezvous store, so no other program can take its port before the processes use it. The
    processes have their own session: a terminal signals only the launcher, which passes the signal on to each
    process once. When one fails, the others lose contact and exit, or are killed after a grace period. When the
    launcher dies, they save and stop. The command exits with the code of the process that failed: 128 + N if
    signal N killed it.
    """
    if processes < 1:
        raise RecipeError(f"--processes is {processes}; expected at least 1.")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)  # type: ignore[attr-defined]
    environment = {
        **os.environ,
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # workers connect to the launcher's store instead of opening one
        "TORCHELASTIC_RESTART_COUNT": "0",
        LAUNCHER: str(os.getpid()),
    }
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    command = [sys.executable, "-P", "-m", "pencil", *arguments]  # -P: ignore modules in the current folder
    workers = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, start_new_session=True
        )
        for rank in range(processes)
    ]

    def forward_signal(number: int, _frame: FrameType | None) -> None:
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)

    previous = {number: signal.signal(number, forward_signal) for number in stop_signals()}
    try:
        return _wait(workers)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for worker in workers:
            worker.kill()
            worker.wait()


def _wait(workers: Sequence["subprocess.Popen[bytes]"]) -> int:
    failed_at = None
    while any(worker.poll() is None for worker in workers):
        if failed_at is None and any(worker.poll() not in (None, 0) for worker in workers):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE:
            for worker in workers:
                worker.kill()
        time.sleep(0.05)
    return exit_code([worker.wait() for worker in workers])


def exit_code(codes: Sequence[int]) -> int:
    """Return one exit code for a group: the code of a process killed by a signal, otherwise the largest.

    A killed process is the cause; the others only lost contact with it. A negative code -N becomes 128 + N.
    """
    killed = [128 - code for code in codes if code < 0]
    return killed[0] if killed else max(codes)
