//! Tests of the judge: it detects everything that a broken lock would do.

use std::time::Duration;

use super::{Entry, History};

const WRITES: Entry = Entry {
    reads: false,
    asked: None,
    goes_on: false,
    permits: None,
};
const READS: Entry = Entry {
    reads: true,
    ..WRITES
};

fn violation(history: &History) -> &str {
    history.violations().next().unwrap_or("none")
}

#[test]
fn a_lock_that_works_is_acquitted() {
    let mut history = History::default();
    for token in [64, 65, 128] {
        history.enter("a", token, WRITES).expect("a newer token");
        let value = history.read("a", token).expect("its turn");
        history.write("a", token, value + 1).expect("its turn");
        history.leave("a", token).expect("its turn");
    }
    history.check();
    assert_eq!(history.value(), 3);
}

#[test]
fn an_overlap_is_seen() {
    let mut history = History::default();
    history.enter("a", 64, WRITES).expect("a newer token");
    history.enter("b", 128, WRITES).expect("a newer token");
    assert!(violation(&history).contains("came in while a"));
}

#[test]
fn a_body_that_was_dropped_does_not_overlap_unless_it_did_something() {
    for acts in [false, true] {
        let mut history = History::default();
        history.stopped("a", Duration::ZERO);
        history.resumed("a", 0);
        history.enter("a", 64, WRITES).expect("a newer token");
        history.enter("b", 128, WRITES).expect("a newer token");
        if acts {
            history.read("a", 64).expect_err("an older token");
        }
        history.gone(64);
        assert_eq!(violation(&history).contains("came in while a"), acts);
    }
}

#[test]
fn what_was_sent_in_time_is_no_overlap_however_late_it_comes() {
    for (sent, is_seen) in [(2, false), (4, true)] {
        let mut history = History::default();
        history.hears_what_was_sent_at(1);
        history.enter("a", 64, WRITES).expect("a newer token");
        history.hears_what_was_sent_at(3);
        history.enter("b", 128, WRITES).expect("a newer token");
        history.hears_what_was_sent_at(sent);
        history.read("a", 64).expect_err("an older token");
        history.leave("a", 64).expect_err("an older token");
        assert_eq!(violation(&history) != "none", is_seen);
    }
}

#[test]
fn a_stopped_process_does_not_overlap_but_comes_late() {
    let mut history = History::default();
    history.enter("a", 64, WRITES).expect("a newer token");
    history.stopped("a", Duration::ZERO);
    history.enter("b", 128, WRITES).expect("a newer token");
    history.resumed("a", 0);
    history.write("a", 64, 1).expect_err("an older token");
    history.check();
}

#[test]
fn an_overlap_without_tokens_is_seen() {
    let mut history = History::default();
    let number = history.enter("a", 0, WRITES).expect("a number");
    history.leave("a", number).expect("its turn");
    let number = history.enter("a", 0, WRITES).expect("a number");
    assert_eq!((number, violation(&history)), (2, "none"));
    history.enter("b", 0, WRITES).expect("a number");
    assert!(violation(&history).contains("came in while a"));
}

#[test]
fn a_stopped_process_without_tokens_may_come_late() {
    let mut history = History::default();
    let late = history.enter("a", 0, WRITES).expect("a number");
    history.stopped("a", Duration::ZERO);
    let number = history.enter("b", 0, WRITES).expect("a number");
    history.resumed("a", 0);
    history.write("a", late, 1).expect_err("an older number");
    history.enter("a", 0, WRITES).expect_err("b is inside");
    history.leave("b", number).expect("its turn");
    // Without tokens, this cannot be recognized as late.
    history.enter("a", 0, WRITES).expect("a number");
    history.enter("b", 0, WRITES).expect("a number");
    history.check();
}

/// For a lock that it asks for after it was resumed, it has no excuse.
#[test]
fn a_process_that_was_stopped_is_late_with_what_it_had_asked_for() {
    for (asked, is_seen) in [(4, false), (6, true)] {
        let entry = Entry {
            asked: Some(asked),
            ..WRITES
        };
        for token in [0, 64] {
            let mut history = History::default();
            history.stopped("a", Duration::ZERO);
            history.resumed("a", 5);
            let number = history.enter("a", token, entry).expect("nobody is inside");
            history.enter("b", 2 * token, WRITES).expect("it is seen");
            history.write("a", number, 1).expect_err("b is inside");
            // With tokens, a late body is recognized by its token, so an overlap is not
            // excused.
            assert_eq!(violation(&history) != "none", is_seen || token > 0);

            let mut history = History::default();
            history.stopped("a", Duration::ZERO);
            history
                .enter("b", 2 * token, WRITES)
                .expect("nobody is inside");
            history.resumed("a", 5);
            let late = history.enter("a", token, entry);
            assert_eq!(late.is_err(), !is_seen || token > 0);
            assert_eq!(violation(&history) != "none", is_seen);
        }
    }
}

#[test]
fn readers_are_inside_together() {
    let mut history = History::default();
    let one = history.enter("a", 0, READS).expect("a number");
    let other = history.enter("b", 0, READS).expect("a number");
    history.read("a", one).expect("its turn");
    history.leave("a", one).expect("its turn");
    history.read("b", other).expect("its turn");
    history.leave("b", other).expect("its turn");
    let writer = history.enter("c", 0, WRITES).expect("a number");
    history.write("c", writer, 1).expect("its turn");
    history.leave("c", writer).expect("its turn");
    history.enter("a", 0, READS).expect("a number");
    history.check();
    assert_eq!(history.most_readers(), 2);
}

#[test]
fn a_writer_beside_a_reader_is_seen() {
    for (inside, comes) in [(READS, WRITES), (WRITES, READS)] {
        let mut history = History::default();
        history.enter("a", 0, READS).expect("a number");
        history.enter("b", 0, inside).expect("a number");
        history.enter("c", 0, comes).expect("a number");
        assert!(violation(&history).contains("came in while"));
    }
}

#[test]
fn a_stopped_reader_may_come_late() {
    let mut history = History::default();
    let late = history.enter("a", 0, READS).expect("a number");
    let other = history.enter("b", 0, READS).expect("a number");
    history.stopped("a", Duration::ZERO);
    history.leave("b", other).expect("its turn");
    let writer = history.enter("c", 0, WRITES).expect("a number");
    history.resumed("a", 0);
    history.read("a", late).expect_err("an older number");
    history.enter("a", 0, READS).expect_err("c is inside");
    history.leave("c", writer).expect("its turn");
    // Without tokens, this cannot be recognized as late.
    history.enter("a", 0, READS).expect("a number");
    history.enter("c", 0, WRITES).expect("a number");
    history.check();
}

#[test]
fn a_stopped_writer_does_not_write_beside_a_reader() {
    let mut history = History::default();
    let late = history.enter("a", 0, WRITES).expect("a number");
    history.stopped("a", Duration::ZERO);
    let reader = history.enter("b", 0, READS).expect("a number");
    history.resumed("a", 0);
    history.write("a", late, 1).expect_err("an older number");
    history.leave("b", reader).expect("its turn");
    history.check();
}

#[test]
fn a_token_that_does_not_rise_is_seen() {
    for token in [64, 63] {
        let mut history = History::default();
        history.enter("a", 64, WRITES).expect("a newer token");
        history.leave("a", 64).expect("its turn");
        history
            .enter("b", token, WRITES)
            .expect_err("no newer token");
        assert!(violation(&history).contains("never stopped"));
    }
}

#[test]
fn a_store_that_may_have_forgotten_is_excused_until_it_may_not() {
    let mut history = History::default();
    history.enter("a", 640, WRITES).expect("a newer token");
    history.doubts();
    history.enter("b", 64, WRITES).expect_err("no newer token");
    assert_eq!((history.excused(), violation(&history)), (1, "none"));
    history.knows(true);
    history
        .enter("b", 128, WRITES)
        .expect("a newer token than none");
    assert!(violation(&history).contains("came in while a"));
}

#[test]
fn leases_that_may_end_early_excuse_an_overlap_and_no_old_token() {
    let mut history = History::default();
    history.enter("a", 64, WRITES).expect("a newer token");
    history.ends_leases(true);
    history.enter("b", 128, WRITES).expect("a newer token");
    assert_eq!((history.excused(), violation(&history)), (1, "none"));
    history.leave("b", 128).expect("its turn");
    history.ends_leases(false);
    history.enter("c", 128, WRITES).expect_err("no newer token");
    assert!(violation(&history).contains("never stopped"));
}

#[test]
fn a_lost_update_is_seen() {
    let mut history = History::default();
    history.enter("a", 64, WRITES).expect("a newer token");
    history.write("a", 64, 1).expect("its turn");
    history.write("a", 64, 1).expect("its turn");
    assert!(violation(&history).contains("wrote 1 over 1"));
}

/// A lease that may not have ended is not to be had, whatever became of its holder.
#[test]
fn who_stands_still_keeps_a_lease_that_lasts() {
    for token in [0, 64] {
        for (lasts, is_seen) in [(Duration::ZERO, false), (Duration::from_secs(600), true)] {
            let mut history = History::default();
            let asked = Entry {
                asked: Some(1),
                ..WRITES
            };
            history.enter("a", token, asked).expect("its turn");
            history.stopped("a", lasts);
            history.enter("b", 2 * token, WRITES).expect("it is seen");
            assert_eq!(violation(&history).contains("came in while a"), is_seen);
        }
    }
}

#[test]
fn a_short_stop_excuses_nothing_afterwards() {
    for (lasts, is_seen) in [(Duration::ZERO, false), (Duration::from_secs(600), true)] {
        let mut history = History::default();
        history.enter("a", 64, WRITES).expect("its turn");
        history.stopped("a", lasts);
        history.resumed("a", 5);
        history.enter("b", 128, WRITES).expect("it is seen");
        history.write("a", 64, 1).expect_err("an older token");
        assert_eq!(violation(&history) != "none", is_seen);

        let mut history = History::default();
        history.stopped("a", lasts);
        history.enter("b", 128, WRITES).expect("its turn");
        history.resumed("a", 5);
        history.enter("a", 64, WRITES).expect_err("an older token");
        assert_eq!(violation(&history) != "none", is_seen);
    }
}

/// Without tokens it was left out of account silently, for ever after its first stop.
#[test]
fn who_asked_after_its_stop_is_not_overtaken_without_tokens() {
    for (asked, is_seen) in [(4, false), (6, true)] {
        let mut history = History::default();
        history.stopped("a", Duration::ZERO);
        history.resumed("a", 5);
        let entry = Entry {
            asked: Some(asked),
            ..WRITES
        };
        history.enter("a", 0, entry).expect("its turn");
        history.enter("b", 0, WRITES).expect("it is seen");
        assert_eq!(violation(&history).contains("came in while a"), is_seen);
    }
}

#[test]
fn a_body_that_goes_on_is_overtaken_after_its_loss_and_not_before() {
    let goes_on = Entry {
        goes_on: true,
        ..WRITES
    };
    for (held, is_seen) in [(2, false), (4, true)] {
        let mut history = History::default();
        history.hears_what_was_sent_at(1);
        history.enter("a", 64, goes_on).expect("its turn");
        history.hears_what_was_sent_at(3);
        history.enter("b", 128, WRITES).expect("a newer token");
        history.hears_what_was_sent_at(5);
        history.held("a", 64, held);
        history.write("a", 64, 1).expect_err("an older token");
        assert_eq!(violation(&history).contains("holds its lock"), is_seen);
        assert_eq!(violation(&history) != "none", is_seen);
    }
    // Nobody was there before, and this one came too late.
    let mut history = History::default();
    history.enter("b", 128, WRITES).expect("its turn");
    history.leave("b", 128).expect("its turn");
    history.enter("a", 64, goes_on).expect_err("an older token");
    assert!(violation(&history).contains("never stopped"));
}

#[test]
fn a_doubt_that_was_unfounded_excuses_nothing() {
    for forgot in [true, false] {
        let mut history = History::default();
        history.enter("a", 64, WRITES).expect("its turn");
        history.doubts();
        history.enter("b", 128, WRITES).expect("it is seen");
        history.knows(forgot);
        assert_eq!(history.excused(), usize::from(forgot));
        assert_eq!(violation(&history).contains("came in while a"), !forgot);
    }
    // Leases that end early are no doubt.
    let mut history = History::default();
    history.enter("a", 64, WRITES).expect("its turn");
    history.ends_leases(true);
    history.doubts();
    history.enter("b", 128, WRITES).expect("it is seen");
    history.knows(false);
    assert_eq!((history.excused(), violation(&history)), (1, "none"));
}

/// They need not come in the order of their tokens, after a writer that was stopped too.
#[test]
fn readers_come_in_any_order() {
    let mut history = History::default();
    history.enter("a", 64, WRITES).expect("its turn");
    history.stopped("a", Duration::ZERO);
    history.enter("b", 192, READS).expect("a newer token");
    history
        .enter("c", 128, READS)
        .expect("a newer token than a's");
    history.resumed("a", 0);
    history.write("a", 64, 1).expect_err("an older token");
    history.read("b", 192).expect("its turn");
    history.read("c", 128).expect("its turn");
    history.check();
    history.enter("d", 256, WRITES).expect("it is seen");
    assert!(violation(&history).contains("came in while b"));
}

const SHARES: Entry = Entry {
    permits: Some(2),
    ..WRITES
};

#[test]
fn no_more_are_inside_than_there_are_permits() {
    let mut history = History::default();
    history.enter("a", 64, SHARES).expect("a permit");
    history.enter("b", 128, SHARES).expect("a permit");
    history.leave("a", 64).expect("its turn");
    history.enter("c", 192, SHARES).expect("a permit");
    history.check();
    assert_eq!((history.most_readers(), history.entries()), (2, 3));
    history.enter("d", 256, SHARES).expect("it is seen");
    assert!(violation(&history).contains("beside [128, 192]"));
    // One of them had lost its permit, and was dropped.
    history.gone(192);
    assert_eq!(violation(&history), "none");
}

#[test]
fn a_permit_of_who_stands_still_is_free_when_its_lease_has_ended() {
    for (lasts, is_seen) in [(Duration::ZERO, false), (Duration::from_secs(600), true)] {
        let mut history = History::default();
        history.enter("a", 64, SHARES).expect("a permit");
        history.enter("b", 128, SHARES).expect("a permit");
        history.stopped("a", lasts);
        history.enter("c", 192, SHARES).expect("it is seen");
        assert_eq!(violation(&history) != "none", is_seen);
    }
}

#[test]
fn who_was_stopped_comes_late_with_a_permit_that_it_had_asked_for() {
    for (asked, is_seen) in [(4, false), (6, true)] {
        let mut history = History::default();
        history.stopped("a", Duration::ZERO);
        history.enter("b", 128, SHARES).expect("a permit");
        history.enter("c", 192, SHARES).expect("a permit");
        history.resumed("a", 5);
        let asked = Some(asked);
        let late = Entry { asked, ..SHARES };
        history.enter("a", 64, late).expect("it is seen");
        assert_eq!(violation(&history) != "none", is_seen);
    }
}
