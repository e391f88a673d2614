#!/bin/sh
# Builds the peers that benches run beside dlock and that are not of Rust, into
# target/peers. It takes Go, 1.26 or later, a JDK and Maven.
set -eu
cd "$(dirname "$0")"
to="$(cd ../.. && pwd)/target/peers"
mkdir -p "$to"
for peer in */main.go; do
  peer="$(dirname "$peer")"
  (cd "$peer" && go build -o "$to/$peer" .)
  echo "$to/$peer"
done
jvm/build.sh "$to/jvm"
echo "$to/jvm"
