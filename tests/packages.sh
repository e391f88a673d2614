#!/usr/bin/env bash
# Packs what is published, and sees that it is exactly these packages, without tests, keys or
# benchmarks. Nothing is uploaded.

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

# It says nothing, and does nothing, if all packages may not be published. Without building
# them: cargo takes what it has unpacked before of the same version for what is packed now.
output=$(cargo publish --workspace --dry-run --no-verify --allow-dirty --color never 2>&1) ||
  stop "$output"
packed=$(sed -n 's/^ *Uploading \([^ ]*\) .*/\1/p' <<<"$output" | sort | xargs)
[ "$packed" = "${published[*]}" ] || stop "Published would be: $packed" "and not: ${published[*]}"
echo "Packed: $packed"
