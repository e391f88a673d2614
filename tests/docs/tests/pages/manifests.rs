//! Manifests of Kubernetes: they can be parsed, and their times fit together.

use std::fs;
use std::time::Duration;

use serde_yaml_ng::Value;

use crate::markdown::root;
use crate::{blocks, none_wrong};

#[test]
fn every_manifest_is_one() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (place, block) in blocks() {
        if block.language() == Some("yaml") {
            seen += 1;
            if let Err(error) = check(&block.text) {
                wrong.push(format!("{place}: {error}"));
            }
        }
    }
    none_wrong(&wrong);
    assert!(seen > 0, "there is one");
}

fn check(text: &str) -> Result<(), String> {
    let manifest: Value = serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?;
    for path in ["apiVersion", "kind", "metadata.name"] {
        at(&manifest, path).and_then(Value::as_str).ok_or(path)?;
    }
    let pod = at(&manifest, "spec.template.spec").ok_or("no pod")?;
    let grace = seconds(pod, "terminationGracePeriodSeconds")?;
    let containers = pod.get("containers").and_then(Value::as_sequence);
    for container in containers.ok_or("no containers")? {
        let request_timeout = variables(container)?.unwrap_or(Duration::from_secs(5));
        if seconds(container, "readinessProbe.timeoutSeconds")? <= request_timeout {
            return Err("the probe gives up before `ping` does".to_owned());
        }
        // What a service is told to have for its requests, and for its locks.
        let ends = seconds(container, "lifecycle.preStop.sleep.seconds")?
            + Duration::from_secs(20)
            + Duration::from_secs(5);
        if grace <= ends {
            return Err(format!("the grace period is not longer than {ends:?}"));
        }
    }
    Ok(())
}

/// Fails at a variable that dlock does not know. `Some`: its request timeout.
fn variables(container: &Value) -> Result<Option<Duration>, String> {
    let known = root().join("dlock-runtime/src/api/config/env.rs");
    let known = fs::read_to_string(known).map_err(|error| error.to_string())?;
    let variables = container.get("env").and_then(Value::as_sequence);
    let mut request_timeout = None;
    for variable in variables.into_iter().flatten() {
        let name = variable.get("name").and_then(Value::as_str);
        let name = name.ok_or("a variable without a name")?;
        if name.starts_with("DLOCK_") && !known.contains(&format!("{name:?}")) {
            return Err(format!("there is no {name}"));
        }
        if name == "DLOCK_REQUEST_TIMEOUT" {
            let value = variable.get("value").and_then(Value::as_str);
            let value = value.and_then(|value| value.strip_suffix('s')?.parse().ok());
            request_timeout = value.map(Duration::from_secs);
        }
    }
    Ok(request_timeout)
}

fn seconds(value: &Value, path: &str) -> Result<Duration, String> {
    let seconds = at(value, path).and_then(Value::as_u64);
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("no {path}"))
}

fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}
