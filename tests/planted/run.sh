#!/usr/bin/env bash
# Plants bugs, one at a time, in a copy of this repository, and says which check
# finds each, and how soon.
#
#   ./tests/planted/run.sh                 all of them
#   ./tests/planted/run.sh no-drift-margin lost-wake-up
#   ./tests/planted/run.sh --applies       only whether each can still be planted
#
# What is planted is what `git` has: changes that are not committed are left out. The
# copy is `target/planted/copy`, of which only what a bug has changed is built again. A
# patch that changes the code of one store names it in its first line: its tests and
# histories are run, and not those that know no store of a server.
# The time is that of the checks, without building. Ends with 1 if a bug was missed.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=$PWD/tests/planted
copy=$PWD/target/planted/copy
log=$PWD/target/planted/log
# Only the patched crate changes, and only a little.
export CARGO_TARGET_DIR="$PWD/target/planted" CARGO_INCREMENTAL=1 RUST_BACKTRACE=0
# Most tests wait for a ttl to pass.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-6}"

if [ "$*" = --applies ]; then
  status=0
  for patch in "$here"/*.patch; do
    git apply --check "$patch" || status=1
  done
  exit "$status"
fi

# One after the other, the cheap ones first: a bug counts for the first that finds it.
# What stands in one line is built together.
checks() {
  local store stores
  stores=$(sed -n '1s/^Store: //p' "$here/$1.patch")
  # These know no store of a server, and are built without them.
  [ -n "$stores" ] || printf '%s\n' simulation 'core memory layers growth'
  echo unit seen
  for store in ${stores:-redis etcd}; do
    case $store in
    redis | postgres | mysql | sqlite) echo protocol "$store" ;;
    *) echo "$store" ;;
    esac
    # It has none of its own.
    [ "$store" = redisson ] || echo "histories:$store"
  done
}

small=(cargo test -p dlock-rs -p dlock-runtime --no-default-features)
whole=(cargo test --workspace --all-features)
build() {
  case $* in
  simulation) cargo build -p dlock-simulation ;;
  core*) "${small[@]}" --no-run --lib --test memory --test layers --test growth ;;
  unit*) "${whole[@]}" --no-run --lib --test seen ;;
  # On what the tests before it are built on, by the one beside it.
  histories:*) cargo build --workspace --all-features --bin dlock-histories --test seen ;;
  *) "${whole[@]}" --no-run $(printf -- '--test %s ' "$@") ;;
  esac
}
run() {
  case $1 in
  simulation) "$CARGO_TARGET_DIR/debug/dlock-simulation" --seeds 100 ;;
  core) "${small[@]}" --lib ;;
  memory | layers | growth) "${small[@]}" --test "$1" ;;
  unit) "${whole[@]}" --lib ;;
  # 3 is that servers did not start, which finds nothing.
  histories:*) "$CARGO_TARGET_DIR/debug/dlock-histories" --store "${1#*:}" --histories 2 || [ $? -eq 3 ] ;;
  *) "${whole[@]}" --test "$1" ;;
  esac
}

# What a check says when it has found something.
failure='^(test .* FAILED$|seed [0-9]+: )'

# Runs a check, and ends it when it has found something, or when it hangs.
passes() {
  local end=$((SECONDS + 900)) job
  set -m
  (cd "$copy" && run "$1") </dev/null >"$log" 2>&1 &
  job=$!
  set +m
  while kill -0 "$job" 2>/dev/null; do
    if [ "$SECONDS" -gt "$end" ] || grep -qE "$failure" "$log"; then
      kill -KILL -- "-$job"
    fi
    sleep 0.2
  done
  wait "$job" 2>/dev/null
}

# The test that failed, or the seed, or what else was said last.
found_by() {
  { grep -m 1 -E "$failure" "$log" || tail -n 1 "$log"; } |
    sed -E 's/^test (.*) \.\.\. FAILED$/\1/; s/^(.{100}).*/\1…/'
}

plant() {
  local name=$1 took=0 start group one
  git -C "$copy" checkout --quiet . && git -C "$copy" apply "$here/$name.patch" || return 2
  while read -ra group; do
    if ! (cd "$copy" && build "${group[@]}") </dev/null >"$log" 2>&1; then
      printf '%-28s does not build: %s\n' "$name" "$(grep -m 1 '^error' "$log")"
      return 2
    fi
    for one in "${group[@]}"; do
      start=$SECONDS
      if ! passes "$one" 2>/dev/null; then
        printf '%-28s %-18s %4s s  %s\n' "$name" "$one" "$((took + SECONDS - start))" "$(found_by)"
        return 0
      fi
      took=$((took + SECONDS - start))
    done
  done < <(checks "$name")
  printf '%-28s MISSED             %4s s\n' "$name" "$took"
  return 1
}

git worktree prune
if [ -e "$copy" ]; then
  git -C "$copy" checkout --quiet --force --detach "$(git rev-parse HEAD)"
else
  git worktree add --quiet --force --detach "$copy"
fi || exit
[ $# -gt 0 ] || set -- $(basename -s .patch "$here"/*.patch)
missed=0
for name in "$@"; do
  plant "$name" || missed=$((missed + 1))
done
echo "$# planted in $(git rev-parse --short HEAD), $missed missed"
[ "$missed" -eq 0 ]
