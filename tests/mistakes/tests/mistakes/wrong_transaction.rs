use hapax::{Consumer, Message};
use hapax_testkit::memory::{MemoryBroker, MemoryStore, MemoryTx};

#[derive(serde::Deserialize)]
struct Paid {
    order: String,
}

async fn pay(tx: &mut String, paid: Message<Paid>) -> hapax::Result {
    tx.push_str(&paid.order);
    Ok(())
}

fn main() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let consumer = Consumer::new("orders", store, broker.source("orders")).unwrap();
    let _ = consumer.on("Paid", pay);
}
