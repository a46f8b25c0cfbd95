"""The boxes of code of the built site that scroll in a real browser: ``docsite.boxes [CHROMIUM]``.

A page of this program's own loads each page of the site in a frame as wide as a small screen, and measures its boxes.
It is served on the loopback address, since pages of files may not look into each other.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

SITE: Final = Path(__file__).resolve().parents[2] / "out/site"
WIDTH: Final = 1280
"""Pixels of the window, as of many laptops."""
LONGEST: Final = 120
"""Characters of a line that has to fit without a break; longer ones may go on in the next."""
SECONDS: Final = 90
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
MEASURE: Final = """<!doctype html><body><script>
const pages = PAGES, found = [];
async function look(page) {
  const frame = document.createElement("iframe");
  frame.style = "width: WIDTHpx; height: 900px; border: 0";
  frame.src = "/" + page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  for (const code of frame.contentDocument.querySelectorAll("pre > code")) {
    const lines = code.textContent.split("\\n").sort((a, b) => b.length - a.length);
    if (lines[0].length <= LONGEST) code.style.whiteSpace = "pre";
    if (code.clientWidth > 0 && code.scrollWidth > code.clientWidth) {
      found.push([page, code.scrollWidth - code.clientWidth, lines[0]]);
    }
  }
  frame.remove();
}
(async () => {
  let looked = 0;
  try {
    for (const page of pages) { await look(page); looked += 1; }
  } catch (error) { looked = String(error); }
  await fetch("/", {method: "POST", body: JSON.stringify([looked, found])});
})();
</script>"""


class Handler(SimpleHTTPRequestHandler):
    """The files of the site; takes what the page has measured."""

    measured: queue.SimpleQueue[bytes]

    def do_POST(self) -> None:
        """Take it."""
        self.measured.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the name of http.server
        """Say nothing."""


def boxes(browser: str, site: Path = SITE) -> tuple[int, list[tuple[str, int, str]]]:
    """How many pages there are; of each box that scrolls: its page, the pixels that it lacks, its longest line."""
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.name != "404.html")
    text = MEASURE.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(WIDTH)).replace("LONGEST", str(LONGEST))
    page = site / "measure.html"
    page.write_text(text)
    measured = Handler.measured = queue.SimpleQueue()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server,
    ):
        threading.Thread(target=server.serve_forever, name="site", daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/{page.name}"
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--disable-dev-shm-usage", "--remote-debugging-port=0", address]
        running = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            count, found = json.loads(measured.get(timeout=SECONDS))
        except queue.Empty:
            raise SystemExit(f"error: {browser} has measured nothing within {SECONDS} s") from None
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            server.shutdown()
            page.unlink()
    if count != len(pages):
        raise SystemExit(f"error: {count} in place of {len(pages)} pages were measured")
    return count, [tuple(item) for item in found]


def main() -> int:
    """Print the boxes that scroll; the exit status tells whether there are any."""
    browser = sys.argv[1] if len(sys.argv) > 1 else next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"-- no box of code was measured: there is none of {', '.join(BROWSERS)} here")
        return 0
    count, found = boxes(browser)
    for page, pixels, line in found:
        print(f"{page}: a box of code lacks {pixels} pixels at {WIDTH}: {line[:100]}")
    print(f"-- {len(found)} boxes of code scroll on {count} pages, in a window of {WIDTH} pixels")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
