//! What was looked at, and how it is.

use dlock::LockError;
use dlock::backend::{Finding, Level};
use serde_json::{Value, json};

use crate::args::ReportForm;
use crate::exit::Exit;
use crate::output;

#[derive(Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    /// Of the first that has failed.
    failed: Option<Exit>,
}

impl Report {
    pub(super) fn ok(&mut self, check: &'static str, message: String) {
        self.findings.push(Finding::new(Level::Ok, check, message));
    }

    pub(super) fn warn(&mut self, check: &'static str, message: String) {
        self.findings
            .push(Finding::new(Level::Warn, check, message));
    }

    /// Locks do not work, for this reason.
    pub(super) fn failed(&mut self, check: &'static str, error: &LockError) {
        self.fails(check, error.to_string(), Exit::for_error(error));
    }

    pub(super) fn fails(&mut self, check: &'static str, message: String, exit: Exit) {
        self.findings
            .push(Finding::new(Level::Fail, check, message));
        self.failed.get_or_insert(exit);
    }

    /// Something that locks do not need was not done.
    pub(super) fn refused(&mut self, check: &'static str, error: &LockError) {
        self.warn(check, error.to_string());
    }

    pub(super) fn found(&mut self, findings: Vec<Finding>) {
        self.findings.extend(findings);
    }

    /// Whether this was looked at.
    pub(super) fn has(&self, check: &str) -> bool {
        self.findings.iter().any(|finding| finding.check == check)
    }

    #[cfg(test)]
    pub(super) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    pub(super) fn exit(&self) -> Exit {
        self.failed.unwrap_or(Exit::OK)
    }

    pub(super) fn print(&self, form: ReportForm) -> Result<Exit, Exit> {
        let text = match form {
            ReportForm::Table => self.findings.iter().map(line).collect(),
            ReportForm::Json => {
                let all: Vec<_> = self.findings.iter().map(object).collect();
                format!("{:#}\n", Value::from(all))
            }
        };
        output::write(text.as_bytes())
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        _ => "fail",
    }
}

fn line(finding: &Finding) -> String {
    let message = finding.message.replace(char::is_control, " ");
    format!(
        "{:4}  {:11}  {message}\n",
        word(finding.level),
        finding.check
    )
}

fn object(finding: &Finding) -> Value {
    json!({
        "level": word(finding.level),
        "check": finding.check,
        "message": finding.message,
    })
}
