#!/usr/bin/env bash
# Packs what is published, and sees that it is exactly these packages, without tests, keys or
# benchmarks, and that what is packed can be built. Nothing is uploaded.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

published=(dlock-cli dlock-conformance dlock-macros dlock-rs dlock-runtime)

stop() {
  printf '%s\n' "$@" >&2
  exit 1
}

for package in "${published[@]}"; do
  files=$(cargo package --quiet --allow-dirty --list -p "$package")
  # The conformance suite is tests, and that is all it is.
  unwanted='\.(pem|key|crt|der)$|(^|/)(benches|tests?|properties)(/|\.rs$)'
  ! grep -E "$unwanted" <<<"$files" || stop "$package packs what nobody needs"
  for file in LICENSE-APACHE LICENSE-MIT README.md; do
    grep -qx "$file" <<<"$files" || stop "$package lacks $file"
  done
done

# It says nothing, and does nothing, if all packages may not be published. Built they are below:
# of a package that others need, cargo itself takes what it unpacked before of the same version
# for what is packed now.
output=$(cargo publish --workspace --dry-run --no-verify --allow-dirty --color never 2>&1) ||
  stop "$output"
packed=$(sed -n 's/^ *Uploading \([^ ]*\) .*/\1/p' <<<"$output" | sort | xargs)
[ "$packed" = "${published[*]}" ] || stop "Published would be: $packed" "and not: ${published[*]}"

# What was packed, unpacked: each package with the others beside it, and nothing else of this
# repository. To check is to build without writing machine code: a file, a feature or a
# dependency that is missing shows all the same, and what the lints have built is used again.
packages=$(cargo metadata --no-deps --format-version 1 |
  sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/package
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
unpacked=$packages/unpacked
cargo package --quiet --no-verify --allow-dirty "${published[@]/#/-p}"
rm -rf "$unpacked"
mkdir "$unpacked"
{
  echo '[workspace]'
  echo 'resolver = "3"'
  echo 'members = ["*"]'
  echo '[patch.crates-io]'
  for package in "${published[@]}"; do
    echo "$package = { path = \"$package\" }"
  done
  sed -n '/^\[profile\./,$p' Cargo.toml
} >"$unpacked/Cargo.toml"
cp Cargo.lock "$unpacked"
for package in "${published[@]}"; do
  # Files in a package are all of one old date, by which cargo would take them for built.
  mkdir "$unpacked/$package"
  tar -xzmf "$packages/$package-$version.crate" -C "$unpacked/$package" --strip-components 1
done
for features in default all; do
  [ "$features" = all ] && with=(--all-features) || with=()
  cargo check --quiet --manifest-path "$unpacked/Cargo.toml" --workspace "${with[@]}" \
    --target-dir "${packages%/package}" || stop "What is packed cannot be built, features: $features"
done
echo "Packed, and built from that: $packed"
