//! A certificate authority and a server certificate, made by the `openssl` tool.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Files of a server that is called `127.0.0.1` and `localhost`.
#[derive(Clone, Debug)]
pub(crate) struct Certificates {
    /// What a client must trust.
    pub(crate) authority: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificates {
    pub(crate) fn create_in(dir: &Path) -> Self {
        let file = |name: &str| dir.join(name);
        let (authority, authority_key) = (file("ca.pem"), file("ca.key"));
        let (certificate, key, request) =
            (file("server.pem"), file("server.key"), file("server.csr"));
        let extensions = file("server.ext");
        std::fs::write(
            &extensions,
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n",
        )
        .expect("a file in the temporary directory");

        openssl(&[
            &[
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            ],
            &[
                "-subj",
                "/CN=dlock test authority",
                "-keyout",
                path(&authority_key),
            ],
            &["-out", path(&authority)],
        ]);
        openssl(&[
            &[
                "req",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-subj",
                "/CN=localhost",
            ],
            &["-keyout", path(&key), "-out", path(&request)],
        ]);
        openssl(&[
            &[
                "x509",
                "-req",
                "-in",
                path(&request),
                "-days",
                "2",
                "-CAcreateserial",
            ],
            &["-CA", path(&authority), "-CAkey", path(&authority_key)],
            &["-extfile", path(&extensions), "-out", path(&certificate)],
        ]);
        Self {
            authority,
            certificate,
            key,
        }
    }
}

fn path(path: &Path) -> &str {
    path.to_str()
        .expect("a temporary directory whose name is text")
}

fn openssl(arguments: &[&[&str]]) {
    let output = Command::new("openssl")
        .args(arguments.concat())
        .output()
        .expect("the `openssl` tool is needed: apt-get install openssl");
    assert!(
        output.status.success(),
        "openssl {arguments:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
