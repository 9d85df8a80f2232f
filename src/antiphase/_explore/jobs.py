"""Sends the page's newest request to the planning process (the worker), and caches complete answers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from antiphase._explore.settings import ExplorerSettings

KEPT_ANSWERS = 256
PATIENCE = 2.0  # seconds to wait for a worker to stop before it is killed

State = dict[str, Any]


class Jobs:
    """Manages the planning process. All methods are thread-safe and return immediately.

    The state of a request is a JSON object. "state" is "running", "done", "stopped" or "error". "parts" maps names to
    the parts of the page that are ready. While a request runs, "what" is the current activity, and "share" is the
    fraction of the work that is done. After an error, "message" and "hint" explain it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[ExplorerSettings, State] = OrderedDict()
        self._states: dict[int, State] = {}
        self._number = 0  # id of the newest request
        self._settings: ExplorerSettings | None = None  # settings of the newest request
        self._heard = -1  # id of the newest request that the worker has sent a message about
        self._deaf: subprocess.Popen[str] | None = None  # the last worker that was killed because it did not react
        self._closed = False
        self._process = self._started()

    def start(self, settings: ExplorerSettings) -> State:
        """Return the state of a request, and start the request unless it is already running or has a cached answer.

        If a request is started, the work on the previous request stops.
        """
        with self._lock:
            if settings in self._kept:
                self._kept.move_to_end(settings)
                return self._kept[settings]
            if settings != self._settings or self._states[self._number]["state"] != "running":
                self._submit(settings)
            return dict(self._states[self._number])

    def state(self, settings: ExplorerSettings) -> State:
        """Return the state of a request without starting the request."""
        with self._lock:
            if settings in self._kept:
                return self._kept[settings]
            if settings == self._settings:
                return dict(self._states[self._number])
            return {"state": "stopped", "parts": {}}

    def stop(self) -> None:
        """Stop the current work."""
        with self._lock:
            if self._settings is not None and self._states[self._number]["state"] == "running":
                before = self._states[self._number]["parts"]
                self._submit(None)
                self._states[self._number] = {"state": "stopped", "parts": before}

    def close(self) -> None:
        """End the planning process."""
        with self._lock:
            self._closed = True
            self._process.kill()
        self._listener.join()

    def _submit(self, settings: ExplorerSettings | None) -> None:
        """Send a request to the worker; None stops the current work."""
        busy = self._settings is not None and self._states[self._number]["state"] == "running"
        self._number += 1
        if settings is not None:
            self._settings = settings
        self._states = {self._number: {"state": "running", "parts": {}, "what": "starting", "share": 0.0}}
        self._send(settings)
        if busy:
            timer = threading.Timer(PATIENCE, self._kill_if_deaf, [self._process, self._number])
            timer.daemon = True
            timer.start()

    def _send(self, settings: ExplorerSettings | None) -> None:
        request: dict[str, Any] = {"id": self._number}
        if settings is not None:
            request["settings"] = settings.to_json()
        if self._process.poll() is not None:
            self._process = self._started()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # the worker has just died; `_listen` notices this and reports it
            pass

    def _kill_if_deaf(self, process: subprocess.Popen[str], number: int) -> None:
        """Kill the worker if it is still computing and has not reacted to request `number` or a later one."""
        with self._lock:
            if process is self._process and self._heard < number and not self._closed:
                self._deaf = process
                process.kill()

    def _started(self) -> subprocess.Popen[str]:
        # With -P, Python does not import modules from the current directory.
        command = [sys.executable, "-P", "-m", "antiphase._explore.worker"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        self._listener = threading.Thread(target=self._listen, args=[process], daemon=True)
        self._listener.start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._lock:
                self._hear(json.loads(line))
        process.wait()
        with self._lock:
            assert process.stdin is not None
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):  # closing flushes unsent data, which fails if the process has ended
                    stream.close()
            if self._closed or process is not self._process:
                return
            state = self._states.get(self._number)
            if state is None or state["state"] != "running":
                return
            if process is self._deaf:
                self._send(self._settings)
            else:
                state.update(state="error", message="The planner stopped unexpectedly.", hint="try fewer steps")

    def _hear(self, message: dict[str, Any]) -> None:
        number = message["id"]
        self._heard = max(self._heard, number)
        state = self._states.get(number)
        if state is None or state["state"] != "running":
            return
        if "progress" in message:
            state["what"], state["share"] = message["progress"]
        elif "part" in message:
            name, part = message["part"]
            state["parts"] = {**state["parts"], name: part}
        elif "error" in message:
            state["state"] = "error"
            state["message"], state["hint"] = message["error"]
        elif "stopped" in message:
            state["state"] = "stopped"
        else:
            state["state"] = "done"
            assert self._settings is not None
            self._kept[self._settings] = {"state": "done", "parts": state["parts"]}
            while len(self._kept) > KEPT_ANSWERS:
                self._kept.popitem(last=False)
