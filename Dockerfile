# Two images of one file: `operator` (small, no torch) and `runtime` (one for CPU and for NVIDIA GPUs).
# BASE needs Python 3.11 to 3.13 as `python3` and, for the build stages alone, either pip or apt-get.
# Both run as user 65532 and write nowhere but in what is mounted: /tmp and the directories of their settings.
# The label `licenses` is that of this project and of the Python packages (python -m tools.licenses). Packages of Debian have
# their licenses in /usr/share/doc.
ARG BASE=python:3.12-slim

# --- what the operator imports, into an environment of its own -------------------------------------------------------
FROM ${BASE} AS operator-packages
RUN python3 -m pip --version >/dev/null 2>&1 \
 || (apt-get update && apt-get install -y --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*)
RUN python3 -m venv --without-pip /opt/unmask
COPY constraints/operator.txt /tmp/operator.txt
RUN python3 -m pip --python /opt/unmask/bin/python install --no-cache-dir --no-deps --only-binary :all: \
    --require-hashes -r /tmp/operator.txt
# Of the runtime only the flag table, which the operator checks engine arguments with.
COPY runtime/__init__.py runtime/errors.py /opt/unmask/app/runtime/
COPY runtime/config /opt/unmask/app/runtime/config
COPY operator/unmask_operator /opt/unmask/app/unmask_operator
RUN /opt/unmask/bin/python -m compileall -q /opt/unmask/app

FROM ${BASE} AS operator
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Unmask operator" \
      org.opencontainers.image.description="Runs diffusion language models on Kubernetes" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0 AND BSD-2-Clause AND BSD-3-Clause AND ISC AND MIT AND MPL-2.0 AND PSF-2.0"
# A base may bring an installer of packages; a running operator has no use for one.
RUN python3 -c 'import shutil, sysconfig, pathlib as p; \
lib = p.Path(sysconfig.get_path("stdlib")); sites = [lib / "site-packages", p.Path("/usr/lib/python3/dist-packages")]; \
gone = [lib / "ensurepip", *(d for s in sites for n in ("pip", "pip-*", "setuptools*", "wheel*") for d in s.glob(n))]; \
[shutil.rmtree(d) for d in gone if d.is_dir()]; \
[f.unlink() for b in ("/usr/local/bin", "/usr/bin") for f in p.Path(b).glob("pip*")]'
COPY --from=operator-packages /opt/unmask /opt/unmask
# USER and LOGNAME: libraries ask for the user's name, and a cluster may choose a number that has none.
RUN echo 'unmask:x:65532:65532:unmask:/tmp:/usr/sbin/nologin' >> /etc/passwd
ENV PATH=/opt/unmask/bin:$PATH PYTHONPATH=/opt/unmask/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp USER=unmask LOGNAME=unmask
WORKDIR /opt/unmask/app
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["python", "-m", "unmask_operator"]

# --- the runtime: torch with CUDA, which also serves on CPU; Triton compiles its launchers with the C compiler ----------
FROM ${BASE} AS runtime-base
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && (python3 -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
     || apt-get install -y --no-install-recommends python3-dev) \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin

FROM runtime-base AS runtime-packages
RUN python3 -m pip --version >/dev/null 2>&1 \
 || (apt-get update && apt-get install -y --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*)
RUN python3 -m venv --without-pip /opt/unmask
COPY constraints/runtime.txt /tmp/runtime.txt
RUN python3 -m pip --python /opt/unmask/bin/python install --no-cache-dir --no-deps --only-binary :all: \
    --require-hashes -r /tmp/runtime.txt

FROM runtime-base AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Unmask runtime" \
      org.opencontainers.image.description="Serves diffusion language models over an OpenAI-compatible API" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="0BSD AND Apache-2.0 AND BSD-2-Clause AND BSD-3-Clause AND CC0-1.0 AND CNRI-Python AND ISC AND LicenseRef-NVIDIA-Proprietary AND MIT AND MIT-0 AND MPL-2.0 AND PSF-2.0 AND Zlib"
COPY --from=runtime-packages /opt/unmask /opt/unmask
COPY runtime /opt/unmask/app/runtime
RUN /opt/unmask/bin/python -m compileall -q /opt/unmask/app \
 && echo 'unmask:x:65532:65532:unmask:/tmp:/usr/sbin/nologin' >> /etc/passwd
# Kernels that were recorded on a GPU are compiled for three generations of GPUs, so that a pod need not compile them.
# A kernel that another generation does not have is left out, and one that is missing is compiled at start.
ARG KERNEL_CAPABILITIES="80 90 100"
RUN PYTHONPATH=/opt/unmask/app /opt/unmask/bin/python -m runtime.bench warm --cache /opt/unmask/kernels \
    --specializations /opt/unmask/app/runtime/kernels/specializations/*.json --capabilities ${KERNEL_CAPABILITIES}
# The driver's libraries are mounted by NVIDIA's container toolkit; which GPUs is the device plugin's to say.
ENV PATH=/opt/unmask/bin:$PATH PYTHONPATH=/opt/unmask/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp USER=unmask LOGNAME=unmask NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    UNMASK_KERNEL_CACHE=/opt/unmask/kernels
# Clients of a container are other machines. A flag, UNMASK_HOST and --config take precedence over this default.
ENV UNMASK_DEFAULT_HOST=::
WORKDIR /opt/unmask/app
USER 65532:65532
EXPOSE 8000
ENTRYPOINT ["python", "-m", "runtime.server"]
