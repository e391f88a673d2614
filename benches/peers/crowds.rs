//! Tasks of several processes that want one key.

use std::time::Duration;

use crate::Effort;
use crate::crowd::{Crowd, Work};
use crate::heat::Heat;
use crate::line::{Line, Unit};
use crate::site::Site;

const IN_CROWD: &str = "4 processes × 16 tasks, 2 ms";
const IN_TURN: &str = "2 processes in turn, 1 ms";

/// A figure of each heat.
type Figure = (&'static str, Unit, fn(&Heat) -> f64);

/// Four processes of 16 tasks each.
pub(crate) async fn contended(site: &Site, effort: &Effort) -> Vec<Line> {
    let heats = contend(site, effort, 4, 16, Duration::from_millis(2)).await;
    let figures: [Figure; 3] = [
        ("lock in use", Unit::Part, Heat::in_use),
        ("wait, p50", Unit::Time, |heat| heat.waits().quantile(0.5)),
        ("wait, p99", Unit::Time, |heat| heat.waits().quantile(0.99)),
    ];
    lines(IN_CROWD, &figures, &heats)
}

/// Two processes of one task each.
pub(crate) async fn in_turn(site: &Site, effort: &Effort) -> Vec<Line> {
    let heats = contend(site, effort, 2, 1, Duration::from_millis(1)).await;
    let figures: [Figure; 2] = [
        ("hand-over, p50", Unit::Time, |heat| {
            heat.hand_overs().quantile(0.5)
        }),
        ("hand-over, p99", Unit::Time, |heat| {
            heat.hand_overs().quantile(0.99)
        }),
    ];
    lines(IN_TURN, &figures, &heats)
}

/// The heats of each contestant, who take turns.
async fn contend(
    site: &Site,
    effort: &Effort,
    processes: usize,
    tasks: usize,
    body: Duration,
) -> Vec<Vec<Heat>> {
    let mut crowds = Vec::new();
    for contestant in &site.contestants {
        let server = site.server_of(contestant);
        let command = || contestant.command();
        let mut crowd = Crowd::start(processes, command, contestant.lock, server).await;
        crowd
            .practise(contestant.lock, tasks, effort.practice)
            .await;
        crowds.push((contestant, crowd, Vec::new()));
    }
    let work = Work {
        tasks,
        body,
        warm_up: effort.warm_up,
        heat: effort.heat,
    };
    for _ in 0..effort.heats {
        for (contestant, crowd, heats) in &mut crowds {
            let key = format!("{}:contended", contestant.lock);
            heats.push(crowd.contend(&key, work).await);
        }
    }
    let mut all = Vec::new();
    for (_, crowd, heats) in crowds {
        crowd.end().await;
        all.push(heats);
    }
    all
}

fn lines(work: &'static str, figures: &[Figure], heats: &[Vec<Heat>]) -> Vec<Line> {
    let line = |&(figure, unit, of): &Figure| Line {
        work,
        figure,
        unit,
        rounds: heats
            .iter()
            .map(|heats| heats.iter().map(of).collect())
            .collect(),
    };
    figures.iter().map(line).collect()
}
