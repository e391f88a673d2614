//! Property tests with templates of any text and any values.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::KeyTemplate;

/// The characters that the escaping uses, which make collisions likely.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => select(&["", "%", ":", "a", "2", "5", "3A", ",", "%25", "é", "C", "-"][..]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

fn key(head: &str, values: &[String], literals: &[String]) -> String {
    let last = values.len() - 1;
    let parts = values.iter().zip(literals).enumerate();
    let filled = parts.fold(KeyTemplate::new(head), |key, (index, (value, literal))| {
        key.value(value, literal, index == last)
    });
    filled.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn other_values_make_another_key(
        head in text(),
        (literals, left, right) in (1..4_usize).prop_flat_map(|count| {
            (vec(text(), count), vec(text(), count), vec(text(), count))
        }),
    ) {
        let (one, other) = (key(&head, &left, &literals), key(&head, &right, &literals));
        prop_assert_eq!(one == other, left == right, "{} and {}", one, other);
    }
}
