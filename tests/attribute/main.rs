//! Where the attribute stands is told to the runtime, and shown to users.

mod call_sites;
mod lock_order;
