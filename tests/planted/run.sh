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
# What a check finds counts if it passes without the bug: the same test, the same seed, or,
# where neither is named and where it hangs, the whole check is run on a second copy,
# `target/planted/clean`, which is built when it is first needed, and then stays built.
# The time is that of the checks of the bug, without building. Ends with 1 if a bug was missed.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=$PWD/tests/planted
planted=$PWD/target/planted
copy=$planted/copy
clean=$planted/clean
log=$planted/log
# Only the patched crate changes, and only a little.
export CARGO_INCREMENTAL=1 CARGO_TERM_COLOR=never RUST_BACKTRACE=0
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

# run CHECK [ONLY]: all of it, or one test or seed of it.
run() {
  local only=${2:-} test=() seed=() status
  [ -z "$only" ] || test=(-- --exact "$only") seed=(--seed "$only")
  case $1 in
  simulation)
    [ -n "$only" ] || seed=(--seeds 100)
    "$CARGO_TARGET_DIR/debug/dlock-simulation" "${seed[@]}"
    ;;
  core) "${small[@]}" --lib "${test[@]}" ;;
  memory | layers | growth) "${small[@]}" --test "$1" "${test[@]}" ;;
  unit) "${whole[@]}" --lib "${test[@]}" ;;
  histories:*)
    "$CARGO_TARGET_DIR/debug/dlock-histories" --store "${1#*:}" --histories "$([ -n "$only" ] && echo 1 || echo 2)" "${seed[@]}"
    status=$?
    # 3 is that servers did not start, which neither finds a bug nor shows that there is none.
    [ "$status" -eq 0 ] || { [ "$status" -eq 3 ] && [ -z "$only" ]; }
    ;;
  *) "${whole[@]}" --test "$1" "${test[@]}" ;;
  esac
}

# in_copy COPY COMMAND…: with that copy's own target folder.
in_copy() (
  cd "$1" || exit
  export CARGO_TARGET_DIR=$planted
  [ "$1" != "$clean" ] || CARGO_TARGET_DIR=$clean/target
  shift
  "$@" </dev/null >"$log" 2>&1
)

# What a check says when it has found something.
failure='^(test .* FAILED$|seed [0-9]+: )'
# What takes longer than this, in seconds, hangs.
limit=${PLANTED_LIMIT:-900}

# outcome COPY CHECK [ONLY]: sets `outcome` to passes, fails or hangs. A check is ended when it
# has found something, and when it hangs.
outcome() {
  local end=$((SECONDS + limit)) job
  outcome=
  # What the one before it said is not what this one says.
  : >"$log"
  set -m
  in_copy "$1" run "${@:2}" &
  job=$!
  set +m
  while kill -0 "$job" 2>/dev/null; do
    if grep -qE "$failure" "$log"; then
      kill -KILL -- "-$job"
    elif [ "$SECONDS" -gt "$end" ]; then
      outcome=hangs
      kill -KILL -- "-$job"
    fi
    sleep 0.2
  done 2>/dev/null
  if wait "$job" 2>/dev/null; then outcome=passes; else outcome=${outcome:-fails}; fi
}

# passes_clean CHECK [ONLY]: whether it passes without the bug. Of a single test or seed, it
# has to say so: nothing is found either where nothing is run.
passes_clean() {
  outcome "$clean" "$@"
  case $1:${2:-} in
  # Of one seed, most calls may fail.
  simulation:?*) grep -q '^0 seeds with violations' "$log" ;;
  *:) [ "$outcome" = passes ] ;;
  histories:*) [ "$outcome" = passes ] ;;
  *) [ "$outcome" = passes ] && grep -q '^test result: ok\. 1 passed' "$log" ;;
  esac
}

# What was said first of what failed, or last.
first_words() {
  { grep -m 1 -E "$failure" "$log" || tail -n 1 "$log"; } |
    sed -E 's/^test (.*) \.\.\. FAILED$/\1/; s/ - should panic$//; s/^(.{100}).*/\1…/'
}

# The test or the seed that failed, if one is named.
which_failed() {
  grep -m 1 -E "$failure" "$log" |
    sed -E 's/^test (.*) \.\.\. FAILED$/\1/; s/ - should panic$//; s/^seed ([0-9]+): .*/\1/'
}

says() { printf '%-28s %-18s %4s s  %s\n' "$@"; }

# must_build COPY NAME CHECK…
must_build() {
  in_copy "$1" build "${@:3}" && return
  printf '%-28s does not build in %s: %s\n' "$2" "$1" "$(grep -m 1 '^error' "$log")"
  return 2
}

plant() {
  local name=$1 took=0 start group one try found only
  git -C "$copy" checkout --quiet . && git -C "$copy" apply "$here/$name.patch" || return 2
  while read -ra group; do
    must_build "$copy" "$name" "${group[@]}" || return 2
    for one in "${group[@]}"; do
      # Once more if what failed fails without the bug too: it hides what comes after it.
      for try in 1 2; do
        start=$SECONDS
        outcome "$copy" "$one"
        took=$((took + SECONDS - start))
        [ "$outcome" != passes ] || break
        found=$(first_words) only=
        if [ "$outcome" = hangs ]; then found="hangs: $found"; else only=$(which_failed); fi
        must_build "$clean" "$name" "${group[@]}" || return 2
        if passes_clean "$one" ${only:+"$only"}; then
          says "$name" "$one" "$took" "$found"
          return 0
        fi
        says "$name" "$one" "$took" "not counted, does not pass without the bug: $found"
      done
    done
  done < <(checks "$name")
  says "$name" MISSED "$took" ''
  return 1
}

# What is committed, in a folder of its own. What has not changed stays built.
copy_to() {
  if [ -e "$1" ]; then
    git -C "$1" checkout --quiet --force --detach "$(git rev-parse HEAD)"
  else
    git worktree add --quiet --force --detach "$1"
  fi
}

git worktree prune
copy_to "$copy" && copy_to "$clean" || exit
[ $# -gt 0 ] || set -- $(basename -s .patch "$here"/*.patch)
missed=0
for name in "$@"; do
  plant "$name" || missed=$((missed + 1))
done
echo "$# planted in $(git rev-parse --short HEAD), $missed missed"
[ "$missed" -eq 0 ]
