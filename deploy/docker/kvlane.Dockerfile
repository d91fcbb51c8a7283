# The binary: block servers and tools. Build from the root of a clone, after `make dist`:
#   docker build -f deploy/docker/kvlane.Dockerfile -t kvlane .
FROM debian:bookworm-slim

# Authorities for buckets and block servers with public certificates.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/*

RUN groupadd --system --gid 10001 kvlane \
 && useradd --system --uid 10001 --gid kvlane --home-dir /var/lib/kvlane --shell /usr/sbin/nologin kvlane \
 && install -d -o kvlane -g kvlane -m 0700 /var/lib/kvlane

ARG TARGETARCH=amd64
COPY --chmod=755 bin/dist/kvlane-linux-${TARGETARCH} /usr/local/bin/kvlane
RUN kvlane version

USER 10001:10001
WORKDIR /var/lib/kvlane
EXPOSE 7440 9440
ENTRYPOINT ["kvlane"]
