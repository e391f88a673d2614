//! Two processes that want one lock in turn, while others use the store: from the
//! end of a body in one to the beginning of the next in the other.

use std::time::{Duration, Instant};

use dlock_benches::Locker;
use tokio::time::sleep;

use crate::beside::spread::Spread;

const BODY: Duration = Duration::from_millis(2);

/// The hand-overs of two that connect each for itself, in milliseconds.
pub(crate) async fn hand_overs<L: Locker>(url: &str, sections: u32) -> Spread {
    let contend = async |who: usize| {
        let locker = L::connect(url).await;
        let mut bodies = Vec::new();
        for _ in 0..sections {
            let body = async {
                let begun = Instant::now();
                sleep(BODY).await;
                (begun, Instant::now())
            };
            let (begun, ended) = locker.section("in turn", body).await;
            bodies.push((begun, ended, who));
        }
        bodies
    };
    let both = async { tokio::join!(contend(0), contend(1)) };
    // What they wait for is never the last that was written.
    let elsewhere = async {
        let locker = L::connect(url).await;
        loop {
            locker.section("elsewhere", sleep(BODY)).await;
        }
    };
    let (mut bodies, others) = tokio::select! {
        both = both => both,
        () = elsewhere => unreachable!("it goes on"),
    };
    bodies.extend(others);
    bodies.sort_unstable();
    let pairs = bodies.windows(2).filter(|pair| pair[0].2 != pair[1].2);
    Spread::new(pairs.map(|pair| {
        let (ended, begun) = (pair[0].1, pair[1].0);
        assert!(ended <= begun, "two bodies overlap");
        (begun - ended).as_secs_f64() * 1e3
    }))
}
