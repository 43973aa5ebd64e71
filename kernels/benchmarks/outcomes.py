"""A pytest plugin for tests in bounded time: ``-p benchmarks.outcomes``.

Outcomes are written after every test, so that a run which is stopped leaves them; no test is started after the time
limit; and several processes can share the tests out, since compiling kernels takes most of the time.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.environment import write

NOT_RUN = "not run"


class Outcomes:
    """The outcome of every test of this process, by its id."""

    def __init__(self, path: Path, deadline: float, share: tuple[int, int]) -> None:
        self._path, self._deadline, self._share = path, deadline, share
        self._tests: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)  # after the selection by mark
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep every n-th test."""
        first, step = self._share
        items[:] = items[first::step]
        self._tests = {item.nodeid: NOT_RUN for item in items}
        self._write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended; a failure with the end of its traceback."""
        if report.when == "call" or report.outcome != "passed":
            self._tests[report.nodeid] = f"failed: {report.longreprtext[-2000:]}" if report.failed else report.outcome
            self._write()

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Let no other test start after the deadline."""
        if nextitem is not None and time.monotonic() > self._deadline:
            item.session.shouldstop = "time limit"

    def _write(self) -> None:
        write(self._path, {"tests": self._tests})


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options."""
    parser.addoption("--json", type=Path, required=True, help="where outcomes are written")
    parser.addoption("--budget", type=float, required=True, help="seconds after which no test is started")
    parser.addoption("--share", nargs=2, type=int, default=(0, 1), metavar=("I", "N"), help="take the I-th of N shares")


def pytest_configure(config: pytest.Config) -> None:
    """Start the clock."""
    deadline = time.monotonic() + config.getoption("--budget")
    config.pluginmanager.register(Outcomes(config.getoption("--json"), deadline, tuple(config.getoption("--share"))))
