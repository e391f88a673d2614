#!/usr/bin/env bash
# What each set of features costs a small axum service: how many crates, how many
# seconds of processor for a cold build, and the size of its stripped release build.
#
#   ./benches/size.sh                      the rows of the table in README.md, and each store alone
#   ./benches/size.sh redis-cluster,tls    another set

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
service=$(mktemp -d)
trap 'rm -rf "$service"' EXIT
mkdir "$service/src"

cat >"$service/Cargo.toml" <<TOML
[package]
name = "service"
edition = "2024"

[workspace]

[features]
locks = ["dep:dlock"]

[dependencies]
axum = { version = "0.8.9", default-features = false, features = ["http1", "json", "macros", "tokio"] }
dlock = { package = "dlock-rs", path = "$PWD", default-features = false, optional = true }
tokio = { version = "1.48", features = ["macros", "net", "rt-multi-thread", "signal"] }
TOML
cp Cargo.lock "$service"

cat >"$service/src/main.rs" <<'RUST'
use axum::{Router, extract::Path, routing::post};

#[cfg(feature = "locks")]
#[dlock::distributed_lock(key = "stock:<sku>", timeout = "2s")]
async fn deduct(sku: &str) -> Result<usize, dlock::LockError> {
    Ok(sku.len())
}

#[cfg(not(feature = "locks"))]
async fn deduct(sku: &str) -> Result<usize, std::convert::Infallible> {
    Ok(sku.len())
}

async fn buy(Path(sku): Path<String>) -> Result<String, String> {
    let left = deduct(&sku).await;
    left.map(|left| left.to_string()).map_err(|error| error.to_string())
}

#[tokio::main]
async fn main() {
    #[cfg(feature = "locks")]
    dlock::init(dlock::Config::from_env().expect("a URL")).await.expect("a store");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await.expect("a port");
    let service = Router::new().route("/orders/{sku}", post(buy));
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, service).with_graceful_shutdown(stop).await.expect("a server");
    #[cfg(feature = "locks")]
    dlock::shutdown().await;
}
RUST

# Its name, and what cargo is told besides.
row() {
  local name=$1
  shift
  local build=(--manifest-path "$service/Cargo.toml" "$@") crates seconds size
  crates=$(cargo tree "${build[@]}" -e normal --prefix none | sed 's/ (\*)$//' | sort -u | wc -l)
  rm -rf "$service/target"
  TIMEFORMAT=%U
  seconds=$({ time cargo build "${build[@]}" --release --quiet "${profile[@]}" --target-dir "$service/target" >&2; } 2>&1 | tail -n 1)
  size=$(stat -c %s "$service/target/release/service")
  printf '| %s | %d | %.0f | %d.%d MB |\n' "$name" "$crates" "$seconds" \
    $((size / 1000000)) $((size / 100000 % 10))
}

profile=(--config profile.release.strip=true)
small=(--config 'profile.release.package.dlock-runtime.codegen-units=1')
echo '| features | crates | processor, cold build (s) | stripped |'
echo '|---|---|---|---|'
if [ $# -gt 0 ]; then
  row "\`$1\`" --features "locks,dlock/${1//,/,dlock/}"
  exit
fi
row 'without dlock'
row '`redis` (the default)' --features locks,dlock/default
row '`redis`, `tls`' --features locks,dlock/default,dlock/tls
all=locks,dlock/tls,dlock/redis-cluster,dlock/redis-redlock,dlock/redis-sentinel
row 'and `redis-cluster`, `redis-redlock`, `redis-sentinel`' --features "$all"
for store in etcd zookeeper postgres mysql sqlite memcached; do
  row "\`$store\` alone" --features "locks,dlock/$store"
done
profile+=("${small[@]}")
row 'the default, in one unit' --features locks,dlock/default
