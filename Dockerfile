# The driver's image. With a registry: docker build -t neuron-dra-driver:dev .
# Without one: scripts/build-image, which makes a base of its own. Any base with glibc and Python 3.11 or later will do
# that has `python3 -m venv`; all stages must use the same one. (Not Alpine: some wheels exist for glibc only.)
ARG BASE_IMAGE=docker.io/library/python:3.13-slim-bookworm

# What the driver needs; kept between builds, since it changes seldom.
# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS dependencies
WORKDIR /src
# Two environments: the second has pip and the build backend and stays behind; the first becomes part of the image.
RUN python3 -m venv --without-pip /opt/venv && python3 -m venv /opt/build
COPY requirements/build.txt requirements/runtime.txt requirements/recover.txt requirements/
# boto3 is for `dra-driver recover` alone, which asks three services of AWS: without the descriptions of the 400 others it
# adds 9 MB to the image instead of 36, too little for an image of its own. The driver never imports it.
# The kubernetes package reads kubeconfigs; nothing imports its second client, for asyncio, which has 66 MB.
# Compiled here, since the driver runs with a read-only root file system: without it, it would start three times as
# slowly and use twice the memory. Without time stamps in the compiled files every build gives the same bytes.
RUN /opt/build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/build.txt \
    && /opt/build/bin/pip --python /opt/venv/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
        --no-compile -r requirements/runtime.txt \
    && /opt/build/bin/pip --python /opt/venv/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
        --no-compile --no-deps -r requirements/recover.txt \
    && find /opt/venv/lib/python3*/site-packages/botocore/data -mindepth 1 -maxdepth 1 -type d \
        ! -name autoscaling ! -name cloudwatch ! -name sts -exec rm -r {} + \
    && rm -r /opt/venv/lib/python3*/site-packages/kubernetes/aio \
    && /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv

FROM dependencies AS build
COPY pyproject.toml README.md LICENSE ./
COPY dra_driver dra_driver
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --no-compile /wheels/*.whl \
    && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/venv

# hadolint ignore=DL3006
FROM ${BASE_IMAGE}
ARG VERSION=dev
LABEL org.opencontainers.image.title="neuron-dra-driver" \
    org.opencontainers.image.description="Kubernetes Dynamic Resource Allocation driver for AWS Trainium and Inferentia" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/venv /opt/venv
# The driver starts no processes, so gRPC needs no handlers for them; with them it would warn and sometimes hang.
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    GRPC_ENABLE_FORK_SUPPORT=0 \
    PYTHONUNBUFFERED=1
# The gRPC health service of the DaemonSet's probes.
EXPOSE 51515
# User root, without capabilities in the DaemonSet: kubelet's directories and /run/cdi on the node belong to root.
# The vendor's name of the command, k8s-neuron-dra-driver, is on PATH too.
ENTRYPOINT ["dra-driver"]
CMD ["--help"]
