//! The verification of each kind, line by line.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderValue;
use hapax_http::Problem;
use hapax_http::webhook::{GitHub, NotVerified, Secret, StandardWebhooks, Stripe, Webhook as _};

use crate::sent::{
    BODY, ID, NOW, SECRET, SIGNATURE, github, headers, now, receiver, standard, standard_secret,
    standard_signature, stripe, stripe_receiver,
};

const PAID: &[u8] = br#"{"type":"invoice.paid","data":{"id":1}}"#;

fn bytes(body: &'static [u8]) -> Bytes {
    Bytes::from_static(body)
}

fn refused(error: NotVerified) -> (u16, &'static str) {
    let problem = Problem::from(error);
    (problem.status().as_u16(), problem.code().as_str())
}

mod standard_webhooks {
    use super::*;

    #[test]
    fn the_published_test_vector_is_verified() {
        let at = NOW.to_string();
        let sent =
            headers(&[("webhook-id", ID), ("webhook-timestamp", &at), ("webhook-signature", SIGNATURE)]);
        let event = StandardWebhooks::new([SECRET]).unwrap().clock(now).verify(&sent, &bytes(BODY)).unwrap();
        assert_eq!(event.id.as_str(), ID);
        assert_eq!(event.timestamp, Some(now()));
        assert_eq!((event.kind, event.body), (None, bytes(BODY)));
    }

    #[test]
    fn the_type_is_read_from_the_body() {
        let event = receiver().verify(&standard("msg_1", 0, PAID), &bytes(PAID)).unwrap();
        assert_eq!(event.kind.as_deref(), Some("invoice.paid"));
        let elsewhere: &[u8] = br#"{"event":{"name":"x"}}"#;
        let receiver = receiver().type_at("/event/name".parse().unwrap());
        let event = receiver.verify(&standard("msg_1", 0, elsewhere), &bytes(elsewhere)).unwrap();
        assert_eq!(event.kind.as_deref(), Some("x"));
    }

    #[test]
    fn a_body_that_is_not_json_is_verified_and_has_no_type() {
        let body: &[u8] = b"\xff\x00";
        assert_eq!(receiver().verify(&standard("msg_1", 0, body), &bytes(body)).unwrap().kind, None);
    }

    #[test]
    fn a_body_that_was_serialised_anew_is_401() {
        let again: &[u8] = br#"{"type": "invoice.paid", "data": {"id": 1}}"#;
        let error = receiver().verify(&standard("msg_1", 0, PAID), &bytes(again)).unwrap_err();
        assert_eq!(refused(error), (401, "HX0090"));
    }

    #[test]
    fn a_wrong_secret_is_401() {
        let other = StandardWebhooks::new([standard_secret(8).as_str()]).unwrap().clock(now);
        let error = other.verify(&standard("msg_1", 0, PAID), &bytes(PAID)).unwrap_err();
        assert_eq!(refused(error), (401, "HX0090"));
    }

    #[test]
    fn the_id_and_the_timestamp_are_signed_too() {
        for (name, other) in [("webhook-id", "msg_2"), ("webhook-timestamp", "1649367554")] {
            let mut sent = standard("msg_1", 0, PAID);
            sent.insert(name, HeaderValue::from_static(other));
            assert_eq!(receiver().verify(&sent, &bytes(PAID)), Err(NotVerified::Signature), "{name}");
        }
    }

    #[test]
    fn one_of_several_signatures_is_enough_and_other_versions_are_passed_over() {
        let ours = standard_signature(7, "msg_1", &NOW.to_string(), PAID);
        let others = standard_signature(9, "msg_1", &NOW.to_string(), PAID);
        let mut sent = standard("msg_1", 0, PAID);
        let mut with = |list: String| {
            sent.insert("webhook-signature", HeaderValue::from_str(&list).unwrap());
            receiver().verify(&sent, &bytes(PAID))
        };
        assert!(with(format!("v1a,hnO3f9T8Ytu9== {others} v1,???? {ours}")).is_ok());
        assert_eq!(with(format!("v1a,hnO3 {others}")), Err(NotVerified::Signature));
        assert_eq!(with(ours.replace("v1,", "v2,")), Err(NotVerified::Signature));
        assert_eq!(with(ours.replace("v1,", "v1a,")), Err(NotVerified::Signature));
    }

    #[test]
    fn a_shortened_signature_fits_nothing() {
        let whole = standard_signature(7, "msg_1", &NOW.to_string(), PAID);
        let mut sent = standard("msg_1", 0, PAID);
        for cut in 3..whole.len() - 1 {
            sent.insert("webhook-signature", HeaderValue::from_str(&whole[..cut]).unwrap());
            assert_eq!(receiver().verify(&sent, &bytes(PAID)), Err(NotVerified::Signature), "cut at {cut}");
        }
    }

    #[test]
    fn while_a_secret_is_changed_for_another_both_are_taken() {
        let (old, new) = (standard_secret(6), standard_secret(7));
        let both = StandardWebhooks::new([old.as_str(), new.as_str()]).unwrap().clock(now);
        assert!(both.verify(&standard("msg_1", 0, PAID), &bytes(PAID)).is_ok());
        let (id, at) = ("msg_1", NOW.to_string());
        let signature = standard_signature(6, id, &at, PAID);
        let sent =
            headers(&[("webhook-id", id), ("webhook-timestamp", &at), ("webhook-signature", &signature)]);
        assert!(both.verify(&sent, &bytes(PAID)).is_ok());
    }

    #[test]
    fn a_timestamp_out_of_the_tolerance_is_401_both_ways() {
        for seconds in [-301, 301, -100_000_000] {
            let error = receiver().verify(&standard("msg_1", seconds, PAID), &bytes(PAID)).unwrap_err();
            assert_eq!(refused(error), (401, "HX0091"), "{seconds}");
        }
        for seconds in [-300, 0, 300] {
            assert!(receiver().verify(&standard("msg_1", seconds, PAID), &bytes(PAID)).is_ok(), "{seconds}");
        }
        let patient = receiver().tolerance(Duration::from_hours(1));
        assert!(patient.verify(&standard("msg_1", -3_600, PAID), &bytes(PAID)).is_ok());
    }

    #[test]
    fn a_wrong_signature_is_told_before_an_old_timestamp() {
        let again: &[u8] = b"{}";
        let error = receiver().verify(&standard("msg_1", -9_999, PAID), &bytes(again)).unwrap_err();
        assert_eq!(error, NotVerified::Signature);
    }

    #[test]
    fn a_missing_repeated_or_malformed_header_is_400() {
        for name in ["webhook-timestamp", "webhook-signature"] {
            let mut sent = standard("msg_1", 0, PAID);
            sent.remove(name);
            assert_eq!(
                refused(receiver().verify(&sent, &bytes(PAID)).unwrap_err()),
                (400, "HX0092"),
                "{name}"
            );
        }
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            let mut sent = standard("msg_1", 0, PAID);
            let value = sent[name].clone();
            sent.append(name, value);
            assert_eq!(
                refused(receiver().verify(&sent, &bytes(PAID)).unwrap_err()),
                (400, "HX0092"),
                "{name}"
            );
        }
        for (name, bad) in
            [("webhook-timestamp", "soon"), ("webhook-timestamp", "-1"), ("webhook-signature", "abc")]
        {
            let mut sent = standard("msg_1", 0, PAID);
            sent.insert(name, HeaderValue::from_static(bad));
            assert_eq!(
                refused(receiver().verify(&sent, &bytes(PAID)).unwrap_err()),
                (400, "HX0092"),
                "{bad}"
            );
        }
    }

    #[test]
    fn an_event_without_a_usable_id_is_400() {
        let mut sent = standard("msg_1", 0, PAID);
        sent.remove("webhook-id");
        assert_eq!(refused(receiver().verify(&sent, &bytes(PAID)).unwrap_err()), (400, "HX0093"));
        for id in [String::new(), "m".repeat(256)] {
            let sent = standard(&id, 0, PAID);
            assert_eq!(refused(receiver().verify(&sent, &bytes(PAID)).unwrap_err()), (400, "HX0093"));
        }
    }

    /// What is signed is `id.timestamp.body`: from a signed body that begins like a timestamp, another
    /// event could be cut.
    #[test]
    fn a_full_stop_in_the_id_is_refused_since_it_parts_what_is_signed() {
        let body: &[u8] = b"1649367553.{}";
        assert!(receiver().verify(&standard("msg_1", 0, body), &bytes(body)).is_ok());
        let mut cut = standard("msg_1", 0, body);
        cut.insert("webhook-id", HeaderValue::from_static("msg_1.1649367553"));
        assert_eq!(refused(receiver().verify(&cut, &bytes(b"{}")).unwrap_err()), (400, "HX0092"));
    }

    #[test]
    fn secrets_are_in_no_debug_text() {
        let text = format!("{:?} {:?} {:?}", receiver(), stripe_receiver(), github().0);
        assert!(text.contains("Secret(…)"), "{text}");
        assert!(!text.contains("whsec") && !text.contains("Everybody") && !text.contains("7, 7"), "{text}");
    }

    #[test]
    fn a_secret_of_another_form_can_be_given_as_bytes() {
        let receiver = StandardWebhooks::with([Secret::bytes([7; 24]).unwrap()]).unwrap().clock(now);
        assert!(receiver.verify(&standard("msg_1", 0, PAID), &bytes(PAID)).is_ok());
        assert!(StandardWebhooks::new([]).is_err(), "none at all would refuse everything, or nothing");
    }
}

mod git_hub {
    use super::*;

    #[test]
    fn the_documented_example_is_verified() {
        let (github, sent, body) = github();
        let event = github.verify(&sent, &body).unwrap();
        assert_eq!(event.id.as_str(), "72d3162e-cc78-11e3-81ab-4c9367dc0958");
        assert_eq!((event.kind.as_deref(), event.timestamp), (Some("issues"), None));
    }

    #[test]
    fn another_body_or_secret_is_401() {
        let (github, sent, body) = github();
        assert_eq!(refused(github.verify(&sent, &bytes(b"Hello, world!")).unwrap_err()), (401, "HX0090"));
        let other = GitHub::new(["another"]).unwrap();
        assert_eq!(refused(other.verify(&sent, &body).unwrap_err()), (401, "HX0090"));
        assert!(GitHub::new(["another", "It's a Secret to Everybody"]).unwrap().verify(&sent, &body).is_ok());
    }

    #[test]
    fn a_missing_or_malformed_header_is_400() {
        let (github, sent, body) = github();
        for (name, code) in
            [("x-hub-signature-256", "HX0092"), ("x-github-event", "HX0092"), ("x-github-delivery", "HX0093")]
        {
            let mut sent = sent.clone();
            sent.remove(name);
            assert_eq!(refused(github.verify(&sent, &body).unwrap_err()), (400, code), "{name}");
        }
        for bad in ["757107ea", "sha1=757107ea0eb2509fc211221cce984b8a37570b6d", "sha256=xyz"] {
            let mut sent = sent.clone();
            sent.insert("x-hub-signature-256", HeaderValue::from_static(bad));
            assert_eq!(refused(github.verify(&sent, &body).unwrap_err()), (400, "HX0092"), "{bad}");
        }
    }
}

mod stripes {
    use super::*;

    const EVENT: &[u8] = br#"{"id":"evt_1","type":"charge.succeeded"}"#;

    #[test]
    fn id_and_type_are_read_from_the_body() {
        let event = stripe_receiver().verify(&stripe(0, EVENT), &bytes(EVENT)).unwrap();
        assert_eq!((event.id.as_str(), event.kind.as_deref()), ("evt_1", Some("charge.succeeded")));
        assert_eq!(event.timestamp, Some(now()));
    }

    #[test]
    fn another_body_or_secret_is_401_and_so_is_an_old_timestamp() {
        let again: &[u8] = br#"{"id": "evt_1", "type": "charge.succeeded"}"#;
        let error = stripe_receiver().verify(&stripe(0, EVENT), &bytes(again)).unwrap_err();
        assert_eq!(refused(error), (401, "HX0090"));
        let other = Stripe::new(["whsec_other"]).unwrap().clock(now);
        assert_eq!(refused(other.verify(&stripe(0, EVENT), &bytes(EVENT)).unwrap_err()), (401, "HX0090"));
        for seconds in [-301, 301] {
            let error = stripe_receiver().verify(&stripe(seconds, EVENT), &bytes(EVENT)).unwrap_err();
            assert_eq!(refused(error), (401, "HX0091"));
        }
    }

    #[test]
    fn one_of_several_signatures_is_enough() {
        let mut sent = stripe(0, EVENT);
        let ours = sent["stripe-signature"].to_str().unwrap().to_owned();
        let with_another = ours.replace(",v1=", &format!(",v1={},v1=", "0".repeat(64)));
        sent.insert("stripe-signature", HeaderValue::from_str(&with_another).unwrap());
        assert!(stripe_receiver().verify(&sent, &bytes(EVENT)).is_ok());
        let downgraded = ours.replace("v1=", "v0=");
        sent.insert("stripe-signature", HeaderValue::from_str(&downgraded).unwrap());
        assert_eq!(refused(stripe_receiver().verify(&sent, &bytes(EVENT)).unwrap_err()), (400, "HX0092"));
    }

    #[test]
    fn a_malformed_header_is_400() {
        for bad in ["", "t=1649367553", "v1=00", "t=x,v1=00", "t=1,t=2,v1=00"] {
            let sent = headers(&[("stripe-signature", bad)]);
            let error = stripe_receiver().verify(&sent, &bytes(EVENT)).unwrap_err();
            assert_eq!(refused(error), (400, "HX0092"), "{bad}");
        }
        let error = stripe_receiver().verify(&headers(&[]), &bytes(EVENT)).unwrap_err();
        assert_eq!(refused(error), (400, "HX0092"));
    }

    #[test]
    fn an_event_without_an_id_is_400() {
        for body in [&b"{}"[..], br#"{"id":7}"#, br#"{"id":""}"#, b"not json"] {
            let error = stripe_receiver().verify(&stripe(0, body), &bytes(body)).unwrap_err();
            assert_eq!(refused(error), (400, "HX0093"));
        }
    }
}
