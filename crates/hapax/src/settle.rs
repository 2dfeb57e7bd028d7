//! The end of a message: counted, acked, given back.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use hapax_core::{Code, ConsumerStore, Settlement, Settler, crash_point};
use tracing::{Instrument as _, debug, debug_span, info, warn};

use crate::attempt::End;
use crate::job::{Hold, Job, Order};
use crate::metrics;
use crate::shared::Shared;
use crate::worker::{Worker, busy_wait};

impl<S: ConsumerStore, T: Settler<R>, R: Clone + Send + Sync + 'static> Shared<S, T, R> {
    /// Counts and settles messages whose transaction is committed.
    pub(crate) async fn conclude(&self, worker: &mut Worker<R>, jobs: Vec<Job<R>>, ends: Vec<End>) {
        let mut settlements: Vec<Settlement<R>> = Vec::with_capacity(jobs.len());
        let mut slots = Vec::with_capacity(jobs.len());
        let mut not_redriven = Vec::new();
        let here = self.store.instance();
        for (mut job, end) in jobs.into_iter().zip(ends) {
            if end == End::Busy {
                job.busy += 1;
                job.grip = None; // if there was one, somebody has taken the message over
                job.ready_at = Some(Instant::now() + busy_wait(job.busy));
                worker.busy.push(job);
                continue;
            }
            if let End::Returned(number) = end
                && let Err(error) = self.redrive_returned(&job, number).await
            {
                warn!(consumer = %self.consumer, %number, %error, "a dead letter that came back was not redriven; it comes again");
                not_redriven.push(job);
                continue;
            }
            self.count(&job, &end);
            if let Hold::Delivery(delivery) = job.hold {
                let inside = delivery.in_store.is_some_and(|receipt| receipt.store == here);
                let is_settled = inside && !matches!(end, End::Returned(_));
                settlements.push(if is_settled { delivery.acked_in_store() } else { delivery.ack() });
            }
            slots.push(job.slot);
        }
        self.settle(settlements).await;
        drop(slots);
        if !not_redriven.is_empty() {
            self.hand_back(not_redriven).await;
        }
    }

    fn count(&self, job: &Job<R>, end: &End) {
        let vitals = &self.vitals;
        match end {
            End::Handled { ambiguous } => {
                self.brake.succeeded();
                vitals.handled.fetch_add(1, SeqCst);
                vitals.ambiguous.fetch_add(u64::from(*ambiguous), SeqCst);
                metrics::ended(&self.consumer, "handled", 1);
                if job.message().is_some_and(|message| message.sent_at.is_none()) {
                    metrics::without_sent_at(&self.consumer, 1);
                }
            }
            End::Duplicate | End::Returned(_) => {
                vitals.duplicates.fetch_add(1, SeqCst);
                metrics::ended(&self.consumer, "duplicate", 1);
            }
            End::Dead(code) => {
                vitals.dead.fetch_add(1, SeqCst);
                vitals.ambiguous.fetch_add(u64::from(*code == Code::Ambiguous), SeqCst);
                metrics::ended(&self.consumer, "dead", 1);
                info!(consumer = %self.consumer, message_id = job.id_text(), kind = job.kind(), code = %code, "set aside");
            }
            End::Parked { wait } => self.alarm.set(*wait),
            End::Busy => {}
        }
        metrics::delivered(&self.consumer, job.received_at.elapsed());
        if self.settings.order != Order::None && job.place().is_some() {
            self.alarm.set(Duration::ZERO); // whoever queued up behind it is next
        }
    }

    pub(crate) async fn settle(&self, settlements: Vec<Settlement<R>>) {
        if settlements.is_empty() {
            return;
        }
        crash_point!("before-ack");
        let span = debug_span!("ack", consumer = %self.consumer, deliveries = settlements.len());
        for error in
            self.settler.settle(settlements).instrument(span).await.into_iter().filter_map(Result::err)
        {
            debug!(consumer = %self.consumer, %error, "a delivery was not settled; it will come again as a duplicate");
        }
        crash_point!("after-ack");
    }

    /// Gives messages back untouched: to the broker, or to the waiting room.
    pub(crate) async fn hand_back(&self, jobs: Vec<Job<R>>) {
        let started: Vec<_> =
            jobs.iter().filter(|job| job.start_charged).filter_map(|job| job.id().cloned()).collect();
        if !started.is_empty() {
            self.erase_starts(started).await;
        }
        self.let_go(&jobs).await;
        let places: Vec<_> = jobs.iter().filter_map(Job::place).collect();
        if !places.is_empty()
            && let Err(error) = self.store.give_back(&self.consumer, &places).await
        {
            warn!(%error, "waiting messages were not given back; they come again when their leases end");
        }
        let mut slots = Vec::with_capacity(jobs.len());
        let mut settlements = Vec::with_capacity(jobs.len());
        for job in jobs {
            if let Hold::Delivery(delivery) = job.hold {
                settlements.push(delivery.hand_back());
            }
            slots.push(job.slot);
        }
        self.settle(settlements).await;
    }
}
