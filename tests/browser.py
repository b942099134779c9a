"""A real browser without a window, spoken to over a pipe by the DevTools protocol."""

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60


def executable() -> str | None:
    """Of the browser in $CHROMIUM, or of one that is installed."""
    names = [os.environ["CHROMIUM"]] if os.environ.get("CHROMIUM") else NAMES
    return next(filter(None, map(shutil.which, names)), None)


def _above_ten(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
    os.close(descriptor)
    return moved


class Browser:
    """One page of a browser with a profile of its own in a folder."""

    def __init__(self, profile):
        commands, self.write_end = os.pipe()
        self.read_end, answers = os.pipe()
        # The browser reads commands from 3 and answers on 4, out of the way of which theirs are.
        commands, answers = (_above_ten(end) for end in (commands, answers))
        wiring = f'exec 3<&{commands} 4>&{answers} {commands}<&- {answers}>&-; exec "$@"'
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", wiring, "bash", executable(), *flags],
            pass_fds=(commands, answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        os.set_blocking(self.read_end, False)
        self.numbers, self.rest, self.events, self.session = itertools.count(1), b"", [], None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self.session = None
        self.call("Browser.close")
        self.process.wait(SECONDS)
        os.close(self.write_end)
        os.close(self.read_end)

    def call(self, method, **parameters):
        """The result of a command."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _next(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self.rest:
            assert time.monotonic() < end and self.process.poll() is None, "no answer"
            try:
                self.rest += os.read(self.read_end, 2**20)
            except BlockingIOError:
                time.sleep(0.005)
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, path, width, height=900, scheme="light") -> None:
        """Load a file in a window of this size; what was said before is forgotten."""
        self.events = []
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        colours = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=colours)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def said(self) -> list:
        """Errors, warnings and what was printed since the page was opened."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event["params"] for event in self.events if event.get("method") in kinds]

    def requested(self) -> list[str]:
        """Addresses outside of the page that it asked for."""
        sent = (e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent")
        urls = [each["request"]["url"] for each in sent]
        return [url for url in urls if not url.startswith(("file:", "data:"))]

    def run(self, script):
        """The value of an expression on the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def click(self, selector) -> None:
        """Click the middle of an element, as a user does."""
        place = f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center"}}); const r = e.getBoundingClientRect();
            return [r.x + r.width / 2, r.y + r.height / 2] }})()"""
        x, y = self.run(place)
        for kind in ("mousePressed", "mouseReleased"):
            parameters = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", **parameters)
