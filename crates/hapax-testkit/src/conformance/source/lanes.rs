//! Order within a lane. Sources that keep none pass.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::collections::BTreeMap;

use hapax_core::{Envelope, Source as _};

use super::SourceFixture;
use super::by_hand::{ByHand, id, message};

/// The messages of a key come in the order in which they were published, and in one lane if there are lanes.
pub async fn the_messages_of_a_lane_come_in_order<F: SourceFixture>(fixture: &F) {
    let mut source = ByHand::<F>::open(fixture).await;
    if !source.source.capabilities().ordered {
        return;
    }
    let mut expected: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for n in 0..20 {
        let key = ["ada", "bob", "cyd"][n % 3];
        let published = keyed(&format!("message {n:03}"), key);
        expected.entry(key).or_default().extend(published.properties.message_id.clone());
        fixture.publish(published).await;
    }
    let mut came: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut lanes = BTreeMap::new();
    for _ in 0..20 {
        let delivery = source.take_one().await;
        let lane = delivery.lane.clone();
        let key = delivery.envelope.properties.key.clone().expect("the key comes through");
        let key = *expected.keys().find(|known| **known == key).expect("a key that was published");
        assert_eq!(lanes.entry(key).or_insert_with(|| lane.clone()), &lane, "a key stays in its lane");
        came.entry(key).or_default().push(id(&delivery).to_owned());
        source.ack(vec![delivery]).await;
    }
    assert_eq!(came, expected);
}

fn keyed(id: &str, key: &str) -> Envelope {
    let mut envelope = message(id);
    envelope.properties.key = Some(key.to_owned());
    envelope
}
