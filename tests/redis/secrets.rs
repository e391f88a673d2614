//! A password is shown nowhere: in no error or its causes, no `Debug`, no log.

use crate::support::locks::{connect, connecting, is_misconfigured};
use crate::support::proxy::Proxy;
use crate::support::redis::Setup;
use crate::support::secure::{shown, shown_nowhere, what_is_shown};
use crate::support::wait::{HANG, within};

const PASSWORD: &str = "hunter2/hunter2";

#[test]
fn a_password_is_shown_nowhere() {
    let proof = ["WRONGPASS", "127.0.0.1"];
    let test = "secrets::a_password_is_shown_nowhere";
    shown_nowhere(test, "hunter2", &proof, what_can_be_seen);
}

async fn what_can_be_seen() -> String {
    let server = Setup::default().password(PASSWORD).start().await;
    let proxy = Proxy::to(server.port());
    let url = server.url_through(proxy.port());
    let wrong = [
        url.replace("redis://", "reddis://"),
        url.replace("redis://", "redis:/"),
        url.replace("redis://", ""),
        url.replace("127.0.0.1", ""),
        url.replace(&proxy.port().to_string(), "99999"),
        format!("{url}zero"),
        format!("{url}?{PASSWORD}"),
        format!("{url}#x"),
        format!("redis://:{PASSWORD}@127.0.0.1"),
        format!("redis://:{PASSWORD}#@127.0.0.1"),
        format!("{PASSWORD}:{PASSWORD}"),
        format!("{url}999"),
        url.replace("hunter2%2F", "hunter2-wrong%2F"),
    ];
    let mut text = what_is_shown(&url, &wrong, &proxy).await;
    let manager = connect(dlock::Config::from_url(&url).expect("a valid URL")).await;
    // The login may be refused while the program runs.
    let words = ["CONFIG", "SET", "requirepass", "another"];
    server.command::<()>(&words).await;
    proxy.cut();
    let refused = within(HANG, manager.lock("key").acquire()).await;
    text += &shown(&is_misconfigured(refused));
    text
}

/// Redis repeats the beginning of each argument of a command that it does not know.
#[tokio::test]
async fn a_long_password_is_not_shown_in_part() {
    let password = "s".repeat(120);
    let server = Setup::default().password(&password).without(&["HELLO"]);
    let server = server.start().await;
    let told = shown(&is_misconfigured(connecting(&server.url(), HANG).await));
    assert!(told.contains("HELLO") && !told.contains("sss"), "{told}");
}
