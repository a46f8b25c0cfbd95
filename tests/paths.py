"""Where the repository's files are that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SPECS = EXAMPLES / "specs"
DOCS = ROOT / "docs"
DATA = ROOT / "tests" / "data"
