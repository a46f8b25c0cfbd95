"""The lines with which people get a release, and those with which they verify it: what notes and pages have of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from releasing.publish import BILL, BUNDLE, PROVENANCE, PUBLIC_KEY, Place, Published, Signer

BEGIN, END = "<!-- lines of a release: begin -->", "<!-- lines of a release: end -->"
"""Around what a page says where nothing is published; there, a release has its lines."""
PAGES = ("README.md", "charts/neuron-helm-chart/README.md", "docs/operate/install.md")
_VALUES = "--set draDriver.enabled=true --set devicePlugin.enabled=false"


def get_it(url: str, version: str, image: Published, place: Place) -> str:
    """The lines with which people install a release, as Markdown."""
    files = f"{url}/releases/download/v{version}"
    directory = f"neuron-dra-driver-{version}"
    return f"""\
Version {version} is at <{url}/releases/tag/v{version}>. Its image is
`{image.by_digest}`; chart, script and manifests name it, so you need to name none.

With helm, the DRA driver alone (without the two settings, the chart installs the device plugin):

<!-- not run: tests/cluster/test_published.py runs these lines with a registry -->
```console
$ helm upgrade --install neuron-helm-chart oci://{place.chart} --version {version} \\
    {_VALUES}
```

`helm test neuron-helm-chart` runs a pod with one chip. Files in `examples/` that helm names are in the archive below.
The next release takes its place with `helm upgrade`, `--version` and `--reset-then-reuse-values`.

With the script, or with kustomize:

<!-- not run: tests/cluster/test_published.py runs these lines with a registry -->
```console
$ curl -fLO {files}/{installer_name(version)}
$ tar xzf {installer_name(version)}
$ {directory}/scripts/install-dra-driver.sh
$ kubectl apply --server-side -k {directory}/deploy/kustomize/driver    # instead of the script
```

Commands for people, with krew or with pip:

<!-- not run: needs the release -->
```console
$ kubectl krew install --manifest-url={files}/neuron.yaml
$ pip install --only-binary :all: 'neuron-dra-driver[cli] @ {files}/neuron_dra_driver-{version}-py3-none-any.whl'
```
"""


def verify(url: str, version: str, published: Sequence[Published], signer: Signer | None) -> str:
    """The lines with which people verify a release, as Markdown."""
    files = f"{url}/releases/download/v{version}"
    sums = f"$ curl -fLO {files}/SHA256SUMS\n$ sha256sum --check --ignore-missing SHA256SUMS"
    if signer is None:
        return f"""\
Nothing of this release is signed. The digests above tell what image and chart are, and `SHA256SUMS` what files are:

<!-- not run: needs the release -->
```console
{sums}
```
"""
    options = " ".join(shlex.quote(option) for option in signer.verifying)
    key = f"$ curl -fLO {files}/{PUBLIC_KEY}    # once; keep it, and compare it with the one of former releases\n"
    checks = "\n".join(
        f"$ cosign {command} {options} {item.by_digest}"
        for item in published
        for command in ("verify", f"verify-attestation --type {PROVENANCE}", f"verify-attestation --type {BILL}")
    )
    return f"""\
Image and chart are signed with cosign 3, and have a bill of materials and their provenance with them:

<!-- not run: tests/manifests/test_publish.py verifies a release with a key -->
```console
{key if signer.key else ""}{checks}
```

Each file has its signature beside it, and `SHA256SUMS` has the sums of all:

<!-- not run: tests/manifests/test_publish.py verifies a release with a key -->
```console
$ curl -fLO {files}/SHA256SUMS{BUNDLE}
{sums}
$ cosign verify-blob {options} --bundle SHA256SUMS{BUNDLE} SHA256SUMS
```
"""


def with_addresses(text: str, url: str, version: str) -> str:
    """Markdown whose links to files of the repository have their address: notes are read on a page elsewhere."""
    return re.sub(r"\]\((?!#|[a-z]+:)([^)\s]+)\)", lambda link: f"]({url}/blob/v{version}/{link[1]})", text)


def installer_name(version: str) -> str:
    """The archive with the script, the manifests and the examples."""
    return f"neuron-dra-driver-install-{version}.tar.gz"


def write_into(tree: Path, lines: str) -> None:
    """Put lines where the pages of a file tree say that nothing is published.

    Raises:
        ValueError: A page has no such place.
    """
    for name in PAGES:
        page = tree / name
        text, count = re.subn(rf"(?s){BEGIN}\n.*?\n{END}\n", lambda _: f"{BEGIN}\n\n{lines}\n{END}\n", page.read_text())
        if count != 1:
            raise ValueError(f"{name} has {count} places for the lines of a release; it needs one")
        page.write_text(text)
