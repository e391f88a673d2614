//! What the recipes do. `build.rs` puts this file behind the last snippet of the page, so it
//! sees the recipes as they are printed there.

use super::*;

#[tokio::test(start_paused = true)]
async fn who_loses_the_lock_is_told_and_leads_again_behind_the_others() -> Result<(), LockError> {
    let memory = Memory::new();
    let manager = LockManager::connect(Config::with_backend(memory.clone())).await?;
    let (telling, mut told) = tokio::sync::mpsc::unbounded_channel();
    let lead = |token, mut leading: watch::Receiver<bool>| {
        let telling = telling.clone();
        async move {
            telling.send((token, true)).expect("a listener");
            while *leading.borrow_and_update() {
                leading.changed().await.expect("a campaign");
            }
            telling.send((token, false)).expect("a listener");
        }
    };
    let watched = async {
        let (mut last, _) = told.recv().await.expect("a leader");
        for _ in 0..3 {
            memory.faults().take_away("leader");
            assert_eq!(told.recv().await, Some((last, false)));
            let (next, leads) = told.recv().await.expect("a leader");
            assert!(leads && next > last);
            last = next;
        }
        Ok(())
    };
    tokio::select! {
        ended = manager.scope(campaign(lead)) => ended,
        watched = watched => watched,
    }
}

#[tokio::test(start_paused = true)]
async fn who_leads_on_without_the_lock_is_cancelled() -> Result<(), LockError> {
    let memory = Memory::new();
    let manager = LockManager::connect(Config::with_backend(memory.clone())).await?;
    let (telling, mut told) = tokio::sync::mpsc::unbounded_channel();
    let lead = |_, leading: watch::Receiver<bool>| {
        let telling = telling.clone();
        async move {
            let (working, ended) = tokio::sync::oneshot::channel::<()>();
            telling.send(ended).expect("a listener");
            // It looks at nothing.
            std::future::pending::<()>().await;
            drop((working, leading));
        }
    };
    let watched = async {
        let ended = told.recv().await.expect("a leader");
        memory.faults().take_away("leader");
        let lost = tokio::time::Instant::now();
        assert!(ended.await.is_err(), "dropped with all that it had");
        assert!((GRACE..2 * GRACE).contains(&lost.elapsed()));
        told.recv().await.expect("the next leader");
        Ok(())
    };
    tokio::select! {
        ended = manager.scope(campaign(lead)) => ended,
        watched = watched => watched,
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_has_three_exports_at_once() -> Result<(), JobError> {
    let memory = Memory::new();
    let here = LockManager::connect(Config::with_backend(memory.clone())).await?;
    let there = LockManager::connect(Config::with_backend(memory)).await?;
    let mut running = Vec::new();
    for _ in 0..3 {
        running.push(there.lock("export:acme").permits(3).acquire().await?);
    }
    let late = here.scope(export("acme")).await;
    assert!(matches!(
        late,
        Err(JobError::Lock(LockError::Timeout { .. }))
    ));
    here.scope(export("globex")).await?;
    running.pop();
    here.scope(export("acme")).await
}

#[tokio::test(start_paused = true)]
async fn what_is_done_is_not_done_again() -> Result<(), LockError> {
    let manager = LockManager::connect(Config::default()).await?;
    let done_twice = manager.scope(async {
        for _ in 0..2 {
            migrate(7).await?;
            handle(&Message { id: 7 }).await?;
        }
        nightly("monday").await?;
        nightly("monday").await
    });
    let told = done_twice.await;
    assert!(matches!(told, Err(JobError::Lock(LockError::Done { .. }))));
    let mut done = manager.list("").await?;
    done.retain(|lock| lock.done.is_some());
    assert_eq!(done.len(), 3);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn copies_wait_for_a_migration_and_take_over_one_that_failed() -> Result<(), LockError> {
    let memory = Memory::new();
    let migration = Work::that_fails(1);
    let mut starting = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let copy = LockManager::connect(Config::with_backend(memory.clone())).await?;
        let migration = migration.clone();
        starting.spawn(async move {
            let migrated = copy.scope(migrate(7));
            let started = migration.clone().of(migrated).await;
            (started, migration.done())
        });
    }
    let (mut started, mut failed) = (0, 0);
    for copy in starting.join_all().await {
        match copy {
            // Not before the migration was done.
            (Ok(()), 1) => started += 1,
            (Err(JobError::Work(_)), 0) => failed += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((started, failed, migration.begun()), (4, 1, 2));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_handling_failed_is_handled_again() -> Result<(), JobError> {
    let manager = LockManager::connect(Config::default()).await?;
    let handling = Work::that_fails(1);
    let deliveries = async {
        let message = Message { id: 7 };
        let failed = handle(&message).await;
        assert!(matches!(failed, Err(JobError::Work(_))));
        handle(&message).await?;
        // Its acknowledgement was lost.
        handle(&message).await
    };
    handling.clone().of(manager.scope(deliveries)).await?;
    assert_eq!((handling.begun(), handling.done()), (2, 1));
    Ok(())
}

#[tokio::test]
async fn a_function_that_blocks_has_the_lock_and_stops_without_it() -> Result<(), JobError> {
    let memory = Memory::new();
    let locks = LockManager::connect(Config::with_backend(memory.clone())).await?;
    let others = LockManager::connect(Config::with_backend(memory.clone())).await?;
    for blocks_itself in [true, false] {
        let run = async |pages| match blocks_itself {
            true => index(locks.clone(), pages).await,
            false => locks.scope(index_all(pages)).await,
        };
        let others = others.clone();
        let has_it = Page::new(move || {
            let refused = Handle::current().block_on(others.lock("index").try_acquire());
            assert!(matches!(refused, Err(LockError::Busy { .. })));
        });
        assert_eq!(run(vec![has_it, Page::new(|| ())]).await?, 2);

        let memory = memory.clone();
        let loses = Page::new(move || assert!(memory.faults().take_away("index")));
        let added = Arc::new(AtomicUsize::new(0));
        let rest = (0..10_000).map(|_| {
            let added = Arc::clone(&added);
            Page::new(move || {
                added.fetch_add(1, Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            })
        });
        let pages = std::iter::once(loses).chain(rest).collect();
        let ended = run(pages).await;
        assert!(matches!(ended, Err(JobError::Lock(LockError::Lost { .. }))));
        assert!(added.load(Relaxed) < 10_000, "it stopped in time");
    }
    Ok(())
}

#[tokio::test]
async fn at_the_end_nothing_is_held() -> Result<(), LockError> {
    let memory = Memory::new();
    let ending = LockManager::connect(Config::with_backend(memory.clone())).await?;
    let other = LockManager::connect(Config::with_backend(memory)).await?;
    drop(ending.lock("other press").acquire().await?);
    let code = run_to_the_end(&ending).await;
    assert_eq!(code, ExitCode::SUCCESS);
    assert!(other.list("").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn what_is_dropped_is_removed_under_its_lock() -> Result<(), LockError> {
    let memory = Memory::new();
    let locks = LockManager::connect(Config::with_backend(memory.clone())).await?;
    let others = LockManager::connect(Config::with_backend(memory)).await?;
    let (left, leaving) = tokio::sync::mpsc::unbounded_channel();
    let cleaner = tokio::spawn(clean_up(locks, leaving));
    let used = others.lock("upload:a").acquire().await?;
    let name = "a".to_owned();
    drop(Upload { name, left });
    // The task waits for who uses it.
    while others
        .inspect("upload:a")
        .await?
        .is_some_and(|lock| lock.waiters == Some(0))
    {
        tokio::task::yield_now().await;
    }
    assert!(!cleaner.is_finished());
    used.release().await?;
    cleaner.await.expect("it does not panic")
}

#[tokio::test(start_paused = true)]
async fn a_cart_has_the_locks_of_all_its_articles() -> Result<(), JobError> {
    let memory = Memory::new();
    let here = LockManager::connect(Config::with_backend(memory.clone())).await?;
    let there = LockManager::connect(Config::with_backend(memory)).await?;
    let cart = ["plate", "mug:blue", "plate"].map(str::to_owned);
    here.scope(check_out(&cart)).await?;
    let others = there.lock("stock:mug:blue").acquire().await?;
    let refused = here.scope(check_out(&cart)).await;
    let Err(JobError::Lock(LockError::Timeout { .. })) = refused else {
        panic!("{refused:?}");
    };
    // All or none.
    assert_eq!(there.list("").await?.len(), 1);
    others.release().await?;
    here.scope(check_out(&cart)).await?;
    let none = here.scope(check_out(&[])).await;
    let Err(JobError::Lock(LockError::InvalidKey { .. })) = none else {
        panic!("{none:?}");
    };
    Ok(())
}

/// A name that a function makes is as it is written; a template encodes.
#[tokio::test(start_paused = true)]
async fn a_template_encodes_what_a_function_does_not() -> Result<(), LockError> {
    #[distributed_lock(key = "stock:<sku>", try)]
    async fn by_template(sku: &str) -> Result<String, LockError> {
        Ok(dlock::current().expect("inside").key().to_string())
    }
    #[distributed_lock(key = "<tenant>-<id>", try)]
    async fn of_tenant(tenant: &str, id: u64) -> Result<String, LockError> {
        Ok(dlock::current().expect("inside").key().to_string())
    }
    let manager = LockManager::connect(Config::default()).await?;
    manager
        .scope(async {
            assert_eq!(by_template("a:b").await?, "stock:a%3Ab");
            assert_eq!(of_tenant("a-b", 7).await?, "a%2Db-7");
            assert_eq!(stock("a:b"), "stock:a:b");
            let id = u64::MAX.to_string();
            assert_eq!(by_template(&id).await?, stock(&id));
            Ok(())
        })
        .await
}

#[tokio::test(start_paused = true)]
async fn a_status_says_why_there_is_no_lock() -> Result<(), LockError> {
    let memory = Memory::new();
    let manager = LockManager::connect(Config::with_backend(memory.clone())).await?;
    assert_eq!(manager.scope(deduct("mug")).await.expect("it is free"), 99);
    let _others = manager.lock("stock:mug").acquire().await?;
    let late = manager.scope(deduct("mug")).await.expect_err("held");
    assert_eq!(late.code(), Code::Aborted);
    manager.shutdown().await;
    let late = manager.scope(deduct("mug")).await.expect_err("at the end");
    assert_eq!(late.code(), Code::Unavailable);
    Ok(())
}
