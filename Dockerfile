# Lockstep's program in an image, without CUDA: docker build -t lockstep:0.1 .
# The first stage makes the Debian package, the second installs it.
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
      ca-certificates make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# What is slow and changes seldom goes first: packages and LibTorch.
COPY Makefile CMakePresets.json ./
COPY tools/setup tools/setup
RUN make setup-build && tools/setup/packages.sh tools
COPY . .
RUN make deb

FROM debian:12
COPY --from=build /src/build/deb/lockstep_*.deb /tmp/
# Without what it recommends: that is for compiling.
RUN apt-get update && apt-get install -y --no-install-recommends \
      /tmp/lockstep_*.deb && rm -rf /var/lib/apt/lists/* /tmp/*.deb
RUN useradd --uid 1000 --create-home lockstep
USER lockstep
WORKDIR /home/lockstep
ENTRYPOINT []
CMD ["lockstep", "help"]
