"""Replaces kubectl, to simulate a cluster that fails on demand: `python kubectl.py DIRECTORY ARGUMENT...`.

`DIRECTORY/rules` holds pairs of a text and replies; the first text that occurs in the arguments is used. Each call gets
the next reply, and once they are used up, the last one. The arguments are appended to `DIRECTORY/calls`, a line a call.

Both files are Python literals, and nothing but `sys` is imported: the installer's tests make 1,500 calls, and a call
would take twice the processor time with json and pathlib.
"""

import sys


def main() -> int:
    """Handle one call."""
    directory, arguments = sys.argv[1], sys.argv[2:]
    line = " ".join(arguments)
    stdin = sys.stdin.read() if "apply" in arguments else ""
    with open(f"{directory}/rules") as rules, open(f"{directory}/calls", "a+") as log:  # noqa: PTH123
        log.seek(0)
        earlier = [eval(call)["rule"] for call in log]
        for text, replies in eval(rules.read()):
            if text in line:
                output, errors, status = replies[min(earlier.count(text), len(replies) - 1)]
                break
        else:
            text, output, errors, status = "", "", f"no reply is prepared for: {line}\n", 64
        log.write(repr({"line": line, "stdin": stdin, "rule": text}) + "\n")
    sys.stdout.write(output)
    sys.stderr.write(errors)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
