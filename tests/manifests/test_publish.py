"""`scripts/release --publish` into a real registry: what it refuses, what is there, and who has signed it."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from lab import registry
from lab.progress import Progress
from lab.settings import Settings
from releasing import lines, publish
from releasing.addresses import CHART
from releasing.main import main

from dra_driver.version import VERSION
from tests.builders.programs import needing
from tests.builders.publishing import CRANE, LATER, URL, Publisher, commit_all, crane, git, raise_version, small_image
from tests.golden import golden
from tests.manifests.chart import HELM, KUBERNETES, helm, needs_helm
from tests.manifests.support import KUBECTL, needs_kubectl
from tests.paths import ROOT

COSIGN = os.environ.get("COSIGN")
needs_cosign = needing(COSIGN, "there is no cosign here; COSIGN=/path/to/cosign names one", pytest.mark.nightly)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A registry that is empty at first."""
    if not (CRANE and HELM):
        pytest.skip("there is no crane or helm here; CRANE=/path/to/crane and HELM=/path/to/helm name them")
    with registry.serving(Settings.from_environment(os.environ), Progress()) as served:
        yield served


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one commit with what is here now."""
    tree = tmp_path_factory.mktemp("repository")
    commit_all(tree)
    return tree


def tags(place: str) -> dict[str, str]:
    """What the registry has of a place: signatures are under tags of their own, since it serves no referrers."""
    names = (publish.Place(place).image, publish.Place(place).chart)
    return {
        f"{name}:{tag}": crane("digest", f"{name}:{tag}") for name in names for tag in crane("ls", name).split("\n")
    }


@pytest.fixture(scope="module")
def published(address: str, committed: Path, tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """A release that nobody has signed."""
    publisher = Publisher(small_image, committed, f"{address}/team", tmp_path_factory.mktemp("dist"))
    assert publisher.run() == 0
    return publisher


def test_a_second_run_gives_the_same_and_publishes_nothing(
    published: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, digests = tags(published.place), published.digests()
    elsewhere = Publisher(small_image, published.tree, published.place, tmp_path / "dist")
    assert elsewhere.run() == 0
    said = capsys.readouterr().out
    assert "already published, nothing to do" in said
    assert "nothing is signed" in said
    assert (tags(published.place), elsewhere.digests(), elsewhere.sums()) == (before, digests, published.sums())


def test_a_chart_that_is_registered_with_artifact_hub_says_so_beside_its_versions(
    address: str, committed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher = Publisher(small_image, committed, f"{address}/registered", tmp_path / "dist")
    assert publisher.run("--artifact-hub", "some-id") == 0
    chart = publish.Place(publisher.place).chart
    manifest = json.loads(crane("manifest", f"{chart}:artifacthub.io"))
    (layer,) = manifest["layers"]
    kinds = (manifest["config"]["mediaType"], layer["mediaType"])
    assert kinds == (
        "application/vnd.cncf.artifacthub.config.v1+yaml",
        "application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml",
    )
    assert crane("blob", f"{chart}@{layer['digest']}") == "repositoryID: some-id"
    capsys.readouterr()
    assert publisher.run("--artifact-hub", "some-id") == 0
    assert "already published, nothing to do" in capsys.readouterr().out


def test_the_site_of_a_release_says_how_to_install_that_release(address: str, committed: Path, tmp_path: Path) -> None:
    publisher = Publisher(small_image, committed, f"{address}/site", tmp_path / "dist", ("--no-plugin",))
    assert publisher.run() == 0
    with tarfile.open(tmp_path / f"dist/neuron-dra-driver-site-{VERSION}.tar.gz") as site:
        page = site.extractfile("./docs/operate/install.html")
        assert page is not None
        assert f"oci://{publish.Place(publisher.place).chart}" in page.read().decode()


def test_an_image_of_two_architectures_is_published_whole(published: Publisher) -> None:
    name = publish.Place(published.place).image
    entries = json.loads(crane("manifest", f"{name}:{VERSION}"))["manifests"]
    assert [entry["platform"]["architecture"] for entry in entries] == ["amd64", "arm64"]
    labels = json.loads(crane("config", "--platform=linux/arm64", f"{name}:{VERSION}"))["config"]["Labels"]
    assert labels["org.opencontainers.image.source"] == URL


def reference(published: Publisher) -> str:
    """The image as everything of the release names it."""
    name = publish.Place(published.place).image
    return f"{name}:{VERSION}@{published.digests()[name]}"


@needs_helm
def test_the_chart_is_pulled_by_helm_and_names_its_image(published: Publisher, tmp_path: Path) -> None:
    chart = publish.Place(published.place).chart
    pulled = helm("pull", "--plain-http", f"oci://{chart}", "--version", VERSION, "--destination", str(tmp_path))
    assert pulled.returncode == 0, pulled.stderr
    (archive,) = tmp_path.glob("*.tgz")
    assert archive.read_bytes() == (published.output / archive.name).read_bytes()
    rendered = helm("template", "neuron", str(archive), "--kube-version", KUBERNETES, "--set", "draDriver.enabled=true")
    assert f"image: {reference(published)}\n" in rendered.stdout.replace('"', "")
    shown = helm("show", "readme", str(archive)).stdout
    assert f"oci://{chart} --version {VERSION}" in shown
    assert "docker build" not in shown


@needs_helm
@pytest.mark.parametrize(
    ("settings", "image"),
    [
        ("image.repository=mirror.example/n", f"mirror.example/n:{VERSION}@{{digest}}"),
        ("image.repository=mirror.example/n,image.digest=", f"mirror.example/n:{VERSION}"),
        (f"image.tag=v7,image.digest=sha256:{'1' * 64}", f"{{repository}}:v7@sha256:{'1' * 64}"),
        ("image.digest=", f"{{repository}}:{VERSION}"),
        (f"image.digest=sha256:{'1' * 64}", None),
    ],
    ids=["mirror", "own image", "another version", "by tag", "of the release before"],
)
def test_the_chart_of_a_release_takes_another_image(published: Publisher, settings: str, image: str | None) -> None:
    (archive,) = published.output.glob("*.tgz")
    options = ("--kube-version", KUBERNETES, "--set", f"draDriver.enabled=true,{settings}")
    rendered = helm("template", "neuron", str(archive), *options)
    name = publish.Place(published.place).image
    digest = published.digests()[name]
    if image is None:
        told = rendered.stderr[rendered.stderr.index("image.digest is") :].partition("\n\n")[0]
        golden(told.replace(digest, "sha256:..."))
    else:
        assert images(rendered.stdout) >= {image.format(repository=name, digest=digest)}, rendered.stderr


@needs_helm
def test_the_chart_is_what_helm_itself_would_push(published: Publisher, address: str) -> None:
    (archive,) = published.output.glob("*.tgz")
    os.utime(archive, (1_750_000_000, 1_750_000_000))
    pushed = helm("push", "--plain-http", str(archive), f"oci://{address}/by-helm")
    assert pushed.returncode == 0, pushed.stderr
    theirs = json.loads(crane("manifest", f"{address}/by-helm/neuron-helm-chart:{VERSION}"))
    ours = json.loads(crane("manifest", f"{publish.Place(published.place).chart}:{VERSION}"))
    assert ours["annotations"].items() <= theirs["annotations"].items()
    assert ours["layers"] == theirs["layers"]
    assert ours["config"]["mediaType"] == theirs["config"]["mediaType"]


@pytest.fixture
def installer(published: Publisher, tmp_path: Path) -> Path:
    """The unpacked archive with the script."""
    shutil.unpack_archive(published.output / lines.installer_name(VERSION), tmp_path, filter="data")
    return tmp_path / f"neuron-dra-driver-{VERSION}"


def images(text: str) -> set[str]:
    """The images that containers of manifests have."""
    return set(re.findall(r"(?m)^\s*(?:- )?image: (\S+)$", text.replace('"', "")))


@needs_kubectl
def test_the_script_of_a_release_has_an_image_and_takes_another(published: Publisher, installer: Path) -> None:
    def rendered(*arguments: str) -> str:
        command = [str(installer / "scripts/install-dra-driver.sh"), "--dry-run", "--placer", *arguments]
        environment = {"PATH": os.environ["PATH"], "KUBECTL": str(KUBECTL)}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert images(rendered()) == {reference(published)}
    assert images(rendered("mirror.example/n:7")) == {"mirror.example/n:7"}


@needs_kubectl
@pytest.mark.parametrize("base", ["driver", "driver-example", "legacy"])
def test_kustomize_takes_the_image_of_the_release(published: Publisher, installer: Path, base: str) -> None:
    directory = installer / "deploy/kustomize" / base
    command = [str(KUBECTL), "kustomize", str(directory)]
    shown = images(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    by_digest = published.digests()[publish.Place(published.place).image]
    assert {image for image in shown if image.endswith(by_digest)}
    assert not {image for image in shown if "NEURON_DRA_IMAGE" in image or "registry.example" in image}


def test_the_notes_have_the_lines_and_the_files_their_sums(published: Publisher) -> None:
    notes = (published.output / "RELEASE-NOTES.md").read_text()
    for item in published.digests().items():
        assert "@".join(item) in notes or f"oci://{item[0]}" in notes
    assert f"{URL}/releases/download/v{VERSION}/{lines.installer_name(VERSION)}" in notes
    assert f"]({URL}/blob/v{VERSION}/docs/" in notes
    assert re.findall(r"\]\((?!https://)[^)]*\)", notes) == []
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(command, cwd=published.output, check=False, capture_output=True).returncode == 0
    statement = json.loads((published.output / f"neuron-dra-driver-{VERSION}.provenance.json").read_text())
    subjects = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
    assert {name: f"sha256:{subjects[name]}" for name in published.digests()} == published.digests()
    commit = git(published.tree, "rev-parse", "HEAD")
    assert statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"] == {"gitCommit": commit}


@pytest.fixture
def clone(committed: Path, tmp_path: Path) -> Path:
    """A checkout to change."""
    git(tmp_path, "clone", "--quiet", str(committed), "clone")
    return tmp_path / "clone"


def refused(publisher: Publisher, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Publish, which is refused and leaves no files; returns the message."""
    assert publisher.run(*options) in {1, 2}
    assert not publisher.output.exists()
    return capsys.readouterr().err


def hidden(text: str, publisher: Publisher) -> str:
    """A text without what differs between two runs."""
    return re.sub(r"sha256:[0-9a-f]{64}", "sha256:...", text).replace(publisher.place.partition("/")[0], "REGISTRY")


def test_another_commit_under_a_published_version_is_refused(
    published: Publisher, clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tags(published.place)
    (clone / CHART / "values.yaml").write_text((clone / CHART / "values.yaml").read_text() + "# other\n")
    git(clone, "commit", "--quiet", "--all", "--message=Other")
    publisher = Publisher(small_image, clone, published.place, tmp_path / "dist")
    error = [line for line in refused(publisher, capsys).splitlines() if line.startswith("error")][-1]
    golden(hidden(error, publisher))
    assert tags(published.place) == before


def test_a_tree_that_is_not_committed_is_refused(
    address: str, clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / "LICENSE").write_text("none")
    golden(refused(Publisher(small_image, clone, f"{address}/dirty", tmp_path / "dist"), capsys))
    assert f"{address}/dirty" not in crane("catalog", address)


def test_a_tag_of_another_version_is_refused(
    address: str, clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(clone, "tag", "v7.0.0")
    golden(refused(Publisher(small_image, clone, f"{address}/tagged", tmp_path / "dist"), capsys))


def test_a_version_that_is_tagged_and_the_next_one_are_published_beside_each_other(
    published: Publisher, clone: Path, tmp_path: Path
) -> None:
    raise_version(clone)
    git(clone, "tag", f"v{LATER}")
    before = tags(published.place)
    assert Publisher(small_image, clone, published.place, tmp_path / "dist").run() == 0
    after = tags(published.place)
    assert {name.rpartition(":")[2] for name in after.keys() - before.keys()} == {LATER}
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    "options",
    [
        ("--publish", "registry.example/Team", "--repository-url", URL),
        ("--publish", "team", "--repository-url", URL),
        ("--publish", "registry.example/team"),
        ("--publish", "registry.example/team", "--repository-url", URL, "--no-image"),
        ("--key", "cosign.key"),
        ("--artifact-hub", "some-id"),
    ],
    ids=["upper case", "no registry", "no address", "no image", "key", "registration"],
)
def test_options_that_do_not_fit_are_refused(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options) == 2
    golden(capsys.readouterr().err)


def test_a_registry_that_does_not_answer_is_told(
    address: str, committed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del address  # with it, there are the programs
    publisher = Publisher(small_image, committed, "127.0.0.1:9/team", tmp_path / "dist")
    assert "Nothing was published" in refused(publisher, capsys)


# Signatures: what people type is taken from the notes.


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key of cosign, without a password."""
    directory = tmp_path_factory.mktemp("key")
    assert COSIGN is not None
    environment = {**os.environ, "COSIGN_PASSWORD": ""}
    subprocess.run([COSIGN, "generate-key-pair"], cwd=directory, env=environment, check=True, capture_output=True)
    return directory / "cosign.key"


@pytest.fixture(scope="module")
def signed(address: str, committed: Path, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    """A release that is signed with a key."""
    publisher = Publisher(small_image, committed, f"{address}/signed", tmp_path_factory.mktemp("dist"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COSIGN_PASSWORD", "")
        assert publisher.run("--key", str(key)) == 0
    yield publisher


def verifications(directory: Path) -> list[str]:
    """The lines of the notes that verify."""
    notes = (directory / "RELEASE-NOTES.md").read_text()
    return [line.removeprefix("$ ") for line in notes.splitlines() if line.startswith("$ cosign ")]


def verifies(line: str, directory: Path) -> bool:
    """Whether a line of the notes succeeds, with neither a network nor a home."""
    assert COSIGN is not None
    command = [COSIGN, *shlex.split(line)[1:]]
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory / "nobody"), "http_proxy": "http://127.0.0.1:9"}
    offline = environment | {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(command, cwd=directory, env=offline, capture_output=True, text=True, check=False)
    return done.returncode == 0


@needs_cosign
def test_all_lines_of_verification_hold(signed: Publisher) -> None:
    found = verifications(signed.output)
    assert len(found) == 7
    assert [line for line in found if not verifies(line, signed.output)] == []


@needs_cosign
def test_each_file_that_is_installed_is_signed(signed: Publisher) -> None:
    (line,) = (line for line in verifications(signed.output) if "verify-blob" in line)
    bundles = sorted(path.name.removesuffix(publish.BUNDLE) for path in signed.output.glob(f"*{publish.BUNDLE}"))
    assert bundles == sorted(
        ["SHA256SUMS", f"neuron-helm-chart-{VERSION}.tgz", lines.installer_name(VERSION)]
        + [f"neuron_dra_driver-{VERSION}{end}" for end in (".tar.gz", "-py3-none-any.whl")]
    )
    for name in bundles:
        assert verifies(line.replace("SHA256SUMS", name), signed.output), name
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in signed.output.iterdir()}
    assert len(set(modes.values())) == 1, modes


@needs_cosign
def test_nothing_is_signed_twice(
    signed: Publisher, key: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    before, sums = tags(signed.place), signed.sums()
    assert signed.run("--key", str(key)) == 0
    assert "already published, nothing to do" in capsys.readouterr().out
    assert (tags(signed.place), signed.sums()) == (before, sums)


@needs_cosign
def test_what_is_published_unsigned_can_be_signed_later(
    published: Publisher, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    digests = published.digests()
    later = Publisher(small_image, published.tree, published.place, tmp_path / "dist")
    assert later.run("--key", str(key)) == 0
    assert later.digests() == digests
    assert all(verifies(line, later.output) for line in verifications(later.output))


@needs_cosign
def test_a_password_that_is_wrong_is_told_before_anything_is_published(
    address: str, committed: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COSIGN_PASSWORD", "wrong, and never to be told")
    publisher = Publisher(small_image, committed, f"{address}/password", tmp_path / "dist")
    error = refused(publisher, capsys, "--key", str(key))
    assert "COSIGN_PASSWORD" in error
    assert "never to be told" not in error
    assert "/password/" not in crane("catalog", address)


@needs_cosign
@pytest.mark.parametrize("of", ["image", "chart"])
def test_what_replaces_a_published_image_or_chart_is_not_verified(
    signed: Publisher, clone: Path, tmp_path: Path, of: str
) -> None:
    """Somebody who may write to the registry puts something else under the tag, with the signatures of the true one."""
    (clone / CHART / "values.yaml").write_text((clone / CHART / "values.yaml").read_text() + "# other\n")
    (clone / "dra_driver/version.py").write_text(f'# other\nVERSION = "{VERSION}"\n# other')
    git(clone, "commit", "--quiet", "--all", "--message=Other")
    other = Publisher(small_image, clone, f"{signed.place}-{of}", tmp_path / "dist")
    assert other.run() == 0
    name, digest = getattr(publish.Place(signed.place), of), signed.digests()[getattr(publish.Place(signed.place), of)]
    theirs = getattr(publish.Place(other.place), of)
    false = crane("digest", f"{theirs}:{VERSION}")
    assert false != digest
    copied = f"{name}-of-another"
    crane("copy", f"{theirs}:{VERSION}", f"{copied}:{VERSION}")
    crane("copy", f"{name}@{digest}", f"{copied}:true")
    signatures = json.loads(crane("manifest", f"{name}:{digest.replace(':', '-')}"))["manifests"]
    for entry in signatures:
        crane("copy", f"{name}@{entry['digest']}", f"{copied}:signature-{entry['digest'][-9:]}")
    for subject in (digest, false):
        crane("copy", f"{name}:{digest.replace(':', '-')}", f"{copied}:{subject.replace(':', '-')}")
    checks = [line for line in verifications(signed.output) if line.endswith(f"{name}@{digest}")]
    assert len(checks) == 3
    for line in checks:
        assert verifies(line.replace(f"{name}@{digest}", f"{copied}@{digest}"), signed.output), line
        assert not verifies(line.replace(f"{name}@{digest}", f"{copied}:{VERSION}"), signed.output), line


@needs_cosign
@pytest.mark.parametrize("what", ["SHA256SUMS", f"neuron-helm-chart-{VERSION}.tgz", lines.installer_name(VERSION)])
def test_a_file_that_was_changed_is_not_verified(signed: Publisher, tmp_path: Path, what: str) -> None:
    (line,) = (line for line in verifications(signed.output) if "verify-blob" in line)
    for name in (what, f"{what}{publish.BUNDLE}", publish.PUBLIC_KEY):
        shutil.copy(signed.output / name, tmp_path)
    assert verifies(line.replace("SHA256SUMS", what), tmp_path)
    content = bytearray((tmp_path / what).read_bytes())
    content[-1] ^= 1
    (tmp_path / what).write_bytes(content)
    assert not verifies(line.replace("SHA256SUMS", what), tmp_path)


def test_a_page_without_a_place_for_the_lines_is_an_error(tmp_path: Path) -> None:
    for name in lines.PAGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    lines.write_into(tmp_path, "the lines\n")
    assert all("the lines" in (tmp_path / name).read_text() for name in lines.PAGES)
    (tmp_path / lines.PAGES[0]).write_text("nothing")
    with pytest.raises(ValueError, match=re.escape(lines.PAGES[0])):
        lines.write_into(tmp_path, "the lines\n")


TOKEN = {"iss": "https://issuer.example", "email": "releases@git.example", "sub": "42"}


def token(claims: Mapping[str, str]) -> str:
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in ({}, claims)]
    return ".".join((*encoded, "signature")).replace("=", "")


@pytest.mark.parametrize(
    ("environment", "identity", "issuer"),
    [
        ({"SIGSTORE_ID_TOKEN": token(TOKEN)}, TOKEN["email"], TOKEN["iss"]),
        (
            {"SIGSTORE_ID_TOKEN": token({"iss": "https://i.example", "job_workflow_ref": "o/r/.github/w.yaml@refs/x"})},
            "https://github.com/o/r/.github/w.yaml@refs/x",
            "https://i.example",
        ),
        (
            {"ACTIONS_ID_TOKEN_REQUEST_URL": "https://x", "GITHUB_WORKFLOW_REF": "o/r/.github/w.yaml@refs/tags/v1"},
            "https://github.com/o/r/.github/w.yaml@refs/tags/v1",
            "https://token.actions.githubusercontent.com",
        ),
    ],
    ids=["mail", "token of a workflow", "workflow"],
)
def test_an_identity_of_the_environment_signs_and_is_what_verifies(
    environment: Mapping[str, str], identity: str, issuer: str
) -> None:
    """What a transparency log and a certificate authority make of it cannot be tried here."""
    signer = publish.signer(None, environment)
    assert signer is not None
    assert (signer.key, signer.signing) == ("", ())
    assert signer.verifying == ("--certificate-identity", identity, "--certificate-oidc-issuer", issuer)


@pytest.mark.parametrize(
    "environment", [{"SIGSTORE_ID_TOKEN": "x"}, {"ACTIONS_ID_TOKEN_REQUEST_URL": "https://x"}], ids=["none", "nobody"]
)
def test_an_identity_that_is_none_is_refused(environment: Mapping[str, str]) -> None:
    with pytest.raises(publish.PublishingError) as refusal:
        publish.signer(None, environment)
    golden(str(refusal.value))
