//! A store that is late says nothing of the sequence, and is not taken for one that agrees.

use crate::agrees;
use crate::at_memory;
use crate::rules::Rules;
use crate::run::{Kept, Scene};

/// Is too late in the first sequences, whatever they are.
struct Late<S> {
    scene: S,
    sequences: u64,
}

impl<S: Scene> Scene for Late<S> {
    type Process = S::Process;

    fn rules(&self) -> Rules {
        self.scene.rules()
    }

    async fn open(&mut self) -> S::Process {
        self.scene.open().await
    }

    async fn notices(&mut self, left: usize) {
        self.scene.notices(left).await;
    }

    async fn look(&mut self, pass: u64) -> Kept {
        let late = if self.sequences > 0 { 10_000 } else { 0 };
        Kept {
            late,
            ..self.scene.look(pass).await
        }
    }

    async fn left(&mut self) -> Vec<String> {
        self.scene.left().await
    }

    async fn wipe(&mut self) -> bool {
        self.sequences = self.sequences.saturating_sub(1);
        self.scene.wipe().await
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "most sequences")]
async fn what_is_always_too_late_does_not_agree() {
    agrees(Late {
        scene: at_memory::scene(),
        sequences: u64::MAX,
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_got_too_late_is_run_again() {
    let late = 4;
    let tally = agrees(Late {
        scene: at_memory::scene(),
        sequences: late + 1,
    })
    .await;
    assert_eq!((tally.late, tally.not_judged), (late, 0), "{tally:?}");
    assert!(tally.agreed > 0 && tally.steps > 0, "{tally:?}");
}
