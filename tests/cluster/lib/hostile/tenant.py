"""A pod that makes ResourceClaims as fast as the API server takes them, with the rights of a tenant. It runs there.

    python3 tenant.py SECONDS NAMESPACE

As large as the API server allows (250 kB of annotations) and small ones between them. To leave room in etcd, whose
default is 2 GB and which keeps what was deleted for five to ten minutes, there are ``MOST`` at a time: the oldest goes.
Once there are so many, large ones are made at ``LARGE_RATE`` only. The last line on standard output says how many there
were, as JSON.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import time
from collections import Counter, deque
from pathlib import Path

MOST = 300
LARGE, SMALL = 250_000, 1_000
"""Bytes of annotations."""
LARGE_RATE = 1_000_000
"""Bytes a second, after the first ``MOST``."""
PAUSE_SECONDS = 0.2
"""After a refusal."""

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Tenant:
    """A client of the API server that makes and deletes claims."""

    def __init__(self, namespace: str) -> None:
        self._path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        self._tls = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
        self._connection = self._connect()
        self.answers: Counter[str] = Counter()

    def ask(self, method: str, name: str, body: bytes = b"") -> bool:
        """Make or delete a claim; whether that was done."""
        headers = {"Authorization": f"Bearer {(_ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"}
        try:
            self._connection.request(method, self._path + name, body, headers)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.answers[f"{method} {type(error).__name__}"] += 1
            self._connection.close()
            self._connection = self._connect()
            return False
        self.answers[f"{method} {answer.status}"] += 1
        return answer.status < 300

    def _connect(self) -> http.client.HTTPSConnection:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
        return http.client.HTTPSConnection(host, port, timeout=30, context=self._tls)


def claim(name: str, size: int) -> bytes:
    """A claim of one chip that no pod uses: it is not allocated."""
    request = {"name": "neurons", "exactly": {"deviceClassName": "neuron.aws.com"}}
    metadata = {"name": name, "annotations": {"example.com/note": "x" * size}}
    return json.dumps({"metadata": metadata, "spec": {"devices": {"requests": [request]}}}).encode()


def main() -> None:
    tenant = Tenant(sys.argv[2])
    begin = time.monotonic()
    allowance = float(MOST * LARGE)
    last, number, large = begin, 0, 0
    claims: deque[str] = deque()
    while (now := time.monotonic()) - begin < float(sys.argv[1]):
        allowance += (now - last) * LARGE_RATE
        last = now
        size = LARGE if allowance >= LARGE else SMALL
        number += 1
        name = f"claim-{number}"
        if tenant.ask("POST", "", claim(name, size)):
            claims.append(name)
            allowance -= size
            large += size == LARGE
        else:
            time.sleep(PAUSE_SECONDS)
        if len(claims) > MOST:
            tenant.ask("DELETE", f"/{claims.popleft()}")
    sys.stdout.write(json.dumps({"answers": tenant.answers, "large": large}) + "\n")


if __name__ == "__main__":
    main()
