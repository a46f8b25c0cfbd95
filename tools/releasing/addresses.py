"""Where a release is published, written into a copy of the committed files: the repository itself names no place."""

from __future__ import annotations

from pathlib import Path

from releasing.publish import Published

CHART = "charts/neuron-helm-chart"
SCRIPT = "scripts/install-dra-driver.sh"
PLACEHOLDER = "NEURON_DRA_IMAGE"
_EXAMPLE = "registry.example/neuron-dra-driver"
_EXAMPLE_GIT = "https://git.example/platform/neuron-dra-driver.git"
_FOLDERS = ("deploy", "examples")
_SUFFIXES = {".yaml", ".yml"}


def set_repository_url(tree: Path, url: str) -> None:
    """Write where the project is published into the metadata of the packages and of the chart in a file tree."""
    project = tree / "pyproject.toml"
    urls = f'[project.urls]\nRepository = "{url}"\nChangelog = "{url}/blob/main/CHANGELOG.md"\n\n'
    project.write_text(project.read_text().replace("[project.scripts]\n", f"{urls}[project.scripts]\n", 1))
    chart = tree / CHART / "Chart.yaml"
    chart.write_text(f"{chart.read_text()}home: {url}\nsources:\n- {url}\n")


def set_image(tree: Path, image: Published, url: str) -> None:
    """Write which image is published into the chart, the script, the manifests and the examples of a file tree."""
    reference = f"{image.by_tag}@{image.digest}"
    _replace(
        tree / CHART / "values.yaml",
        '  # Required, such as registry.example/neuron-dra-driver.\n  repository: ""\n',
        f'  # The published one. With another one, also set digest: that of your image, or "".\n'
        f"  repository: {image.repository}\n",
    )
    _replace(tree / CHART / "values.yaml", '  digest: ""\n', f"  digest: {image.digest}\n")
    chart = tree / CHART / "Chart.yaml"
    text = chart.read_text()
    before, key, after = (
        text.partition("\nannotations:\n") if "\nannotations:\n" in text else (text, "annotations:\n", "")
    )
    chart.write_text(f"{before}{key}  neuron.aws.com/image: {image.by_digest}\n{after}")
    _replace(tree / SCRIPT, "\nDEFAULT_IMAGE=''\n", f"\nDEFAULT_IMAGE='{reference}'\n")
    for folder in _FOLDERS:
        for path in sorted((tree / folder).rglob("*")):
            if path.suffix in _SUFFIXES:
                path.write_text(_with_image(path.read_text(), image, reference, url))


def _with_image(text: str, image: Published, reference: str, url: str) -> str:
    """A manifest with the published image: of kustomize, of Argo CD and Flux, and of the objects themselves."""
    return (
        text.replace(
            f"- name: {PLACEHOLDER}\n  newName: {_EXAMPLE}\n  newTag: {image.tag}\n",
            f"- name: {image.repository}\n  newName: {image.repository}\n  digest: {image.digest}\n",
        )
        .replace(_EXAMPLE_GIT, f"{url}.git")
        .replace(f"repository: {_EXAMPLE}\n", f"repository: {image.repository}\n")
        .replace(f"image: {PLACEHOLDER}\n", f"image: {reference}\n")
    )


def _replace(path: Path, before: str, after: str) -> None:
    """Replace the first occurrence of a text in a file; ValueError if there is none."""
    text = path.read_text()
    if before not in text:
        raise ValueError(f"{path.name} lacks the text {before!r}, in whose place the release's is to be")
    path.write_text(text.replace(before, after, 1))
