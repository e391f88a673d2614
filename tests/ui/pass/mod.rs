//! One subject per file. A new one is added here.

mod arguments;
mod async_trait_methods;
mod attributes_above_and_below;
mod bodies;
mod cfg_and_docs;
mod drop_order;
mod functions;
mod future_is_send_and_small;
mod generics;
mod impl_trait;
mod key_arrays;
mod key_expressions;
mod key_templates;
mod local_names;
mod macro_rules_literals;
mod methods;
mod native_traits;
mod on_error;
mod once;
mod owned_argument_in_key;
mod patterns;
mod renamed_crate;
mod results;
mod stacked;
