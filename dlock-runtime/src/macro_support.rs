//! Helpers for the code that the attribute generates.
