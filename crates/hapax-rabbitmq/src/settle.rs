//! Which frames settle which deliveries of one channel.

use std::collections::BTreeSet;

use hapax_core::Settle;

/// A frame to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// `basic.ack` of one delivery.
    Ack(u64),
    /// `basic.ack` with `multiple`: of this delivery and all outstanding ones before it.
    AckUpTo(u64),
    /// `basic.nack` with `requeue`, of one delivery.
    HandBack(u64),
}

/// The frames to send, in this order, and which of them settles which delivery.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) frames: Vec<Frame>,
    /// Per delivery that was to be settled, its frame's index; none if it is not outstanding.
    pub(crate) frame_of: Vec<Option<usize>>,
}

/// The delivery tags of one channel that the broker waits for.
///
/// The broker closes a channel over an ack for a tag that it does not wait for, so each tag leaves
/// once, and the frames of successive plans must be sent in the order of the plans.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    tags: BTreeSet<u64>,
}

impl Outstanding {
    pub(crate) fn delivered(&mut self, tag: u64) {
        self.tags.insert(tag);
    }

    pub(crate) fn len(&self) -> usize {
        self.tags.len()
    }

    /// Takes deliveries out and plans the fewest frames that settle them and no others.
    pub(crate) fn settle(&mut self, deliveries: &[(u64, Settle)]) -> Plan {
        let mut plan = Plan { frames: Vec::new(), frame_of: vec![None; deliveries.len()] };
        let mut acked = Vec::with_capacity(deliveries.len());
        for (entry, (tag, verdict)) in deliveries.iter().enumerate() {
            if !self.tags.remove(tag) {
                continue;
            }
            match verdict {
                Settle::HandBack => plan.add(Frame::HandBack(*tag), &[(*tag, entry)]),
                _ => acked.push((*tag, entry)),
            }
        }
        // The hand-backs go first: what they take out no longer stands in the way of `multiple`.
        acked.sort_unstable();
        let (contiguous, apart) = acked.split_at(self.before_the_first_left(&acked));
        match contiguous {
            [] => {}
            [(tag, _)] => plan.add(Frame::Ack(*tag), contiguous),
            [.., (last, _)] => plan.add(Frame::AckUpTo(*last), contiguous),
        }
        for delivery in apart {
            plan.add(Frame::Ack(delivery.0), std::slice::from_ref(delivery));
        }
        plan
    }

    /// How many of these tags, in ascending order, lie below all that stay outstanding.
    fn before_the_first_left(&self, ascending: &[(u64, usize)]) -> usize {
        match self.tags.first() {
            Some(first_left) => ascending.partition_point(|(tag, _)| tag < first_left),
            None => ascending.len(),
        }
    }
}

impl Plan {
    fn add(&mut self, frame: Frame, settles: &[(u64, usize)]) {
        for (_, entry) in settles {
            self.frame_of[*entry] = Some(self.frames.len());
        }
        self.frames.push(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The broker's side of a channel.
    #[derive(Default)]
    struct Broker {
        unacked: BTreeSet<u64>,
        acked: BTreeSet<u64>,
        requeued: BTreeSet<u64>,
    }

    impl Broker {
        fn receive(&mut self, frame: Frame) {
            let (Frame::Ack(tag) | Frame::AckUpTo(tag) | Frame::HandBack(tag)) = frame;
            assert!(self.unacked.contains(&tag), "unknown delivery tag: the channel is closed ({frame:?})");
            match frame {
                Frame::Ack(_) => drop(self.acked.insert(tag)),
                Frame::HandBack(_) => drop(self.requeued.insert(tag)),
                Frame::AckUpTo(_) => self.acked.extend(self.unacked.range(..=tag)),
            }
            self.unacked.retain(|tag| !self.acked.contains(tag) && !self.requeued.contains(tag));
        }
    }

    fn outstanding(tags: impl IntoIterator<Item = u64>) -> Outstanding {
        Outstanding { tags: tags.into_iter().collect() }
    }

    fn acks(tags: impl IntoIterator<Item = u64>) -> Vec<(u64, Settle)> {
        tags.into_iter().map(|tag| (tag, Settle::Ack)).collect()
    }

    #[test]
    fn a_batch_in_order_is_one_frame() {
        assert_eq!(outstanding(1..=100).settle(&acks(1..=100)).frames, [Frame::AckUpTo(100)]);
        assert_eq!(outstanding(1..=100).settle(&acks((1..=50).rev())).frames, [Frame::AckUpTo(50)]);
    }

    #[test]
    fn what_is_still_outstanding_is_never_covered() {
        let mut held = outstanding(1..=6);
        assert_eq!(held.settle(&acks([3, 4])).frames, [Frame::Ack(3), Frame::Ack(4)]);
        assert_eq!(held.settle(&acks([1, 6])).frames, [Frame::Ack(1), Frame::Ack(6)]);
        assert_eq!(held.settle(&acks([2, 5])).frames, [Frame::AckUpTo(5)], "3 and 4 were acked earlier");
    }

    #[test]
    fn a_hand_back_does_not_stand_in_the_way() {
        let plan =
            outstanding(1..=3).settle(&[(1, Settle::Ack), (2, Settle::HandBack), (3, Settle::AckedInStore)]);
        assert_eq!(plan.frames, [Frame::HandBack(2), Frame::AckUpTo(3)]);
        assert_eq!(plan.frame_of, [Some(1), Some(0), Some(1)]);
    }

    #[test]
    fn a_tag_is_settled_once() {
        let mut held = outstanding(1..=2);
        assert_eq!(held.settle(&acks([1, 1])).frame_of, [Some(0), None]);
        assert!(held.settle(&acks([1, 7])).frames.is_empty());
        assert_eq!(held.len(), 1);
    }

    /// Every way to settle five deliveries in any order, in calls of any size, each acked or handed
    /// back, while new ones arrive in between: the broker must see exactly that and close nothing.
    #[test]
    fn every_order_and_grouping_settles_exactly_what_was_meant() {
        let mut orders = Vec::new();
        permute(&mut [1, 2, 3, 4, 5], 0, &mut orders);
        for order in &orders {
            for cuts in 0..16_u32 {
                for verdicts in 0..32_u32 {
                    settle_all(order, cuts, verdicts);
                }
            }
        }
    }

    fn settle_all(order: &[u64], cuts: u32, verdicts: u32) {
        let mut held = outstanding(1..=5);
        let mut broker = Broker { unacked: (1..=5).collect(), ..Broker::default() };
        let verdict = |tag: u64| if verdicts >> (tag - 1) & 1 == 0 { Settle::Ack } else { Settle::HandBack };
        let mut call = Vec::new();
        for (place, tag) in order.iter().enumerate() {
            call.push((*tag, verdict(*tag)));
            if place == order.len() - 1 || cuts >> place & 1 == 1 {
                let plan = held.settle(&std::mem::take(&mut call));
                assert!(plan.frame_of.iter().all(Option::is_some));
                plan.frames.into_iter().for_each(|frame| broker.receive(frame));
                let next = 6 + place as u64;
                held.delivered(next);
                broker.unacked.insert(next);
                assert_eq!(broker.unacked, held.tags, "{order:?} {cuts:b} {verdicts:b}");
            }
        }
        let handed_back = (1..=5).filter(|tag| verdict(*tag) == Settle::HandBack).collect();
        assert_eq!(broker.requeued, handed_back, "{order:?} {cuts:b} {verdicts:b}");
    }

    fn permute(tags: &mut [u64], from: usize, into: &mut Vec<Vec<u64>>) {
        if from == tags.len() {
            return into.push(tags.to_vec());
        }
        for place in from..tags.len() {
            tags.swap(from, place);
            permute(tags, from + 1, into);
            tags.swap(from, place);
        }
    }
}
