//! The Redis backend against a real server, which each test starts and stops
//! for itself. No sleep stands in for a condition: what a test waits for it
//! asks for, with a limit that only a hang reaches.

mod support;

mod basics;
mod drops;
mod faults;
mod ghosts;
mod idle;
mod readers;
mod refusals;
mod waiting;
