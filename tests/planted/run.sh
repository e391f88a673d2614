#!/usr/bin/env bash
# Plants bugs, one at a time, in a copy of this repository, and says which check
# finds each, and after how long.
#
#   ./tests/planted/run.sh                 all of them
#   ./tests/planted/run.sh no-drift-margin lost-wake-up
#   ./tests/planted/run.sh --applies       only whether each can still be planted
#
# What is planted is what `git` has: changes that are not committed are left out. The
# copies are built in `target/planted`. Ends with 1 if a bug was missed.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tests/planted

if [ "$*" = --applies ]; then
  status=0
  for patch in "$here"/*.patch; do
    git apply --check "$patch" || status=1
  done
  exit "$status"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
export CARGO_TARGET_DIR="$PWD/target/planted" CARGO_INCREMENTAL=0 RUST_BACKTRACE=0

# The cheap ones first: a bug counts for the first that finds it.
checks=(unit layers memory protocol simulation redis redlock postgres)
check() {
  local test=(cargo test --quiet --workspace --all-features)
  case $1 in
  unit) "${test[@]}" --lib ;;
  simulation) cargo run --quiet --release -p dlock-simulation -- --seeds 500 ;;
  *) "${test[@]}" --test "$1" ;;
  esac
}

# What a test that failed is called, or what else was said last.
found_by() {
  sed 's/\x1b\[[0-9;]*m//g' "$scratch/log" | awk '
    /^---- .* stdout ----$/ { print $2; found = 1; exit }
    NF { last = $0 }
    END { if (!found) print last }'
}

plant() {
  local name=$1 copy="$scratch/copy" start=$SECONDS one
  rm -rf "$copy" && mkdir "$copy"
  git archive HEAD | tar -x -C "$copy"
  patch --silent --strip=1 --directory="$copy" <"$here/$name.patch" || return 2
  for one in "${checks[@]}"; do
    (cd "$copy" && timeout 900 bash -c "$(declare -f check); check $one") >"$scratch/log" 2>&1 && continue
    if grep -q '^error: could not compile' "$scratch/log"; then
      printf '%-28s does not build\n' "$name"
      return 2
    fi
    printf '%-28s %-12s %4s s  %s\n' "$name" "$one" "$((SECONDS - start))" "$(found_by)"
    return 0
  done
  printf '%-28s MISSED       %4s s\n' "$name" "$((SECONDS - start))"
  return 1
}

[ $# -gt 0 ] || set -- $(basename -s .patch "$here"/*.patch)
missed=0
for name in "$@"; do
  plant "$name" || missed=$((missed + 1))
done
echo "$# planted, $missed missed"
[ "$missed" -eq 0 ]
