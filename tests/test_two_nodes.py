"""Two agents of torchrun, as on two machines: one is killed in training and started again, and the run is the same."""

import os
import signal
import subprocess
import sys
import time

import pytest
from ranks import free_port
from safetensors.torch import load_file
from test_resume_safety import epochs_done

import pencil

EPOCHS = 30
WORDS = ["train", "digits-symmetric-50", "--method", "pencil", "--model", "mlp", "--epochs", str(EPOCHS)]
WORDS += ["--set", "training.checkpoint_epochs=1", "--quiet"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
ENVIRONMENT["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else the agents of torch cannot replace a node
WITHIN = 1800
"""Seconds after which it hangs: minutes alone, far more on a machine with ten other jobs."""


class Agent:
    """``torchrun`` of one node in a process group of its own; its output is in a file."""

    def __init__(self, log, port, out, *, host):
        rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", f"--rdzv-conf=is_host={host}"]
        nodes = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=3"]
        command = [sys.executable, "-m", "torch.distributed.run", *nodes, *rendezvous, "-m", "pencil", *WORDS]
        self.log = log
        with log.open("a") as output:
            self.process = subprocess.Popen(
                [*command, "--out", str(out)],
                env=ENVIRONMENT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self):
        """Kill the agent and its worker at once, as a machine that loses its power."""
        for group in {self.process.pid, *map(os.getpgid, self._descendants(self.process.pid))}:
            os.killpg(group, signal.SIGKILL)
        self.process.wait()

    def _descendants(self, pid):
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
        children = [int(word) for word in found.stdout.split()]
        return children + [one for child in children for one in self._descendants(child)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    words = [*WORDS, "--processes", "2", "--out", str(out)]
    subprocess.run([sys.executable, "-m", "pencil", *words], env=ENVIRONMENT, check=True, capture_output=True)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["rank 1", "rank 0"])
def test_a_node_that_is_killed_and_started_again(dies, tmp_path, undisturbed):
    """The node that holds the rendezvous lives; ranks go by process id here, so the first one started is rank 0."""
    out, port = tmp_path / "run", free_port()
    hosts = (True, False) if dies == "rank 1" else (False, True)
    agents = [Agent(tmp_path / f"agent-{number}.log", port, out, host=host) for number, host in enumerate(hosts)]
    victim = hosts.index(False)
    try:
        wait_for(lambda: epochs_done(out) >= 3, agents)
        agents[victim].kill()
        assert epochs_done(out) < EPOCHS
        agents[victim] = Agent(tmp_path / "restarted.log", port, out, host=False)
        wait_for(lambda: all(agent.process.poll() is not None for agent in agents), [])
        assert [agent.process.returncode for agent in agents] == [0, 0], texts(tmp_path)
    finally:
        for agent in agents:
            if agent.process.poll() is None:
                agent.kill()
    whole, found = (pencil.open_run(path) for path in (undisturbed, out))
    assert found.labels.table.equals(whole.labels.table) and found.summary.epochs == EPOCHS
    weights = [load_file(path / "model.safetensors") for path in (undisturbed, out)]
    assert all((value == weights[1][name]).all() for name, value in weights[0].items())


def wait_for(condition, agents):
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        assert all(agent.process.poll() is None for agent in agents), agents[0].log.read_text()
        time.sleep(0.02)


def texts(folder):
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(folder.glob("*.log")))
