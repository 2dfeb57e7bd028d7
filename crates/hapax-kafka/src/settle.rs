//! The half of a source that settles.

use std::fmt;
use std::sync::Arc;

use hapax_core::{Error, Settlement, Settler, crash_point};

use crate::ledger::{Ledger, Receipt};

/// Acks and hands back a source's deliveries. Cheap to clone, and used by many workers at once.
///
/// An ack is noted here and costs no round trip: the offset is committed within
/// [`commit_every`](crate::KafkaSource::commit_every), at once when nothing is in hand, and when a partition is
/// given back. A commit that does not come about means that messages come again, as duplicates. What is handed
/// back is delivered again from memory. A settlement that comes after its partition was lost is discarded with
/// `Ok`: the partition's next owner delivers the message again.
#[derive(Clone)]
pub struct KafkaSettler {
    ledger: Arc<Ledger>,
}

impl KafkaSettler {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger }
    }
}

impl fmt::Debug for KafkaSettler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSettler").finish_non_exhaustive()
    }
}

impl Settler<Receipt> for KafkaSettler {
    async fn settle(&self, settlements: Vec<Settlement<Receipt>>) -> Vec<Result<(), Error>> {
        crash_point!("kafka-before-ack");
        self.ledger.settle(&settlements);
        crash_point!("kafka-after-ack");
        settlements.iter().map(|_| Ok(())).collect()
    }
}
