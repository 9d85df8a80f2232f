"""The planning process. It reads requests from stdin and writes answers to stdout, as one JSON object per line.

A request is {"id": 3, "settings": {...}}, or {"id": 3} to stop the work on earlier requests without starting new work.
Every request stops the work on the previous request. An answer is {"id": 3, ...}, where 3 is the id of the request. Its
other key is "progress", "part", "done", "stopped" or "error".
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from typing import Any, TextIO

from antiphase._errors import AntiphaseError
from antiphase._explore.answers import Answers
from antiphase._explore.settings import ExplorerSettings


class Stopped(Exception):  # this is not an error
    """Raised by the progress callback if a newer request has arrived."""


class PlanningWorker:
    """Answers only the newest request.

    Args:
        requests: text stream to read from, with one JSON object per line.
        answers: text stream to write to, with one JSON object per line.
    """

    def __init__(self, requests: TextIO, answers: TextIO) -> None:
        self._requests, self._out = requests, answers
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._newest = 0
        self._answers = Answers()

    def run(self) -> None:
        """Answer requests until the input ends."""
        threading.Thread(target=self._read, daemon=True).start()
        while (request := self._queue.get()) is not None:
            if request["id"] == self._newest and "settings" in request:
                self._answer(request)
            else:
                self._tell(request["id"], stopped=True)

    def _read(self) -> None:
        for line in self._requests:
            request = json.loads(line)
            self._newest = request["id"]
            self._queue.put(request)
        self._newest = -1  # stops the work on the last request
        self._queue.put(None)

    def _answer(self, request: dict[str, Any]) -> None:
        number = request["id"]

        def progress(what: str, share: float) -> None:
            if self._newest != number:
                raise Stopped
            self._tell(number, progress=[what, share])

        try:
            for name, part in self._answers.parts(ExplorerSettings.from_json(request["settings"]), progress):
                self._tell(number, part=[name, part])
            self._tell(number, done=True)
        except Stopped:
            self._tell(number, stopped=True)
        except AntiphaseError as error:
            self._tell(number, error=[error.message, error.hint])
        except MemoryError:
            self._tell(number, error=["There is not enough memory for these settings.", "use fewer steps"])

    def _tell(self, number: int, **message: Any) -> None:
        self._out.write(json.dumps({"id": number, **message}) + "\n")
        self._out.flush()


def main() -> None:
    """Run the worker. Anything that the library prints goes to stderr, so that stdout has only answers."""
    answers, sys.stdout = sys.stdout, sys.stderr
    PlanningWorker(sys.stdin, answers).run()


if __name__ == "__main__":
    main()
