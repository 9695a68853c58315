# samebits with a compiler, and the compiler and emulator of the Cortex-M boards.
#
#     docker build -t samebits .
#     docker run --rm samebits                       # samebits doctor
#     docker run --rm -v "$PWD:/data" samebits ship /data/net.py:make --data /data/images \
#         --package zephyr --out /data/firmware
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        cmake g++ gcc gcc-arm-none-eabi libc6-dev make qemu-system-arm \
    && rm -rf /var/lib/apt/lists/*

# The CPU build of torch: the default one brings several GB of CUDA packages.
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu PIP_NO_CACHE_DIR=1

WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY tools/install.py tools/locked.py tools/
COPY src src
RUN python tools/install.py '.[demo]'

RUN useradd --create-home user
USER user
WORKDIR /data
ENTRYPOINT ["samebits"]
CMD ["doctor"]
