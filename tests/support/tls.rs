//! A certificate authority and a server certificate, made by the `openssl` tool.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::dir::TempDir;

/// Files of a server that is called `127.0.0.1` and `localhost`, in a folder of their
/// own.
#[derive(Clone, Debug)]
pub(crate) struct Certificates {
    /// What a client must trust.
    pub(crate) authority: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    _dir: Arc<TempDir>,
}

impl Certificates {
    pub(crate) fn create() -> Self {
        let dir = TempDir::default();
        let file = |name: &str| dir.path().join(name);
        let extensions = "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n";
        std::fs::write(file("server.ext"), extensions).expect("our own directory");
        for command in [
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=dlock-test-authority \
             -keyout ca.key -out ca.pem",
            "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr",
            "x509 -req -in server.csr -days 2 -CAcreateserial -CA ca.pem -CAkey ca.key \
             -extfile server.ext -out server.pem",
        ] {
            openssl(dir.path(), command);
        }
        Self {
            authority: file("ca.pem"),
            certificate: file("server.pem"),
            key: file("server.key"),
            _dir: Arc::new(dir),
        }
    }
}

fn openssl(dir: &Path, command: &str) {
    let output = Command::new("openssl")
        .args(command.split_whitespace())
        .current_dir(dir)
        .output()
        .expect("the `openssl` tool is needed: apt-get install openssl");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {command}: {errors}");
}
