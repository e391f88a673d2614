//! Reads any text as the URL of a store.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::tests::FORM;

/// Texts that mean something in a URL.
const PIECES: &[&str] = &[
    "store", "stores", "://", ":", "/", "//", "@", "?", "#", "&", "=", ",", "%", "%ff", "%40", "[",
    "]", "[::1]", "a", "b", "1", "65536", "word", "other", "ca", "cert", "key", " ", "\n", "\0",
    "é", "\u{202e}",
];

fn text() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        3 => any::<char>(),
        2 => select(&['/', '#', '?', '@', ':', ',', '%', '&', '=', '[', ' ', '\0'][..]),
        1 => Just('a'),
    ];
    vec(character, 1..8).prop_map(|text| text.into_iter().collect())
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused_in_plain_words(rest in vec(select(PIECES), 0..12)) {
        for start in ["", "store://", "stores://"] {
            let text = format!("{start}{}", rest.concat());
            match FORM.read(&text) {
                Ok(url) => {
                    prop_assert!(!url.hosts.is_empty());
                    for host in &url.hosts {
                        let host = host.to_string();
                        prop_assert!(!host.contains([' ', '@', '/', '\u{202e}']), "{}", host);
                        prop_assert!(!host.contains(char::is_control), "{}", host);
                    }
                }
                Err(error) => {
                    let said = error.to_string();
                    prop_assert!(said.starts_with("invalid Store URL: "), "{}", said);
                    prop_assert!(!said.contains(char::is_control), "{:?}", said);
                }
            }
        }
    }

    #[test]
    fn what_is_encoded_is_read_as_it_was(
        user in text(), password in text(), path in text(), word in text(), port in 1..=u16::MAX,
    ) {
        let url = format!(
            "store://{}:{}@a:{port}/{}?word={}",
            encoded(&user), encoded(&password), encoded(&path), encoded(&word),
        );
        let read = FORM.read(&url).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(read.hosts[0].to_string(), format!("a:{port}"));
        prop_assert_eq!(read.user.as_deref(), Some(&*user));
        prop_assert_eq!(read.password.as_deref(), Some(&*password));
        prop_assert_eq!(read.decoded(read.path).ok(), Some(path));
        prop_assert_eq!(read.option("word"), Some(&*word));
    }
}
