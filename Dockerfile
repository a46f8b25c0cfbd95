# The driver's image for those who build with Docker: docker build -t neuron-dra-driver:dev .
# scripts/build-image and scripts/release make the same without a registry and without running anything of another
# architecture; they read the last stage's settings from here, and a test compares the files. Any base with glibc and
# Python 3.11 or later will do that has `python3 -m venv`; all stages must use the same one. (Not Alpine: some wheels
# exist for glibc only.)
ARG BASE_IMAGE=docker.io/library/python:3.13-slim-bookworm

# What the driver needs; kept between builds, since it changes seldom.
# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS dependencies
WORKDIR /src
# Three environments. That of the node's programs has what they load and nothing else. That of people's commands, the
# extender and recovery has packages and pins of its own. What both pin alike, and the driver, it finds in the node's:
# complete, it would take 45 MB more on every node, 16 MB of them to pull. The third has pip and the build backend and
# stays behind. A link in the node's environment tells the driver where the other one is.
RUN python3 -m venv --without-pip /opt/node && python3 -m venv --without-pip /opt/commands && python3 -m venv /opt/build \
    && /opt/node/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >/tmp/node.pth \
    && mv /tmp/node.pth /opt/commands/lib/python3*/site-packages/ \
    && ln -s /opt/commands /opt/node/commands
COPY requirements/build.txt requirements/node.txt requirements/commands.txt requirements/
# boto3 is for `dra-driver recover` alone, which asks four services of AWS: without the descriptions of the 400 others it
# is 25 MB smaller. The kubernetes package reads kubeconfigs; nothing imports its second client, for asyncio: 66 MB.
# Compiled here, since the driver runs with a read-only root file system: without it, it would start three times as
# slowly and use twice the memory. Without time stamps in the compiled files every build gives the same bytes.
# Wheels only: the build of a source archive would run now, with build requirements that no hash pins.
RUN { /opt/build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/build.txt \
    && /opt/build/bin/pip --python /opt/node/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
        --no-compile -r requirements/node.txt \
    && /opt/build/bin/pip --python /opt/commands/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
        --no-compile -r requirements/commands.txt \
    || { echo "error: the pinned packages cannot be installed (see above), so there is no image. If no matching" \
        "distribution was found, there is no wheel for $(python3 --version) on $(uname -m), and nothing else is" \
        "installed: choose a base with glibc and Python 3.11 to 3.14, on x86_64 or aarch64" >&2; exit 1; }; } \
    && find /opt/commands/lib/python3*/site-packages/botocore/data -mindepth 1 -maxdepth 1 -type d \
        ! -name autoscaling ! -name cloudwatch ! -name ec2 ! -name sts -exec rm -r {} + \
    && rm -r /opt/commands/lib/python3*/site-packages/kubernetes/aio \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/node /opt/commands

FROM dependencies AS build
COPY pyproject.toml README.md LICENSE ./
COPY dra_driver dra_driver
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/node/bin/python install --no-cache-dir --no-deps --no-compile /wheels/*.whl \
    && /opt/node/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/node

# hadolint ignore=DL3006
FROM ${BASE_IMAGE}
ARG VERSION=dev
LABEL org.opencontainers.image.title="neuron-dra-driver" \
    org.opencontainers.image.description="Kubernetes Dynamic Resource Allocation driver for AWS Trainium and Inferentia" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/commands /opt/commands
COPY --from=build /opt/node /opt/node
# The driver starts no processes, so gRPC needs no handlers for them; with them it would warn and sometimes hang.
ENV PATH=/opt/node/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    GRPC_ENABLE_FORK_SUPPORT=0 \
    PYTHONUNBUFFERED=1
# The gRPC health service of the DaemonSet's probes.
EXPOSE 51515
# User root, without capabilities in the DaemonSet: kubelet's directories and /run/cdi on the node belong to root.
# The vendor's name of the command, k8s-neuron-dra-driver, is on PATH too.
ENTRYPOINT ["dra-driver"]
CMD ["--help"]
