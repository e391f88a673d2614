//! What the attribute accepts. Every case also runs, and without a warning:
//! one of clippy's pedantic group would fail `cargo clippy -- -D warnings`.
//!
//! Modules of one program and not files of their own for `trybuild`: one link
//! instead of thirty, and clippy sees them.

#![deny(warnings)]
#![warn(clippy::pedantic)]

#[path = "pass/mod.rs"]
mod cases;
mod support;
