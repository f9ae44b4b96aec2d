"""Chromium without a window, driven by chromedriver: nothing is downloaded, nothing leaves the machine."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--force-device-scale-factor=1",
)  # fmt: skip


def missing() -> str | None:
    """Why there is no browser here; `None` if there is."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"there is no {program} (Debian: apt install chromium chromium-driver)"
    return None


@contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[Any]:
    """A browser with an empty profile, gone when it is left."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    os.environ["SE_OFFLINE"] = "true"
    with tempfile.TemporaryDirectory(prefix="yosegi-chromium-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def set_size(driver: Any, width: int, height: int, *, phone: bool = False) -> None:
    """The size of what is looked at; a phone's is not bound to a window's least width."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone},
    )


def prefer(driver: Any, scheme: str) -> None:
    """The system's theme: light or dark."""
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )


def load(driver: Any, page: Path) -> None:
    """Open a page and wait until its charts are drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(page.resolve().as_uri())
    WebDriverWait(driver, 60).until(
        lambda d: d.execute_script("return document.documentElement.dataset.ready") == "yes"
    )


def settle(driver: Any) -> None:
    """Wait until what was changed is drawn."""
    driver.execute_async_script(
        "const done = arguments[0]; setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 300);"
    )


def picture(driver: Any, target: Path) -> None:
    """What is to be seen, as PNG."""
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": False})
    target.write_bytes(base64.b64decode(shot["data"]))
