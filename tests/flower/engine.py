"""Flower's own engines: the simulation on Ray, and a SuperLink with SuperNodes as processes on loopback.

Every process of a test has the test's own FLWR_HOME in its environment: by that it is known, and ended by its id.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
PATIENCE = 900.0


class Engine:
    """A SuperLink of the test's own, and commands that talk to it."""

    def __init__(self, home: Path, app: Path, *options: str) -> None:
        self.home, self.port = home, free_port()
        self.app = home / "app"
        self.started: list[subprocess.Popen[bytes]] = []
        shutil.copytree(app, self.app, ignore=shutil.ignore_patterns("__pycache__"))
        settings = (
            f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        (home / "config.toml").write_text(settings)
        link = ["--insecure", "--host", "127.0.0.1", "--port", str(self.port), *options]
        self.start("flower-superlink", "--disable-runtime-dependency-installation", *link)
        until(lambda: listens(self.port))

    def start(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        changed = {"PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_HOME": str(self.home), "FLWR_TELEMETRY_ENABLED": "0"}
        log = (self.home / f"{command}.log").open("ab")
        environment = {**os.environ, **changed, "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DISABLE_DOCKER_CPU_WARNING": "1"}
        with log:
            line = [BIN / command, *arguments]
            self.started.append(subprocess.Popen(line, env=environment, stdout=log, stderr=log, cwd=self.home))
        return self.started[-1]

    def run(self, config: str, *options: str) -> subprocess.Popen[bytes]:
        return self.start("flwr", "run", str(self.app), "test", "--stream", "-c", config, *options)

    def simulate(self, config: str, *options: str) -> None:
        """Run a simulation to its end. On a busy machine Ray gives up after 30 seconds; then it is started again."""
        for _ in range(6):
            (self.home / "flwr.log").unlink(missing_ok=True)
            ended(self.run(config, *options))
            if "node timed out during startup" not in (self.home / "flwr.log").read_text(errors="replace"):
                return

    def processes(self, part: str = "") -> list[int]:
        """Ids of the live processes that this engine started, directly or not, whose command line has `part`."""
        mark, found = f"FLWR_HOME={self.home}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables, line = (folder / "environ").read_bytes().split(b"\0"), (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            if mark in variables and part.encode() in line:
                found.append(int(folder.name))
        return found

    def kill(self, part: str = "") -> int:
        pids = self.processes(part)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)

    def log(self) -> str:
        return (self.home / "flwr.log").read_text(errors="replace")[-4000:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition, patience=PATIENCE):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.2)


def ended(process: subprocess.Popen[bytes]) -> None:
    process.wait(timeout=PATIENCE)


def start_node(link: Engine, partition: int, partitions: int = 5, **config: str) -> None:
    place = ["--superlink", f"127.0.0.1:{link.port}", "--port", str(free_port())]
    more = "".join(f" {name}={value}" for name, value in config.items())
    settings = f"partition-id={partition} num-partitions={partitions}{more}"
    link.start("flower-supernode", "--insecure", *place, "--node-config", settings)


@contextlib.contextmanager
def engines(home: Path):
    """A function that makes an engine; its processes are ended at the end."""
    made = []

    def make(app: Path, *options: str) -> Engine:
        made.append(Engine(home, app, *options))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            until(lambda each=each: each.kill() == 0, 60.0)
            for process in each.started:
                process.wait(timeout=60.0)
