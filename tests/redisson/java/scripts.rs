//! Redisson's own scripts are those that dlock's were compared with, see
//! `docs/design/redisson.md`.

use crate::service::{VERSIONS, scripts};

/// In the form of `sha256sum`: of the texts in each class, by what `Scripts.java` finds.
const COMPARED: &str = include_str!("scripts.sha256");

#[test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
fn they_are_what_ours_were_compared_with() {
    for version in VERSIONS {
        let found = scripts(version);
        let compared = COMPARED.replace(&format!("{version}/"), "");
        let compared: Vec<_> = compared
            .lines()
            .filter(|line| !line.contains('/'))
            .collect();
        let found: Vec<_> = found.lines().collect();
        assert_eq!(
            found, compared,
            "Redisson {version} has other scripts. `java tests/redisson/java/Scripts.java <jar> \
             all` shows them: compare dlock's with them, by the tables in docs/design/redisson.md, \
             before scripts.sha256 says so"
        );
    }
}
