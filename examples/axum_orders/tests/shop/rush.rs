//! Many clients at once who place, pay and cancel, and some of whom hang up.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Answer, Call, call};
use crate::support::wait::{HANG, until, within};

pub(crate) const SKUS: [&str; 4] = ["blue-mug", "red-mug", "green-mug", "tea-pot"];

/// What the clients have seen.
#[derive(Default)]
pub(crate) struct Seen {
    /// How often each status was answered.
    statuses: BTreeMap<u16, usize>,
    hung_up: usize,
    /// Requests to a copy that has died.
    broken: usize,
    placed: Vec<u64>,
    paid: Vec<u64>,
    cancelled: Vec<u64>,
}

/// The clients, at work.
pub(crate) struct Rush {
    addresses: Vec<SocketAddr>,
    seen: Arc<Mutex<Seen>>,
    clients: JoinSet<()>,
}

impl Rush {
    /// So many clients with so many requests each, to any of the copies.
    pub(crate) fn start(addresses: &[SocketAddr], clients: usize, requests: usize) -> Self {
        let mut rush = Self {
            addresses: addresses.to_vec(),
            seen: Arc::default(),
            clients: JoinSet::new(),
        };
        for _ in 0..clients {
            let client = Client {
                addresses: rush.addresses.clone(),
                seen: Arc::clone(&rush.seen),
            };
            rush.clients.spawn(async move {
                for _ in 0..requests {
                    client.request().await;
                }
            });
        }
        rush
    }

    /// Waits until so many orders were answered as placed.
    pub(crate) async fn has_placed(&self, count: usize) {
        let placed = async || self.seen.lock().expect("no panic").placed.len();
        until("orders are placed", placed, |&placed| placed >= count).await;
    }

    /// Waits for the clients, and returns what they have seen.
    pub(crate) async fn end(self) -> Seen {
        within(2 * HANG, self.clients.join_all()).await;
        std::mem::take(&mut *self.seen.lock().expect("no panic"))
    }
}

struct Client {
    addresses: Vec<SocketAddr>,
    seen: Arc<Mutex<Seen>>,
}

impl Client {
    async fn request(&self) {
        let order = fastrand::choice(&self.seen.lock().expect("no panic").placed).copied();
        match (fastrand::u8(..10), order) {
            // Several clicks on the same button.
            (0..=3, Some(id)) => {
                tokio::join!(
                    self.send(Call::Pay(id)),
                    self.send(Call::Pay(id)),
                    self.send(Call::Pay(id)),
                );
            }
            (4, Some(id)) => self.send(Call::Cancel(id)).await,
            _ => {
                let sku = SKUS[fastrand::usize(..SKUS.len())];
                let quantity = fastrand::u32(1..=3);
                self.send(Call::Place { sku, quantity }).await;
            }
        }
    }

    async fn send(&self, what: Call) {
        let address = self.addresses[fastrand::usize(..self.addresses.len())];
        let patience = match fastrand::bool() && fastrand::bool() {
            true => Duration::from_micros(fastrand::u64(..30_000)),
            false => HANG,
        };
        let answer = timeout(patience, call(address, what.clone())).await;
        let mut seen = self.seen.lock().expect("no panic");
        match answer {
            Err(_) if patience == HANG => panic!("{what:?}: no answer"),
            Err(_) => seen.hung_up += 1,
            Ok(Err(_)) => seen.broken += 1,
            Ok(Ok(answer)) => seen.note(&what, &answer),
        }
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seen")
            .field("statuses", &self.statuses)
            .field("hung_up", &self.hung_up)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl Seen {
    fn note(&mut self, what: &Call, answer: &Answer) {
        *self.statuses.entry(answer.status).or_default() += 1;
        let retry_after = answer.retry_after.as_deref();
        match (what, answer.status) {
            (Call::Place { .. }, 201) => {
                let id = answer.body["id"].as_u64();
                self.placed.push(id.expect("an id"));
            }
            (Call::Pay(id), 200) => self.paid.push(*id),
            (Call::Cancel(id), 200) => self.cancelled.push(*id),
            (Call::Pay(_), 423) => assert_eq!(retry_after, None),
            (Call::Place { .. } | Call::Cancel(_), 503) => {
                assert_eq!(answer.error(), Some("lock_timeout"));
                assert_eq!(retry_after, Some("2"));
            }
            (_, 409) => {}
            _ => panic!("{what:?}: {answer:?}"),
        }
    }

    pub(crate) fn nothing_broke(&self) {
        assert_eq!(self.broken, 0, "{self:?}");
    }

    /// That it was a rush, and not a walk.
    pub(crate) fn was_a_rush(&self) {
        assert!(self.hung_up > 0, "nobody has hung up: {self:?}");
        for status in [200, 201, 409, 423] {
            assert!(self.statuses.contains_key(&status), "no {status}: {self:?}");
        }
    }

    /// Everybody is served, and the books agree with themselves, with the bank
    /// and with what clients were told.
    pub(crate) async fn adds_up(&self, address: SocketAddr, stock: u64) {
        let ask = async |what: Call| call(address, what).await.expect("an answer");

        // Each article's and each order's lock can be had, those of a copy that
        // has died when their ttl has passed.
        for sku in SKUS {
            let place = async || ask(Call::Place { sku, quantity: 1 }).await;
            until(sku, place, |answer| [201, 409].contains(&answer.status)).await;
        }
        let books = ask(Call::Books).await.body;
        for order in books["orders"].as_array().expect("orders") {
            let id = order["id"].as_u64().expect("an id");
            // A payment whose client is gone may still be going on.
            let pay = async || ask(Call::Pay(id)).await;
            until("it pays", pay, |answer| [200, 409].contains(&answer.status)).await;
        }

        let books = ask(Call::Books).await.body;
        let mut gone: BTreeMap<&str, u64> = BTreeMap::new();
        let mut by_status: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for order in books["orders"].as_array().expect("orders") {
            let status = order["status"].as_str().expect("a status");
            let id = order["id"].as_u64().expect("an id");
            by_status.entry(status).or_default().push(id);
            if status != "cancelled" {
                let sku = order["sku"].as_str().expect("an article");
                *gone.entry(sku).or_default() += order["quantity"].as_u64().expect("pieces");
            }
        }
        for sku in SKUS {
            let left = books["stock"][sku].as_u64().expect("a number");
            let gone = gone.get(sku).copied().unwrap_or_default();
            assert_eq!(
                left + gone,
                stock,
                "{sku}: {left} left, {gone} gone: {self:?}"
            );
        }
        let none = Vec::new();
        let of = |status: &str| by_status.get(status).unwrap_or(&none);
        let charges = books["charges"].as_array().expect("charges").iter();
        let mut charges: Vec<u64> = charges.map(|id| id.as_u64().expect("an id")).collect();
        charges.sort_unstable();
        assert_eq!(of("paid"), &charges, "paid, and charged for: {self:?}");
        assert_eq!(of("placed"), &none, "all that could be were paid at last");
        for (status, told) in [("paid", &self.paid), ("cancelled", &self.cancelled)] {
            for id in told {
                assert!(of(status).contains(id), "{id} was told to be {status}");
            }
        }
    }
}
