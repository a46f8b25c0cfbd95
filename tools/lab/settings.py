"""The lab's two directories, both configurable with environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

REPOSITORY = Path(__file__).resolve().parents[2]

# A unix socket's path is limited to 107 bytes. The longest one below a node's directory that is opened from the host is
# kubelet/plugins/<driver name>/<a pod's uid>-dra.sock, about 80 bytes: the rest is left for the state directory.
_MAX_STATE_DIRECTORY = 24


@dataclass(frozen=True)
class Settings:
    """Directories of the lab.

    Attributes:
        cache: Binaries and images, kept between runs and shared by all checkouts (`NEURON_DRA_CACHE`, otherwise
            `$XDG_CACHE_HOME/neuron-dra-driver`, otherwise `~/.cache/neuron-dra-driver`).
        state: Directories of running clusters, by name (`NEURON_DRA_LAB_DIR`, otherwise `/var/lib/ndl`). Short, because
            it contains unix sockets; removed when the last cluster goes down.
    """

    cache: Path
    state: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings.

        Raises:
            LabError: A directory is not absolute, or the state directory's path is too long for unix sockets.
        """
        if environment.get("NEURON_DRA_CACHE"):
            cache = Path(environment["NEURON_DRA_CACHE"])
        else:
            cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "neuron-dra-driver"
        state = Path(environment.get("NEURON_DRA_LAB_DIR") or "/var/lib/ndl")
        for variable, path in (("NEURON_DRA_CACHE", cache), ("NEURON_DRA_LAB_DIR", state)):
            if not path.is_absolute():
                raise LabError(f"{variable}={path} is not an absolute path; nothing was done. Start it with /.")
        if len(str(state)) > _MAX_STATE_DIRECTORY:
            raise LabError(
                f"NEURON_DRA_LAB_DIR={state} is longer than {_MAX_STATE_DIRECTORY} characters; unix sockets below "
                "it would exceed the kernel's limit. Nothing was done. Choose a shorter directory."
            )
        return cls(cache=cache, state=state)
