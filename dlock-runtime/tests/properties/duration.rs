//! Property tests with any text in the place of a duration.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{UNITS, parse_duration};

#[path = "../../../tests/support/durations.rs"]
mod durations;

#[test]
fn a_setting_and_the_attribute_read_the_same_times() {
    for &(text, millis) in durations::DURATIONS {
        let read = parse_duration(text)
            .ok()
            .map(|duration| duration.as_millis());
        assert_eq!(read, millis.map(u128::from), "{text:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_a_time_or_an_error(text in vec(select(durations::PIECES), 0..8)) {
        match parse_duration(&text.concat()) {
            Ok(duration) => prop_assert!(!duration.is_zero()),
            Err(error) => prop_assert!(!error.is_empty() && !error.contains(char::is_control)),
        }
    }

    #[test]
    fn a_sum_is_read_as_what_it_says(counts in [0..100_000_u64, 0..100_000, 0..100_000, 0..100_000]) {
        let terms = UNITS.iter().zip(counts).filter(|(_, count)| *count > 0);
        let text: String = terms.clone().map(|((unit, _), count)| format!("{count}{unit}")).collect();
        let millis: u64 = terms.map(|((_, factor), count)| factor * count).sum();
        let read = parse_duration(&text).ok().map(|duration| duration.as_millis());
        prop_assert_eq!(read, (millis > 0).then_some(u128::from(millis)), "{}", text);
    }
}
