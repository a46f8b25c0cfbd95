"""What is published, and the two programs that do it: crane pushes, cosign signs and verifies.

Both read credentials of the registry where `docker login` and `crane auth login` leave them, and get none from here.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

IMAGE_NAME = "neuron-dra-driver"
CHART_NAME = "neuron-helm-chart"
PUBLIC_KEY = "cosign.pub"
BUNDLE = ".sigstore.json"
PROVENANCE, BILL = "slsaprovenance1", "cyclonedx"
"""Types of attestations, as cosign calls them."""
_SIGNED_FILES = (".whl", ".gz", ".tgz", ".yaml", "SHA256SUMS")
_OF_GITHUB = "https://token.actions.githubusercontent.com"
_PLACE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
_ABSENT = ("MANIFEST_UNKNOWN", "NAME_UNKNOWN", "status code 404")


class PublishingError(Exception):
    """Something cannot be published, or must not be; the text says what to do."""


@dataclass(frozen=True)
class Place:
    """Where a release goes: `REGISTRY[/PATH]`."""

    name: str

    @property
    def image(self) -> str:
        """The image's repository."""
        return f"{self.name}/{IMAGE_NAME}"

    @property
    def chart(self) -> str:
        """The chart's repository, without the scheme `oci://`."""
        return f"{self.name}/charts/{CHART_NAME}"


def is_place(text: str) -> bool:
    """Return whether a text names a registry, perhaps with a path."""
    host = text.partition("/")[0]
    return bool(_PLACE.fullmatch(text)) and (host == "localhost" or "." in host or ":" in host)


@dataclass(frozen=True)
class Published:
    """An image or a chart: where it goes, and what it is.

    Attributes:
        what: `image` or `chart`.
        repository: Where it goes.
        tag: The version.
        digest: Of the image index, or of the chart's manifest.
        layout: The OCI layout that has it.
    """

    what: str
    repository: str
    tag: str
    digest: str
    layout: Path

    @property
    def by_digest(self) -> str:
        """Its name, by which it is always the same."""
        return f"{self.repository}@{self.digest}"

    @property
    def by_tag(self) -> str:
        """Its name for people."""
        return f"{self.repository}:{self.tag}"


@dataclass(frozen=True)
class Registry:
    """A registry, by crane.

    Attributes:
        crane: The program.
    """

    crane: Path

    def digest(self, reference: str) -> str | None:
        """Return the digest under a tag; None if there is none."""
        done = _run([str(self.crane), "digest", reference])
        if done.returncode == 0:
            return done.stdout.strip()
        if any(text in done.stderr for text in _ABSENT):
            return None
        raise PublishingError(
            f"the registry does not say what {reference} is: {done.stderr.strip()}\n"
            "Nothing was published. Log in first, with docker login or crane auth login."
        )

    def push(self, published: Published) -> None:
        """Push what a layout has, under its tag."""
        done = _run([str(self.crane), "push", str(published.layout), published.by_tag])
        if done.returncode != 0:
            raise PublishingError(f"{published.by_tag} could not be pushed: {done.stderr.strip()}")


def missing(registry: Registry, wanted: Sequence[Published]) -> list[Published]:
    """What the registry does not have yet.

    Raises:
        PublishingError: It has something else under a version; nothing may be published.
    """
    there = {item: registry.digest(item.by_tag) for item in wanted}
    for item, digest in there.items():
        if digest not in {None, item.digest}:
            raise PublishingError(
                f"{item.by_tag} is published already, with the digest {digest}; this commit gives {item.digest}. "
                "Nothing was published: a version never changes, because people have it by its tag. Raise the version "
                "(dra_driver/version.py, Chart.yaml, CHANGELOG.md), or check out the commit that was published"
            )
    return [item for item, digest in there.items() if digest is None]


@dataclass(frozen=True)
class Signer:
    """Who signs, as options of cosign.

    Attributes:
        signing: What signs as this one.
        verifying: What accepts the signatures of this one only. A public key is the file `PUBLIC_KEY`.
        key: The private key, or where cosign finds it; empty for an identity.
    """

    signing: tuple[str, ...]
    verifying: tuple[str, ...]
    key: str = ""


def signer(key: str | None, environment: Mapping[str, str]) -> Signer | None:
    """Who signs: an identity if the environment has its token, otherwise a key; None if there is neither.

    Raises:
        PublishingError: There is a token that does not say whose it is.
    """
    if key:
        # Cosign runs elsewhere; a key may also be one of a service, such as awskms:///alias/release.
        key = str(Path(key).absolute()) if Path(key).exists() else key
        return Signer(("--key", key), ("--key", PUBLIC_KEY, "--insecure-ignore-tlog=true"), key)
    identity = issuer = ""
    if environment.get("SIGSTORE_ID_TOKEN"):
        claims = _claims(environment["SIGSTORE_ID_TOKEN"])
        issuer = claims.get("iss", "")
        of_workflow = claims.get("job_workflow_ref") and f"https://github.com/{claims['job_workflow_ref']}"
        of_pipeline = claims.get("ci_config_ref_uri") and f"https://{claims['ci_config_ref_uri']}"
        identity = of_workflow or of_pipeline or claims.get("email") or claims.get("sub", "")
    elif environment.get("ACTIONS_ID_TOKEN_REQUEST_URL"):
        issuer = _OF_GITHUB
        workflow = environment.get("GITHUB_WORKFLOW_REF")
        identity = (workflow and f"{environment.get('GITHUB_SERVER_URL', 'https://github.com')}/{workflow}") or ""
    else:
        return None
    if not identity or not issuer:
        raise PublishingError("the environment's identity token does not say whose it is; sign with --key instead")
    return Signer((), ("--certificate-identity", identity, "--certificate-oidc-issuer", issuer))


@dataclass(frozen=True)
class Cosign:
    """Cosign, as one signer.

    A key takes part in no transparency log, so that its signatures can be made and verified without a network; an
    identity needs one, because its certificate is valid for minutes only.

    Attributes:
        program: The program.
        signer: Who signs.
        directory: Where the public key is, and the configuration without services.
    """

    program: Path
    signer: Signer
    directory: Path

    def write_public_key(self) -> None:
        """Write the signer's public key to the directory."""
        self._do("public-key", "--key", self.signer.key, "--outfile", str(self.directory / PUBLIC_KEY))

    def has_signed(self, reference: str) -> bool:
        """Return whether this signer has signed what is in the registry."""
        return self._holds("verify", *self.signer.verifying, reference)

    def sign(self, reference: str) -> None:
        """Sign what is in the registry."""
        self._do("sign", *self._signing(), reference)

    def has_attested(self, reference: str, kind: str) -> bool:
        """Return whether this signer has attested that of what is in the registry."""
        return self._holds("verify-attestation", *self.signer.verifying, "--type", kind, reference)

    def attest(self, reference: str, kind: str, predicate: Path) -> None:
        """Attest what a file says of what is in the registry."""
        self._do("attest", *self._signing(), "--type", kind, "--predicate", str(predicate), reference)

    def has_signed_file(self, file: Path, bundle: Path) -> bool:
        """Return whether a bundle has this signer's signature of a file."""
        return bundle.exists() and self._holds(
            "verify-blob", *self.signer.verifying, "--bundle", str(bundle), str(file)
        )

    def sign_file(self, file: Path, bundle: Path) -> None:
        """Write this signer's signature of a file to a bundle."""
        self._do("sign-blob", *self._signing(), "--bundle", str(bundle), str(file))
        bundle.chmod(file.stat().st_mode & 0o777)  # cosign lets only its user read it

    def _signing(self) -> tuple[str, ...]:
        if not self.signer.key:
            return ("--yes",)
        # Of no services: otherwise cosign asks the network for the public ones.
        services, roots = self.directory / "no-services.json", self.directory / "no-roots.json"
        if not services.exists():
            self._do("signing-config", "create", "--out", str(services))
            self._do("trusted-root", "create", "--out", str(roots))
        return ("--yes", "--signing-config", str(services), "--trusted-root", str(roots), *self.signer.signing)

    def _holds(self, *arguments: str) -> bool:
        return _run([str(self.program), *arguments], self.directory).returncode == 0

    def _do(self, *arguments: str) -> None:
        done = _run([str(self.program), *arguments], self.directory)
        if done.returncode != 0:
            hint = ". The password of a key is read from COSIGN_PASSWORD" if self.signer.key else ""
            raise PublishingError(f"cosign {arguments[0]} failed: {done.stderr.strip()[-2000:]}{hint}")


def sign_all(cosign: Cosign, published: Sequence[Published], bills: Mapping[str, Path], provenance: Path) -> list[str]:
    """Sign and attest what the registry has, as far as this signer has not yet; returns what was done, in words.

    Args:
        cosign: Who signs.
        published: Images and charts that are in the registry.
        bills: The bill of materials of each, by what it is.
        provenance: The predicate that says how all of them were made.
    """
    done = []
    for item in published:
        if not cosign.has_signed(item.by_digest):
            cosign.sign(item.by_digest)
            done.append(f"signed {item.by_digest}")
        for kind, predicate in ((BILL, bills[item.what]), (PROVENANCE, provenance)):
            if not cosign.has_attested(item.by_digest, kind):
                cosign.attest(item.by_digest, kind, predicate)
                done.append(f"attested {kind} of {item.by_digest}")
    return done


def sign_files(cosign: Cosign, files: Sequence[Path], before: Path) -> list[str]:
    """Sign what people install and the checksums; returns what was done, in words.

    Each gets a bundle beside it. A bundle of it that is in the directory `before`, and still right, is taken again.
    """
    done = []
    for file in files:
        if not file.name.endswith(_SIGNED_FILES):
            continue
        bundle, former = file.with_name(file.name + BUNDLE), before / (file.name + BUNDLE)
        if cosign.has_signed_file(file, former):
            bundle.write_bytes(former.read_bytes())
        else:
            cosign.sign_file(file, bundle)
            done.append(f"signed {file.name}")
    return done


def predicate(url: str, version: str, commit: str, environment: Mapping[str, str]) -> dict[str, object]:
    """How a release was made, as SLSA's provenance 1.0 has it, without what differs between two runs."""
    workflow = environment.get("GITHUB_WORKFLOW_REF")
    by_hand = f"{url}/blob/v{version}/scripts/release"
    builder = f"{environment.get('GITHUB_SERVER_URL', 'https://github.com')}/{workflow}" if workflow else by_hand
    return {
        "buildDefinition": {
            "buildType": f"{url}/blob/v{version}/CONTRIBUTING.md#making-a-release",
            "externalParameters": {"source": f"git+{url}", "commit": commit, "version": version},
            "resolvedDependencies": [{"uri": f"git+{url}", "digest": {"gitCommit": commit}}],
        },
        "runDetails": {"builder": {"id": builder}},
    }


def statement(subjects: Mapping[str, str], predicate: Mapping[str, object]) -> dict[str, object]:
    """An in-toto statement of the provenance of subjects, SHA-256 sums by name."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": value}} for name, value in sorted(subjects.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": predicate,
    }


def _claims(token: str) -> dict[str, str]:
    """What an identity token says, unverified: it is our own."""
    try:
        payload = token.split(".")[1]
        return dict(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))))
    except (IndexError, ValueError, binascii.Error) as error:
        raise PublishingError("SIGSTORE_ID_TOKEN is not an identity token (JWT); unset it, or renew it") from error


def _run(command: Sequence[str], directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=directory, env=dict(os.environ), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
