//! What the compiler says about a wrong use, to the letter.
//!
//! After a change that is meant: `TRYBUILD=overwrite cargo test -p dlock-ui-tests`,
//! and read what it wrote.

#[test]
fn fail() {
    trybuild::TestCases::new().compile_fail("fail/*.rs");
}
