//! Empty sections of tasks within one process.

use crate::Effort;
use crate::contest::{Turn, take_turns};
use crate::line::{Line, Unit};
use crate::site::{Programs, Site};

/// How many sections a second the tasks make. A work is its name, its tasks and its keys.
pub(crate) async fn of(
    site: &Site,
    programs: &Programs,
    effort: &Effort,
    (work, tasks, keys): (&'static str, usize, usize),
) -> Vec<Line> {
    let contestants = site.contestants.iter().zip(programs);
    let turns: Vec<(Turn<'_>, Turn<'_>)> = contestants
        .map(|(contestant, program)| {
            let turn = move |length| -> Turn<'_> {
                Box::new(move || {
                    Box::pin(async move {
                        let mut program = program.lock().await;
                        program.rate(contestant.lock, tasks, keys, length).await
                    })
                })
            };
            (turn(effort.practice), turn(effort.slice))
        })
        .collect();
    let (practice, turns): (Vec<_>, Vec<_>) = turns.into_iter().unzip();
    for turn in practice {
        turn().await;
    }
    let rates = take_turns(effort, &turns).await;
    vec![Line {
        work,
        figure: "sections a second",
        unit: Unit::Rate,
        rounds: rates.0,
    }]
}
