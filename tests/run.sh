#!/usr/bin/env bash
# Runs the tests of the workspace. On Debian it installs what is missing for
# that, as root or with sudo.
#
#   ./tests/run.sh          the library on all its stores
#   ./tests/run.sh --all    as CI does: also the whole suite for variants of stores, the command
#                           line, Redisson's layout, the scripts beside their reference, input
#                           that wants to hurt, lints, the documentation, the book, the list of
#                           public items, the packages, each set of features that users pick, the
#                           examples, the benches, the simulator, histories of servers that fail,
#                           services in Java that use Redisson, and Prometheus
#
# The last line says how many tests passed and failed. CARGO_TARGET_DIR,
# CARGO_INCREMENTAL, RUST_TEST_THREADS and PROPTEST_RNG_SEED are respected.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Most tests wait for a ttl to pass, so more of them than there are processors
# run side by side: so many in each of the three lanes of `all_tests`.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-6}"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-always}"
# With what cargo keeps for the next change, the runtime alone takes 42 s of a processor
# to build, and 30 without.
export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
# Without line numbers for backtraces, the build takes about a fifth less. What panics names its
# line all the same.
export CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG:-0}"
export CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG="$CARGO_PROFILE_DEV_DEBUG"
scratch=$(mktemp -d)
redis=
cleanup() {
  [ -n "$redis" ] && kill "$redis" 2>/dev/null
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { printf '\n== %s\n' "$*"; }
stop() {
  printf '%s\n' "$@" >&2
  exit 1
}

all=
case "$*" in
'') ;;
--all) all=yes ;;
*) stop "Usage: ./tests/run.sh [--all]" ;;
esac

# Properties are tried on the same inputs each time, so that a failure is one of what
# has changed. With `--all` they are tried on others each time.
seed=1
[ -z "$all" ] || seed=$(((RANDOM << 30) + (RANDOM << 15) + RANDOM))
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-$seed}"

# What is needed, as `command:package` or `file:package`.
needed=(cc:build-essential protoc:protobuf-compiler openssl:openssl redis-server:redis-server redis-cli:redis-tools
  etcd:etcd-server etcdctl:etcd-client memcached:memcached pg_lsclusters:postgresql
  /usr/sbin/pgbouncer:pgbouncer mariadb-install-db:mariadb-server faketime:faketime javac:default-jdk-headless
  /usr/share/java/zookeeper.jar:libzookeeper-java /usr/share/java/curator-recipes.jar:libcurator-recipes-java)
[ -n "$all" ] && needed+=(mvn:maven prometheus:prometheus)

install_missing() {
  local pair missing=() root=()
  for pair in "${needed[@]}"; do
    command -v "${pair%%:*}" >/dev/null || [ -f "${pair%%:*}" ] || missing+=("${pair##*:}")
  done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null ||
    stop "These packages are missing, and there is no apt-get to install them: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    # Without a terminal, sudo must not ask for a password.
    { [ -t 0 ] && sudo -v; } || sudo -n true 2>/dev/null ||
      stop "These packages are missing: ${missing[*]}" \
        "Run this as root, or first: sudo apt-get install ${missing[*]}"
    root=(sudo)
  fi
  local install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends "${missing[@]}")
  say "Installing ${missing[*]}"
  # The lists of packages may be missing or old.
  "${install[@]}" || { "${root[@]}" apt-get update && "${install[@]}"; } ||
    stop "apt-get could not install ${missing[*]}"
}

# The Rust version that the workspace needs.
least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -1)

need_rust() {
  command -v cargo >/dev/null ||
    stop "Rust is missing: see https://rustup.rs (cargo must be in the PATH)"
  local version
  version=$(cargo --version | cut -d' ' -f2)
  printf '%s\n' "$least" "$version" | sort -V -C ||
    stop "Rust $version is too old: dlock needs $least or later (rustup update)"
  cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
    stop "rustfmt or clippy is missing: rustup component add rustfmt clippy"
}

failures=()

# step NAME COMMAND…: runs it, says how long it took, and goes on if it fails.
step() {
  local name=$1 start=$SECONDS status=0
  shift
  say "$name"
  "$@" 2>&1 | tee -a "$scratch/log" || status=1
  printf -- '-- %s: %s s\n' "$name" "$((SECONDS - start))"
  [ "$status" -eq 0 ] || failures+=("$name")
}

# What is left to `--all`: these packages, and these test programs, of these packages and of
# others.
beside=(dlock-benches dlock-cli dlock-histories dlock-simulation dlock-surface)
beside_programs=(cli hostile protocol redisson redisson_cluster redisson_java replay)

# The names of all test programs of the workspace.
test_programs() {
  cargo metadata --no-deps --format-version 1 |
    grep -o '{"kind":\["test"\],"crate_types":\["bin"\],"name":"[^"]*"' |
    sed 's/.*"name":"//; s/"$//' | sort -u
}

# Runs all tests, in three lanes of about the same length: most of those of Redis, those of most
# other servers, and the rest. What the lanes say is shown when the last has ended.
all_tests() {
  local test=(cargo test --workspace --all-features --no-fail-fast)
  local program redis=() servers=() rest=(--lib --bins --example testing)
  if [ -n "$all" ]; then
    rest+=(--benches)
  else
    test+=("${beside[@]/#/--exclude=}")
    # Tests that have examples built build them as this does, or else all is built twice.
    export DLOCK_LEFT_OUT="${beside[*]}"
  fi
  while read -r program; do
    [ -n "$all" ] || [[ " ${beside_programs[*]} " != *" $program "* ]] || continue
    case $program in
    redis* | sentinel | cluster) redis+=(--test "$program") ;;
    # Without Redisson's, there is room for it beside the programs of Redis.
    postgres) if [ -n "$all" ]; then servers+=(--test postgres); else redis+=(--test postgres); fi ;;
    etcd | zookeeper | mysql | memcached | hostile | replay) servers+=(--test "$program") ;;
    *) rest+=(--test "$program") ;;
    esac
  done < <(test_programs)
  [ ${#redis[@]} -gt 0 ] && [ ${#servers[@]} -gt 0 ] || {
    echo "cargo metadata does not name the test programs as it used to" >&2
    return 1
  }
  local start=$SECONDS
  "${test[@]}" --no-run --quiet --examples "${redis[@]}" "${servers[@]}" "${rest[@]}" || return 1
  echo "-- Built: $((SECONDS - start)) s"
  # What a build has written keeps a slow disk busy for minutes, and programs wait for it.
  sync
  local lane lanes=() status=0
  # Each lane is a process group, which ends with this script.
  set -m
  trap 'kill -- "${lanes[@]/#/-}" 2>/dev/null; exit 130' INT TERM
  "${test[@]}" "${redis[@]}" >"$scratch/redis" 2>&1 &
  lanes+=($!)
  "${test[@]}" "${servers[@]}" >"$scratch/servers" 2>&1 &
  lanes+=($!)
  {
    "${test[@]}" "${rest[@]}"
    local rest_status=$?
    "${test[@]}" --doc && [ "$rest_status" -eq 0 ]
  } >"$scratch/rest" 2>&1 &
  lanes+=($!)
  for lane in "${lanes[@]}"; do
    wait "$lane" || status=1
  done
  cat "$scratch"/{redis,servers,rest}
  return "$status"
}

# Starts a server of our own for the example. Its port may be taken by the time
# it starts, so that more than one is tried.
start_redis() {
  local try
  for try in 1 2 3 4 5; do
    port=$((20000 + RANDOM % 12000))
    redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no \
      --dir "$scratch" >/dev/null 2>&1 &
    redis=$!
    local wait
    for wait in $(seq 100); do
      kill -0 "$redis" 2>/dev/null || break
      # Another server may have the port.
      if redis-cli -p "$port" info server 2>/dev/null | grep -q "^process_id:$redis"; then
        return
      fi
      sleep 0.1
    done
    kill "$redis" 2>/dev/null
  done
  redis=
  echo "redis-server did not start" >&2
}

example_on_redis() {
  [ -n "$redis" ] || return 1
  cargo run --quiet --example flash_sale -- --store "redis://127.0.0.1:$port" --processes 4
}

# Redisson has no package of Debian's.
redisson_in_java() {
  ./tests/redisson/java/install.sh &&
    RUST_TEST_THREADS=3 cargo test --workspace --all-features --test redisson_java -- --ignored
}

# The whole suite of those variants of stores of which the tests run a part.
variants() {
  cargo test --workspace --all-features --no-fail-fast --test cluster --test etcd --test sentinel -- --ignored
}

# The alerts and the board, in a real Prometheus.
alerts() {
  RUST_TEST_THREADS=3 cargo test --workspace --all-features --test shop -- --ignored
}

# So many runs of the simulator, drawn anew each time. A seed that fails is named, with the
# command that runs it again: so it is built as that builds it.
simulations() {
  local seed=$(((RANDOM << 30) + (RANDOM << 15) + RANDOM))
  echo "Seeds from $seed on"
  cargo run --release --quiet -p dlock-simulation -- --seeds "$1" --from "$seed" --jobs "$(nproc)"
}

# So many histories on real servers of each store, drawn anew each time. What fails is named
# with its command here too, and servers that did not start apart from that. Without
# optimization, logins alone keep a busy machine from anything else. Most of the time a history
# waits, so that four at once are what two processors can do.
histories() {
  timeout -k 30 45m cargo run --release --quiet -p dlock-histories -- --store all --histories "$1" --at-once 4
}

install_missing
need_rust

# Each set of features that users pick.
minimal=(-p dlock-rs -p dlock-runtime --no-default-features)
no_tls=("${minimal[@]}" --features redis-cluster,redis-redlock,redis-sentinel)

say "Properties with PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
step "Planted bugs" ./tests/planted/run.sh --applies
step "Format" cargo fmt --all -- --check
step "Tests" all_tests
if [ -n "$all" ]; then
  step "Variants of stores" variants
  step "Redisson in Java" redisson_in_java
  step "Alerts in Prometheus" alerts
  # Each of these builds once more what the tests have built.
  step "Lint" cargo clippy --workspace --all-features --all-targets --quiet -- -D warnings
  step "Lint without features" cargo clippy "${minimal[@]}" --all-targets --quiet -- -D warnings
  step "Book" ./tests/book.sh
  # As docs.rs builds it: with its `cfg`, under which each item shows the feature it needs.
  step "Documentation" env RUSTDOC="$PWD/tests/surface/rustdoc.sh" RUSTDOCFLAGS="-D warnings --cfg docsrs" \
    cargo doc --workspace --all-features --no-deps --quiet
  step "Public items" cargo run --quiet -p dlock-surface
  step "Packages" ./tests/packages.sh
  step "Tests without features" cargo test "${minimal[@]}" --no-fail-fast
  step "Example in memory" cargo run --quiet --example flash_sale
  start_redis
  step "Example on Redis" example_on_redis
  step "Lint without TLS" cargo clippy "${no_tls[@]}" --all-targets --quiet -- -D warnings
  # The stores share most of their code, and each leaves another part of it unused.
  for store in sqlite postgres mysql etcd memcached redis redis-cluster redis-redlock redis-sentinel \
    zookeeper; do
    step "Lint with $store alone" cargo clippy -p dlock-runtime --no-default-features \
      --features "$store" --quiet -- -D warnings
  done
  step "Simulator" simulations 3000
  step "Histories" histories 2
  step "Tests without TLS" cargo test "${no_tls[@]}" --no-fail-fast --test redis bad_input
fi

# Each test binary ends with a line such as
#   test result: ok. 12 passed; 0 failed; 0 ignored; …
sum() {
  sed 's/\x1b\[[0-9;]*m//g' "$scratch/log" | sed -n "s/^test result:.* \([0-9]*\) $1;.*/\1/p" |
    awk '{ sum += $1 } END { print sum + 0 }'
}

# Each failed test, behind the program it is of, and what it panicked with, so that who
# sees no more than the end of a log has the reason too. If there is much of that, the
# last panic is the test's own. Of one that did not panic, such as documentation that does
# not compile, it is what it said first. And each seed that failed, with its command.
reasons() {
  sed 's/\x1b\[[0-9;]*m//g; s/\r$//' "$scratch/log" | awk '
    function tell(  line, shown) {
      if (name != "") print "\n" program ": " name
      for (line = said - first < 12 ? first : last; line <= said && shown < 12; line++)
        if (text[line] ~ /[^ ]/) { print "  " substr(text[line], 1, 400); shown++ }
      name = ""; said = first = last = backtrace = 0
    }
    /^ *(Running .*\(.*\)|Doc-tests .*)$/ { sub(/^ *(Running (unittests )?)?/, ""); sub(/ \(.*/, ""); program = $0 }
    /^ *process didn.t exit successfully: / { print "\n" program ":\n" $0 }
    /^---- .* stdout ----$/ { tell(); name = substr($0, 6, length($0) - 17); next }
    /^failures:$/ || /^test result: / { tell() }
    /^(did not start, )?seed [0-9]+: cargo run / { tell(); seed = 1; print "\n" $0; next }
    seed && /^  / { print substr($0, 1, 400); next }
    { seed = "" }
    # A program that is no list of tests, such as a benchmark.
    /^stack backtrace:$/ || /^note: run with `RUST_BACKTRACE/ { main = 0 }
    main > 0 { print "  " substr($0, 1, 400); main-- }
    name == "" && /^thread .main. .*panicked at / { print "\n" program ":\n  " $0; main = 4 }
    name == "" { next }
    / panicked at / { backtrace = 0; last = said + 1; if (!first) first = last }
    /^stack backtrace:$/ || /^note: run with `RUST_BACKTRACE/ { backtrace = 1 }
    !backtrace { text[++said] = $0 }
    END { tell() }'
}

say "Done in $SECONDS s"
if [ ${#failures[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failures[@]}"
  echo "Properties had PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
  reasons
fi
echo "$(sum passed) passed, $(sum failed) failed"
[ ${#failures[@]} -eq 0 ]
