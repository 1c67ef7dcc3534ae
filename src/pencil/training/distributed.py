"""Many processes that train as one: who I am among them, what the others have, what all agree on."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pencil.errors import RecipeError, TrainingError

PATIENCE = timedelta(minutes=10)
"""How long to wait for a process that says nothing; one that dies is noticed at once."""


class World:
    """The processes of one training. This one stands alone; :class:`ProcessGroup` are many.

    Every global batch is cut into one piece per rank, in order, so that the pieces of all ranks together are the batch
    that one process would have taken.
    """

    rank, size = 0, 1

    def local(self, rows: Tensor) -> Tensor:
        """My piece of these rows."""
        return rows

    def all_gather(self, mine: Tensor, counts: list[int]) -> Tensor:
        """The rows of all ranks in order, ``counts`` of each; my own keep their gradient."""
        return mine

    def all_gather_local(self, mine: Tensor, total: int) -> Tensor:
        """The same for rows that :meth:`local` dealt out."""
        return self.all_gather(mine, [len(part) for part in torch.arange(total).tensor_split(self.size)])

    def all_gather_ints(self, *mine: int) -> list[tuple[int, ...]]:
        """The whole numbers that every rank says."""
        return [mine]

    def all_to_all(self, mine: Tensor, towards: Tensor) -> tuple[Tensor, list[int]]:
        """Send each row to the rank named for it; get what was sent here, rank by rank, and how many from each."""
        return mine, [len(mine)]

    def return_to_senders(self, answers: Tensor, counts: list[int], towards: Tensor) -> Tensor:
        """Answer what :meth:`all_to_all` brought: each rank gets one row for each that it sent, in its order."""
        return answers

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        return values

    def broadcast_object(self, thing: Any) -> Any:
        """What the first rank has, on every rank."""
        return thing

    def all_gather_object(self, thing: Any) -> list[Any]:
        """What every rank has, on every rank."""
        return [thing]

    def wrap_ddp(self, network: nn.Module) -> nn.Module:
        """The network with gradients averaged over all ranks."""
        return network

    def broadcast_buffers(self, network: nn.Module) -> None:
        """Give every rank the first one's buffers, which are not averaged as gradients are."""

    def leave(self) -> None: ...


class ProcessGroup(World):
    """Many processes, connected by torch.distributed: NCCL between GPUs, gloo elsewhere."""

    def __init__(self, device: torch.device):
        self.device = device
        self.is_ours = not dist.is_initialized()
        if self.is_ours:
            with _peers():
                _connect("nccl" if device.type == "cuda" else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def local(self, rows: Tensor) -> Tensor:
        return rows.tensor_split(self.size)[self.rank]

    def all_gather(self, mine: Tensor, counts: list[int]) -> Tensor:
        """Pieces are padded to the longest, as the collective wants them alike."""
        longest = max(counts)
        sent = mine.detach().to(self.device)
        if len(sent) < longest:
            sent = torch.cat([sent, sent.new_zeros(longest - len(sent), *sent.shape[1:])])
        received = sent.new_empty(self.size * longest, *sent.shape[1:])
        with _peers():
            dist.all_gather_into_tensor(received, sent.contiguous())
        pieces = [part[:count].to(mine.device) for part, count in zip(received.split(longest), counts, strict=True)]
        pieces[self.rank] = mine
        return torch.cat(pieces)

    def all_gather_ints(self, *mine: int) -> list[tuple[int, ...]]:
        sent = torch.tensor(mine, device=self.device)
        heard = sent.new_empty(self.size * len(mine))
        with _peers():
            dist.all_gather_into_tensor(heard, sent)
        return [tuple(part) for part in heard.view(self.size, -1).tolist()]

    def all_to_all(self, mine: Tensor, towards: Tensor) -> tuple[Tensor, list[int]]:
        counts = torch.bincount(towards, minlength=self.size).tolist()
        incoming = [asked[self.rank] for asked in self.all_gather_ints(*counts)]
        return self._exchange_rows(mine[towards.argsort(stable=True)], counts, incoming), incoming

    def return_to_senders(self, answers: Tensor, counts: list[int], towards: Tensor) -> Tensor:
        sent = torch.bincount(towards, minlength=self.size).tolist()
        sorted_answers = self._exchange_rows(answers, counts, sent)
        in_order = torch.empty_like(sorted_answers)
        in_order[towards.argsort(stable=True)] = sorted_answers
        return in_order

    def _exchange_rows(self, rows: Tensor, outgoing: list[int], incoming: list[int]) -> Tensor:
        received = rows.new_empty(sum(incoming), *rows.shape[1:], device=self.device)
        with _peers():
            dist.all_to_all_single(received, rows.to(self.device).contiguous(), incoming, outgoing)
        return received.to(rows.device)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        summed = values.detach().to(self.device, copy=True)
        with _peers():
            dist.all_reduce(summed)
        return summed.to(values.device)

    def broadcast_object(self, thing: Any) -> Any:
        box = [thing]
        with _peers():
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def all_gather_object(self, thing: Any) -> list[Any]:
        heard: list[Any] = [None] * self.size
        with _peers():
            dist.all_gather_object(heard, thing)
        return heard

    def wrap_ddp(self, network: nn.Module) -> nn.Module:
        """Batch statistics are those of all ranks on GPUs; elsewhere of each rank, and those of the first are kept."""
        if self.device.type == "cuda":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        with _peers():
            return DistributedDataParallel(network)

    def broadcast_buffers(self, network: nn.Module) -> None:
        buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        if not buffers:
            return
        flat = torch.cat([buffer.detach().flatten() for buffer in buffers])
        with _peers():
            dist.broadcast(flat, src=0)
        for buffer, values in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(values.view_as(buffer))

    def leave(self) -> None:
        """Only what was joined here: a caller's own process group stays."""
        if self.is_ours:
            dist.destroy_process_group()


def _connect(backend: str) -> None:
    """Under a name for each restart: torchrun's store still has the addresses of the processes that died."""
    store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))  # type: ignore[attr-defined]
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    named = dist.PrefixStore(f"pencil/{restart}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=named, rank=rank, world_size=size, timeout=PATIENCE)


SINGLE_PROCESS = World()


def expected_size() -> int:
    """How many processes the launcher (torchrun, or ``pencil train --processes``) has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def join(device: torch.device) -> World:
    """The world that this process was started in."""
    return ProcessGroup(device) if expected_size() > 1 else SINGLE_PROCESS


def agreed(thing: Any, device: torch.device) -> Any:
    """What the first process found on disk: the others may have looked after it had begun to write."""
    return join(device).broadcast_object(thing)


@contextmanager
def _peers() -> Iterator[None]:
    """A process that dies takes its connections along: the others say so and end."""
    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        raise lost_contact(error) from error


def lost_contact(error: BaseException) -> TrainingError:
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    rank = os.environ.get("RANK", "0")
    return TrainingError(
        f"rank {rank} lost contact with another process ({reason}); it ended or cannot be reached; "
        "look at its own message; what was saved is kept, and --resume goes on from there."
    )


GRACE = 25.0
"""Seconds that the others have to end by themselves once one has ended badly."""


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run ``python -m pencil ARGUMENTS`` in so many processes; the exit code is the worst of theirs, 0 at best.

    Signals go on to all of them. When one fails the others lose contact with it and end, or are made to.
    """
    if processes < 1:
        raise RecipeError(f"--processes is {processes}; expected at least 1.")
    environment = {**os.environ, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
    environment["MASTER_PORT"] = str(_free_port())
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    command = [sys.executable, "-m", "pencil", *arguments]
    workers = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return _wait(workers)
    finally:
        for number, handler in before.items():
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
    codes = [worker.wait() for worker in workers]
    first_bad = next((code for code in codes if code != 0), 0)
    return first_bad if len({code for code in codes if code != 0}) <= 1 else _worst(codes)


def _worst(codes: Sequence[int]) -> int:
    """A process that died tells more than those that lost contact with it; a signal is 128 and its number."""
    died = [128 - code for code in codes if code < 0]
    return died[0] if died else max(codes)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
