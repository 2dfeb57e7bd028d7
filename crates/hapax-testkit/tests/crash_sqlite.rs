//! Case 05 on SQLite: killed at every step of a delivery, from a file and from the embedded queue.

mod crash;

use crash::{
    ASIDE, OUTSIDE, STEPS, dead, eager, effects, envelopes, kill_and_run_again, messages, run_to_end,
    subject, verdict, verdict_on_calls,
};
use hapax::SqliteStore;
use hapax_testkit::process::Subject;
use tempfile::TempDir;

struct Ground {
    folder: TempDir,
    url: String,
}

impl Ground {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("subject.db").display());
        Self { folder, url }
    }

    fn file(&self, lines: &[String]) -> Subject {
        let path = self.folder.path().join("messages.jsonl");
        std::fs::write(&path, lines.join("\n")).expect("the file is written");
        subject(&self.url, &format!("file:{}", path.display()))
    }

    async fn queue(&self) -> Subject {
        let store = SqliteStore::connect(&self.url).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        store.send("messages", &envelopes()).await.expect("messages are sent");
        subject(&self.url, "queue:messages")
    }

    async fn assert_sound(&self, context: &str) {
        let wrong = verdict(&effects(&self.url).await);
        assert!(wrong.is_empty(), "{context}: {wrong:?}");
        let store = SqliteStore::connect(&self.url).await.expect("the store opens");
        assert_eq!(dead(&store).await, [("m11".to_owned(), "HX0040".to_owned())], "{context}");
    }
}

#[tokio::test]
async fn case_05_killed_at_every_step_of_a_file() {
    for step in STEPS {
        let ground = Ground::new();
        kill_and_run_again(&ground.file(&messages()), step, 1).await;
        ground.assert_sound(step).await;
    }
}

#[tokio::test]
async fn case_05_killed_at_every_step_of_the_embedded_queue() {
    for step in STEPS.into_iter().chain(ASIDE) {
        let ground = Ground::new();
        kill_and_run_again(&ground.queue().await, step, 1).await;
        ground.assert_sound(step).await;
    }
}

#[tokio::test]
async fn case_20_case_35_killed_at_every_step_of_a_call() {
    for step in OUTSIDE {
        let ground = Ground::new();
        let (subject, calls) = eager(ground.queue().await, ground.folder.path());
        kill_and_run_again(&subject, step, 1).await;
        ground.assert_sound(step).await;
        let wrong = verdict_on_calls(&calls);
        assert!(wrong.is_empty(), "{step}: {wrong:?}");
    }
}

#[tokio::test]
async fn killed_again_and_again_at_later_passages() {
    let ground = Ground::new();
    let subject = ground.queue().await;
    for (step, nth) in [("after-commit", 2), ("before-commit", 2), ("after-handler", 3), ("after-claim", 1)] {
        let mut running = subject.clone().crash_at(step, nth).start().expect("the subject starts");
        running.wait_exit(crash::PATIENCE).await; // killed, or done before it came so far
    }
    run_to_end(&subject).await;
    ground.assert_sound("after four kills").await;
}

#[tokio::test]
async fn case_15_a_message_of_the_embedded_queue_that_kills_the_process_is_set_aside_alone() {
    for what in ["kill", "overflow the stack"] {
        let ground = Ground::new();
        let mut lines = messages();
        lines.insert(4, format!(r#"{{"id":"killer","key":"x","do":"{what}"}}"#));
        let subject = ground.file(&lines);
        let mut deaths = 0;
        loop {
            let mut running = subject.start().expect("the subject starts");
            deaths += 1;
            if running.wait_exit(crash::PATIENCE).await.success() {
                break;
            }
            assert!(deaths < 12, "it goes on dying: {running}");
        }
        assert!(deaths > 3, "it was set aside before it had its attempts: {deaths} runs");
        let wrong = verdict(&effects(&ground.url).await);
        assert!(wrong.is_empty(), "{what}: {wrong:?}");
        let store = SqliteStore::connect(&ground.url).await.expect("the store opens");
        let mut reasons = dead(&store).await;
        reasons.sort();
        assert_eq!(reasons, [("killer".into(), "HX0042".into()), ("m11".into(), "HX0040".into())], "{what}");
    }
}

#[tokio::test]
async fn the_suite_finds_an_inbox_row_written_in_a_transaction_of_its_own() {
    let ground = Ground::new();
    let subject = ground.file(&messages()).arg("split");
    kill_and_run_again(&subject, "after-claim", 1).await;
    let wrong = verdict(&effects(&ground.url).await);
    assert!(!wrong.is_empty(), "the suite did not notice that claims outlived their effects");
}

#[tokio::test]
async fn an_orderly_end_hands_back_what_is_not_begun_and_makes_nothing_suspect() {
    let ground = Ground::new();
    let lines: Vec<_> =
        (0..20).map(|n| format!(r#"{{"id":"m{n}","key":"k","do":"take a while"}}"#)).collect();
    let store = SqliteStore::connect(&ground.url).await.expect("the store opens");
    store.migrate().await.expect("the schema is made");
    let sent: Vec<_> = lines.into_iter().map(hapax_core::Envelope::new).collect();
    store.send("messages", &sent).await.expect("messages are sent");
    let subject = subject(&ground.url, "queue:messages");
    let mut running = subject.start().expect("the subject starts");
    let queue = store.queue("messages");
    hapax_testkit::servers::eventually("a first batch is done", crash::PATIENCE, async || {
        queue.depth().await.is_ok_and(|depth| depth < 20)
    })
    .await;
    running.terminate().expect("it is asked to end");
    assert!(running.wait_exit(crash::PATIENCE).await.success(), "{running}");
    let handled: i64 = effects(&ground.url).await.values().sum();
    let left = i64::try_from(queue.depth().await.expect("the queue answers")).expect("few");
    assert_eq!(handled + left, 20, "{running}");
    let again = run_to_end(&subject).await;
    assert!(!again.stderr().contains("runs alone"), "{again}");
    assert_eq!(effects(&ground.url).await.values().sum::<i64>(), 20);
}
