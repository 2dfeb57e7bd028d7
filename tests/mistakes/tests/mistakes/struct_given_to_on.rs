use hapax::{Consumer, Message};
use hapax_testkit::memory::{MemoryBroker, MemoryStore, MemoryTx};

#[derive(serde::Deserialize)]
struct Paid {
    order: String,
}

struct Till;

impl hapax::Handler<MemoryStore, Paid> for Till {
    async fn handle(&self, tx: &mut MemoryTx, paid: Message<Paid>) -> hapax::Result {
        tx.add(&paid.order, 1)?;
        Ok(())
    }
}

fn main() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let consumer = Consumer::new("orders", store, broker.source("orders")).unwrap();
    let _ = consumer.on::<Paid, _>("Paid", Till);
}
