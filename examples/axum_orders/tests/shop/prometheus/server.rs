//! A real `prometheus` of the test's own, with the rules of `docs/grafana/alerts.yaml`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use hyper::Method;
use serde_json::Value;

use crate::client::send;
use crate::support::port::free_port;
use crate::support::process::command;
use crate::support::server::{Kind, Server};
use crate::support::wait::until;

pub(crate) const RULES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/grafana/alerts.yaml"
);

#[derive(Debug)]
pub(crate) struct Prometheus {
    port: u16,
    /// What it scrapes.
    target: SocketAddr,
}

impl Kind for Prometheus {
    const NAME: &'static str = "prometheus";
    const PACKAGE: &'static str = "prometheus";

    fn port(&self) -> u16 {
        self.port
    }

    fn take_ports(&mut self) {
        self.port = free_port();
    }

    fn install(&self, dir: &Path) {
        let config = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}\n\
             rule_files: [{RULES}]\n\
             scrape_configs: [{{job_name: shop, static_configs: [{{targets: ['{}']}}]}}]\n",
            self.target
        );
        std::fs::write(dir.join("prometheus.yml"), config).expect("our own directory");
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = command("prometheus");
        command
            .arg(format!("--web.listen-address=127.0.0.1:{}", self.port))
            .args(["--config.file=prometheus.yml", "--log.level=warn"])
            .arg(format!("--storage.tsdb.path={}", data(dir)))
            .current_dir(dir);
        command
    }

    async fn answers(&self, _: u32, dir: &Path) -> Result<(), String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let get = async |path| send(address, Method::GET, path, String::new()).await;
        let ready = get("/-/ready").await;
        let flags = get("/api/v1/status/flags").await;
        let is_ready = matches!(&ready, Ok(ready) if ready.status == 200);
        match &flags {
            Ok(flags) if is_ready && flags.body["data"]["storage.tsdb.path"] == data(dir) => Ok(()),
            _ => Err(format!("it has answered {ready:?} and {flags:?}")),
        }
    }
}

fn data(dir: &Path) -> String {
    dir.join("data").display().to_string()
}

impl Prometheus {
    pub(crate) async fn scrapes(target: SocketAddr) -> Server<Self> {
        Server::of(Self { port: 0, target }).await
    }

    async fn get(&self, path: &str) -> Value {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let answer = send(address, Method::GET, path, String::new()).await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body["data"].clone()
    }

    /// What an expression is now: for each series its labels and its value.
    pub(crate) async fn query(&self, expression: &str) -> Vec<Value> {
        let bytes = expression.bytes().map(|byte| format!("%{byte:02X}"));
        let path = format!("/api/v1/query?query={}", bytes.collect::<String>());
        let found = self.get(&path).await["result"].as_array().cloned();
        found.unwrap_or_else(|| panic!("no series: {expression}"))
    }

    /// The value of an expression that has one.
    async fn number(&self, expression: &str) -> f64 {
        let found = self.query(expression).await;
        let value = found.first().and_then(|series| series["value"][1].as_str());
        value.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Waits until it has looked at the rules so often, since there is something to see.
    pub(crate) async fn has_looked(&self, times: u32) {
        let looks = "max(count_over_time(dlock:acquisitions:increase5m[1h]))";
        let looked = async || self.number(looks).await;
        until("it looks", looked, |&count| count >= f64::from(times)).await;
    }

    /// The names of the alerts that fire.
    pub(crate) async fn firing(&self) -> BTreeSet<String> {
        let alerts = self.get("/api/v1/alerts").await;
        let alerts = alerts["alerts"].as_array().expect("a list").iter();
        alerts
            .filter(|alert| alert["state"] == "firing")
            .filter_map(|alert| Some(alert["labels"]["alertname"].as_str()?.to_owned()))
            .collect()
    }

    /// The expressions of all rules.
    pub(crate) async fn rules(&self) -> Vec<String> {
        let groups = self.get("/api/v1/rules").await;
        let groups = groups["groups"].as_array().expect("a list").iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().expect("a list"));
        rules
            .filter_map(|rule| Some(rule["query"].as_str()?.to_owned()))
            .collect()
    }

    /// Every name of a series that it has.
    pub(crate) async fn names(&self) -> BTreeSet<String> {
        let names = self.get("/api/v1/label/__name__/values").await;
        let names = names.as_array().expect("a list").iter();
        names
            .filter_map(|name| Some(name.as_str()?.to_owned()))
            .collect()
    }
}
