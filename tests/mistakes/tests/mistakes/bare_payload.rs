use hapax::{Consumer, Message};
use hapax_testkit::memory::{MemoryBroker, MemoryStore, MemoryTx};

#[derive(serde::Deserialize)]
struct Paid {
    order: String,
}

async fn pay(tx: &mut MemoryTx, paid: Paid) -> hapax::Result {
    tx.add(&paid.order, 1)?;
    Ok(())
}

fn main() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let consumer = Consumer::new("orders", store, broker.source("orders")).unwrap();
    let _ = consumer.on("Paid", pay);
}
