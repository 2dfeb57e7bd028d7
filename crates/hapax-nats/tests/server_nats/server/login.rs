//! Who may connect, and what then.

use hapax_core::{Code, ErrorKind, Publisher, Source};
use hapax_nats::Nats;
use hapax_testkit::servers::{PrivateNats, Server, require, unique};

use crate::broker::{CONSUMER, kind_and_code, message, nats};

const ACCOUNTS: &str = r#"
accounts {
  SHOP {
    jetstream: enabled
    users: [
      { user: owner, password: "pass/word" }
      { user: reader, password: secret, permissions: { publish: ["$JS.API.STREAM.INFO.>"] } }
    ]
  }
  BARE { users: [ { user: bare, password: secret } ] }
}"#;

#[tokio::test]
async fn credentials_that_are_refused_are_an_error_at_the_start() {
    if !require(Server::PrivateNats) {
        return;
    }
    let server = PrivateNats::start_with(&[ACCOUNTS]).await.unwrap();
    let broker = Nats::new(&server.url()).unwrap();
    for wrong in [
        broker.clone(),
        broker.clone().username("owner").password("wrong-secret"),
        broker.clone().token("wrong-secret"),
    ] {
        let refused = wrong.source("ORDERS", CONSUMER).prepare(1).await.unwrap_err();
        assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused));
        assert!(!refused.to_string().contains("wrong-secret"), "{refused}");
        let refused = wrong.publisher().publish(vec![message("orders", 1)]).await.remove(0).unwrap_err();
        assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused));
    }
    let by_url = server.url().replace("nats://", "nats://owner:pass%2Fword@");
    Nats::new(&by_url).unwrap().publisher().check().await.unwrap();
    broker.username("owner").password("pass/word").publisher().check().await.unwrap();
}

#[tokio::test]
async fn a_token_and_an_nkey_let_in() {
    if !require(Server::PrivateNats) {
        return;
    }
    let server = PrivateNats::start_with(&["authorization { token: s3cr3t }"]).await.unwrap();
    let broker = Nats::new(&server.url()).unwrap();
    broker.clone().token("s3cr3t").publisher().check().await.unwrap();
    Nats::new(&server.url().replace("nats://", "nats://s3cr3t@")).unwrap().publisher().check().await.unwrap();
    assert!(broker.publisher().check().await.is_err());

    let seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    let public = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";
    let users = format!("authorization {{ users: [ {{ nkey: {public} }} ] }}");
    let server = PrivateNats::start_with(&[&users]).await.unwrap();
    let broker = Nats::new(&server.url()).unwrap();
    broker.clone().nkey(seed).publisher().check().await.unwrap();
    let refused = broker.nkey("SUwrong-secret").publisher().check().await.unwrap_err();
    assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused));
    assert!(!format!("{refused} {refused:?}").contains("wrong-secret"), "{refused}");
}

#[tokio::test]
async fn a_server_must_show_a_certificate_that_is_trusted() {
    if !require(Server::PrivateNats) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let tls = format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\" }}",
        path("cert.pem").display(),
        path("key.pem").display()
    );
    let server = PrivateNats::start_with(&[&tls]).await.unwrap();

    for url in [server.url(), server.url().replace("nats://", "tls://")] {
        let broker = Nats::new(&url).unwrap();
        broker.clone().ca_file(path("cert.pem")).unwrap().publisher().check().await.unwrap();
        let stranger = broker.publisher().check().await.unwrap_err();
        assert_eq!(kind_and_code(&stranger), (ErrorKind::Unavailable, Code::BrokerUnavailable));
        assert!(stranger.to_string().to_lowercase().contains("certificate"), "{stranger}");
    }
    let plain = PrivateNats::start().await.unwrap();
    let insisting = Nats::new(&plain.url()).unwrap().ca_file(path("cert.pem")).unwrap();
    assert!(insisting.publisher().check().await.is_err(), "no TLS, no connection");
}

#[tokio::test]
async fn a_missing_permission_or_no_jetstream_is_said_at_once() {
    if !require(Server::PrivateNats) {
        return;
    }
    let server = PrivateNats::start_with(&[ACCOUNTS]).await.unwrap();
    let broker = Nats::new(&server.url()).unwrap();
    let owner = broker.clone().username("owner").password("pass/word");
    owner.publisher().declare_stream("ORDERS", &["orders"]).await.unwrap();

    let reader = broker.clone().username("reader").password("secret");
    let refused = reader.source("ORDERS", CONSUMER).prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused));
    assert!(refused.to_string().contains("Permissions Violation"), "{refused}");
    let refused = reader.publisher().publish(vec![message("orders", 1)]).await.remove(0).unwrap_err();
    assert_eq!(kind_and_code(&refused), (ErrorKind::Statement, Code::NotPublished));
    assert!(refused.to_string().contains("Permissions Violation"), "{refused}");

    let bare = broker.username("bare").password("secret");
    let refused = bare.source("ORDERS", CONSUMER).prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused), "{refused}");
    assert!(refused.to_string().contains("JetStream is not enabled"), "{refused}");
}

#[tokio::test]
async fn a_missing_stream_or_consumer_is_an_error_at_the_start() {
    if !require(Server::Nats) {
        return;
    }
    let stream = crate::broker::Stream::named("missing").await;
    let missing = nats().source(&stream.name, CONSUMER).prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&missing), (ErrorKind::Setup, Code::QueueMissing));
    stream.create().await;
    let missing = nats().source(&stream.name, CONSUMER).check().await.unwrap_err();
    assert_eq!(kind_and_code(&missing), (ErrorKind::Setup, Code::QueueMissing));
    assert!(
        missing.to_string().contains(CONSUMER) && missing.to_string().contains(&stream.name),
        "{missing}"
    );
    let no_name = nats().source(unique("a.b"), CONSUMER).prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&no_name), (ErrorKind::Setup, Code::ConfigWrongValue));
}
