//! Connections end without a word in the log: lapin reports as an error of the connection what was still
//! under way on it.

#![allow(clippy::unwrap_used)] // helpers of tests are tests, too

/// Keeps what is logged as an error, by whatever thread.
mod log {
    use std::fmt::{Debug, Write as _};
    use std::sync::{Mutex, PoisonError};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());

    pub(crate) fn listen() {
        tracing::subscriber::set_global_default(Errors).unwrap();
    }

    /// What was logged since the last call.
    pub(crate) fn errors() -> Vec<String> {
        std::mem::take(&mut ERRORS.lock().unwrap_or_else(PoisonError::into_inner))
    }

    struct Errors;

    impl Subscriber for Errors {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.is_event() && *metadata.level() == Level::ERROR
        }

        fn event(&self, event: &Event<'_>) {
            let mut line = Line(event.metadata().target().to_owned());
            event.record(&mut line);
            ERRORS.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1) // spans are not enabled
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = write!(self.0, " {field}={value:?}");
        }
    }
}

mod server {
    use std::time::Duration;

    use hapax_core::{Delivery, Envelope, Fetched, Outgoing, Publisher as _, Settler as _, Source as _};
    use hapax_rabbitmq::{RabbitMq, RabbitPublisher, RabbitSource};
    use hapax_testkit::servers::{Server, eventually, rabbitmq_url, require, unique};
    use tokio::runtime::Handle;

    use crate::log;

    const SOON: Duration = Duration::from_secs(30);
    /// What is under way when a connection closes is a matter of microseconds, so each way is gone often.
    const TIMES: usize = 10;

    fn rabbit() -> RabbitMq {
        RabbitMq::new(&rabbitmq_url()).unwrap()
    }

    async fn used_publisher(queue: &str) -> RabbitPublisher {
        let publisher = rabbit().publisher();
        publisher.declare_queue(queue).await.unwrap();
        let messages = (0..3).map(|n| Outgoing::to_queue(queue, Envelope::new(n.to_string())));
        publisher.publish(messages.collect()).await.into_iter().for_each(|sent| sent.unwrap());
        publisher
    }

    async fn used_source(queue: &str) -> RabbitSource {
        let mut source = rabbit().source(queue);
        source.prepare(10).await.unwrap();
        let Fetched::Batch(batch) = source.next(1).await.unwrap() else { panic!("no batch") };
        source.settler().settle(batch.into_iter().map(Delivery::ack).collect()).await;
        source
    }

    /// lapin's threads, one per connection; none where there is no `/proc`.
    fn threads() -> usize {
        let names = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        names
            .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
            .filter(|name| name.starts_with("lapin"))
            .count()
    }

    /// Waits until nothing runs in the background: then every goodbye has been said.
    async fn assert_quiet(after: &str) {
        let tasks = || Handle::current().metrics().num_alive_tasks();
        eventually("the goodbyes are over", SOON, async || tasks() == 0 && threads() == 0).await;
        assert_eq!(log::errors(), Vec::<String>::new(), "{after}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_connection_ends_with_an_error() {
        if !require(Server::RabbitMq) {
            return;
        }
        log::listen();
        let queue = unique("quiet");
        for _ in 0..TIMES {
            used_publisher(&queue).await.close().await;
        }
        assert_quiet("a publisher was closed").await;
        for _ in 0..TIMES {
            drop(used_publisher(&queue).await);
        }
        assert_quiet("a publisher was dropped").await;
        for _ in 0..TIMES {
            used_source(&queue).await.close().await;
        }
        assert_quiet("a source was closed").await;
        for _ in 0..TIMES {
            drop(used_source(&queue).await);
        }
        assert_quiet("a source was dropped").await;
        for _ in 0..TIMES {
            let publisher = used_publisher(&queue).await;
            let mut source = used_source(&queue).await;
            publisher.delete_queue(&queue).await.unwrap();
            eventually("the source notices", SOON, async || !source.is_connected()).await;
            source.close().await;
            publisher.close().await;
        }
        assert_quiet("a queue was deleted under a source").await;
    }
}
