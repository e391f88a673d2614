#!/bin/sh
# Rustdoc whose JSON is to be had on a stable toolchain too. For rustdoc alone: a build script
# that sees this variable builds its crate anew, and all that lean on it.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
