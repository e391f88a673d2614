//! Every `rust` snippet of every page. An error names the module of the page
//! and the line; what is missing around a snippet belongs in `src/`.

#![allow(
    dead_code,
    unused_variables,
    reason = "a snippet shows a part of a program"
)]

#[allow(unused_imports, reason = "the recipes share their imports")]
mod cron;

include!(concat!(env!("OUT_DIR"), "/snippets.rs"));
