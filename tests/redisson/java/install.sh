#!/usr/bin/env bash
# Gets the versions of Redisson that the tests use, and what they need, from Maven Central
# into the target folder. What is there already is checked, and left as it is.
#
#   ./tests/redisson/java/install.sh

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
here=$PWD
target=$(cd ../../.. && cargo metadata --no-deps --format-version 1 |
  sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

is_complete() { (cd "$target/redisson" 2>/dev/null && sha256sum --check --quiet "$here/jars.sha256" 2>/dev/null); }

is_complete && exit
for version in $(sed -n 's|.*/redisson-\(.*\)\.jar$|\1|p' jars.sha256); do
  mvn --quiet --batch-mode --file pom.xml \
    org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
    -Dredisson="$version" -DincludeScope=runtime -DoutputDirectory="$target/redisson/$version"
done
is_complete || {
  echo "What Maven Central gave for Redisson is not what jars.sha256 says" >&2
  exit 1
}
