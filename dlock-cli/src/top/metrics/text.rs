//! The text format of Prometheus, as far as locks need it.

use std::collections::BTreeMap;

/// One line: a metric with its labels, and its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// The series of dlock, among all that a service exports.
pub(super) fn parse(text: &str) -> Result<Vec<Series>, String> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| line.starts_with("dlock_"));
    let read = |(line, number): (&str, usize)| {
        series(line).ok_or_else(|| format!("line {number} of its answer is no metric"))
    };
    lines.map(read).collect()
}

fn series(line: &str) -> Option<Series> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    // A timestamp may follow.
    let value = rest.split_whitespace().next()?;
    Some(Series {
        name: name.to_owned(),
        labels,
        // `+Inf` and `NaN` too.
        value: value.parse().ok()?,
    })
}

/// The labels up to the closing brace, and the text after it.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = quoted(after.trim_start().strip_prefix('"')?)?;
        labels.insert(name.trim().to_owned(), value);
        rest = after;
    }
}

/// The text up to the closing quote, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            letter => value.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = "# HELP dlock_held held\n# TYPE dlock_held gauge\n\
            dlock_held{template=\"stock:<sku>\",store=\"redis\"} 3\n\
            other_total{template=\"a} b\n\
            dlock_waiting 2.5 1395066363000\n\
            dlock_wait_seconds_bucket{le=\"+Inf\", template=\"a \\\"b\\\\c\\n}\",} +Inf\n";
        let series = parse(text).expect("metrics");
        let names: Vec<_> = series.iter().map(|series| &*series.name).collect();
        assert_eq!(
            names,
            ["dlock_held", "dlock_waiting", "dlock_wait_seconds_bucket"]
        );
        assert_eq!(series[0].labels["template"], "stock:<sku>");
        assert_eq!(series[0].value, 3.0);
        assert_eq!((series[1].labels.len(), series[1].value), (0, 2.5));
        assert_eq!(series[2].labels["template"], "a \"b\\c\n}");
        assert!(series[2].value.is_infinite());
    }

    #[test]
    fn what_is_no_metric_is_told() {
        for text in [
            "dlock_held",
            "dlock_held{a=\"b} 1",
            "dlock_held x",
            "dlock_a{b} 1",
        ] {
            let error = parse(&format!("# none\n{text}")).expect_err(text);
            assert!(error.contains("line 2"), "{error}");
        }
        assert_eq!(parse("<html>"), Ok(Vec::new()));
    }
}
