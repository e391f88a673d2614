#!/usr/bin/env bash
# Builds Java's peers into the folder that it is given. Redisson is the newest of those that
# the tests use; Curator comes from Maven Central, and is checked as Redisson is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
here=$PWD
root=$(cd ../../.. && pwd)
to=$1
mkdir -p "$to/classes"

"$root/tests/redisson/java/install.sh"
target=$(cd "$root" && cargo metadata --no-deps --format-version 1 |
  sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
newest=$(sed -n 's|.*/redisson-\(.*\)\.jar$|\1|p' "$root/tests/redisson/java/jars.sha256" | sort -V | tail -1)
ln -sfn "$target/redisson/$newest" "$to/redisson"

is_complete() { (cd "$to/curator" 2>/dev/null && sha256sum --check --quiet "$here/jars.sha256" 2>/dev/null); }
is_complete || mvn --quiet --batch-mode --file pom.xml \
  org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
  -DincludeScope=runtime -DoutputDirectory="$to/curator"
is_complete || {
  echo "What Maven Central gave for Curator is not what jars.sha256 says" >&2
  exit 1
}
javac -d "$to/classes" -cp "$to/redisson/*:$to/curator/*" ./*.java
install -m 755 run.sh "$to/run"
