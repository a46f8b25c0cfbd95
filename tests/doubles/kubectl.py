"""Replaces kubectl, to simulate a cluster that fails on demand: `python kubectl.py DIRECTORY ARGUMENT...`.

`DIRECTORY/rules.json` holds pairs of a text and replies; the first text that occurs in the arguments is used. Each call
gets the next reply, and once they are used up, the last one. The arguments are appended to `DIRECTORY/calls.jsonl`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    """Handle one call."""
    directory, arguments = Path(sys.argv[1]), sys.argv[2:]
    line = " ".join(arguments)
    stdin = sys.stdin.read() if "apply" in arguments else ""
    calls = directory / "calls.jsonl"
    earlier = [json.loads(text)["rule"] for text in calls.read_text().splitlines()] if calls.exists() else []
    for text, replies in json.loads((directory / "rules.json").read_text()):
        if text in line:
            output, errors, status = replies[min(earlier.count(text), len(replies) - 1)]
            break
    else:
        text, output, errors, status = "", "", f"no reply is prepared for: {line}\n", 64
    with calls.open("a") as log:
        log.write(json.dumps({"line": line, "stdin": stdin, "rule": text}) + "\n")
    sys.stdout.write(output)
    sys.stderr.write(errors)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
