"""A real browser for tests: where it is, and what its pages did that they should not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_LOCAL = ("file:", "data:", "blob:", "about:")


def chromium_path() -> str | None:
    """Path of an installed Chromium or Chrome; None without one."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Watched:
    """A page of the browser, with its console errors, its uncaught errors and its requests beyond this machine."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.faults: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(120_000)  # ms; a machine that does other work needs more than the usual 30 s
        page.on("console", lambda message: message.type == "error" and self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: request.url.startswith(_LOCAL) or self.requests.append(request.url))

    def open(self, path: Path) -> Any:
        """Open a file, and give the browser's page."""
        self.page.goto(path.resolve().as_uri())
        return self.page

    def assert_quiet(self) -> None:
        """No error was logged or thrown, and nothing was asked of a network."""
        assert self.faults == []
        assert self.requests == []


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; it must be installed, see ``chromium_path``."""
    from playwright.sync_api import sync_playwright

    # Chromium's sandbox refuses to work for root.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()
