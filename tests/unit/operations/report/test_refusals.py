"""What a report leaves out, and says so."""

from __future__ import annotations

import io
import tarfile

from dra_driver.operations.report.archive import Collected, archive
from dra_driver.operations.report.cluster import newest
from dra_driver.version import VERSION
from tests.golden import golden


def test_only_the_last_lines_of_a_log_are_kept() -> None:
    golden(newest("first line\nsecond line\nthird line\n", 20))


def test_the_manifest_says_what_was_made_of_names() -> None:
    made = archive(Collected(), at=0.0, redact=True, kept=())
    with tarfile.open(fileobj=io.BytesIO(made)) as opened:
        (name,) = (name for name in opened.getnames() if name.endswith("MANIFEST.txt"))
        manifest = opened.extractfile(name)
        assert manifest is not None
        golden(manifest.read().decode().replace(VERSION, "VERSION"))
