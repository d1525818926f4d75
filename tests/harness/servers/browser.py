"""A real Chromium, without a window, driven by Selenium, and `berth console` or `berth replay` to look at.

with console("--nats", address, folder=tmp_path) as page_server, browser() as driver:
    driver.get(page_server.url)
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver

from harness.servers.child_processes import die_with_parent

T = TypeVar("T")
SECONDS = 30.0
_URL = re.compile(r"^(?:console|page) at (http://\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningConsole:
    """A `berth console`, or a `berth replay --browse`, that serves."""

    url: str
    process: subprocess.Popen[bytes]
    said: Path

    def interrupt(self) -> int:
        """End it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(SECONDS)


@contextmanager
def console(*arguments: object, folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[RunningConsole]:
    """`berth console` with these arguments on a free port; it has ended when the block has."""
    with _serving("console", *arguments, folder=folder, environment=environment) as running:
        yield running


@contextmanager
def browsed(recording: Path, *arguments: object, folder: Path) -> Iterator[RunningConsole]:
    """`berth replay --browse` of a recording on a free port; it has ended when the block has."""
    with _serving("replay", recording, "--browse", *arguments, folder=folder) as running:
        yield running


@contextmanager
def _serving(
    *arguments: object, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[RunningConsole]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_NATS")}
    command = [sys.executable, "-m", "berth_cli", *map(str, arguments)]
    if "--port" not in command:
        command += ["--port", "0"]
    printed, said = folder / "page.out", folder / "page.err"
    with printed.open("wb") as out, said.open("wb") as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=clean | dict(environment or {}),
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one call into libc
        )
    try:
        found = until(lambda: _URL.search(printed.read_text()), "the page to be served", process, said)
        yield RunningConsole(url=found[1], process=process, said=said)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(SECONDS)


HURRY = """
for (const name of ["setTimeout", "setInterval"]) {
  const original = window[name];
  window[name] = (work, ms, ...more) => original(work, ms / FACTOR, ...more);
}
const now = performance.now.bind(performance);
performance.now = () => now() * FACTOR;
const frame = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (draw) => frame((at) => draw(at * FACTOR));
"""


@contextmanager
def browser(*, width: int = 1280, height: int = 800, dark: bool = False, times_faster: int = 1) -> Iterator[WebDriver]:
    """A Chromium with nothing in it; it has ended when the block has. For its pages, time passes `times_faster`."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium is not None
    assert chromedriver is not None
    options = Options()
    options.binary_location = chromium
    for flag in ("--headless=new", "--disable-dev-shm-usage", "--disable-gpu", f"--window-size={width},{height}"):
        options.add_argument(flag)
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")  # which Chromium refuses to be without as root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        if times_faster > 1:
            hurry = {"source": HURRY.replace("FACTOR", str(times_faster))}
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", hurry)
        yield driver
    finally:
        driver.quit()


def until(
    found: Callable[[], T], what: str, process: subprocess.Popen[bytes] | None = None, said: Path | None = None
) -> T:
    """Poll until something is found; fails with the process's last words at the deadline or when it has ended."""
    deadline = time.monotonic() + SECONDS
    while not (answer := found()):
        words = said.read_text(errors="replace")[-2000:] if said is not None else ""
        assert process is None or process.poll() is None, f"it ended with {process.returncode}: {words}"
        assert time.monotonic() < deadline, f"waited {SECONDS} s for {what}: {words}"
        time.sleep(0.05)
    return answer


def opened(driver: WebDriver, url: str) -> None:
    """Open the page anew, also where only the part after # differs."""
    driver.get("about:blank")
    driver.get_log("browser")  # of the page before
    driver.get(url)


SHOWN = """
const [selector, pattern, click] = arguments;
for (const each of document.querySelectorAll(selector)) {
  if (!each.checkVisibility() || !new RegExp(pattern, "s").test(each.innerText)) continue;
  if (click) each.click();
  return [each.innerText];
}
return null;
"""
"""In one step: the page may write its elements anew at any moment."""


def shown(driver: WebDriver, selector: str, pattern: str = "", *, click: bool = False) -> str:
    """Wait until an element shows a text that matches; returns the text."""

    def found() -> list[str] | None:
        return driver.execute_script(SHOWN, selector, pattern, click)

    try:
        return until(found, f"{selector!r} with {pattern!r}")[0]
    except AssertionError as error:
        texts = driver.execute_script(TEXTS, selector)
        raise AssertionError(f"{error} of {texts}") from None


def main_thread_seconds(driver: WebDriver) -> float:
    """CPU of the page's main thread: other processes do not count, however busy the machine is."""
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(each["value"] for each in found if each["name"] == "TaskDuration")


TEXTS = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText.slice(0, 300));"


def press(driver: WebDriver, selector: str, pattern: str = "") -> None:
    """Click an element once it shows a text that matches."""
    shown(driver, selector, pattern, click=True)


def severe(driver: WebDriver) -> list[str]:
    """What the browser complains about since the last call: a script's error, a broken policy, a missing file."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
