//! Who may connect, and what then.

use hapax_core::{Code, ErrorKind, Publisher, Settler, Source};
use hapax_redis::Redis;
use hapax_testkit::servers::{PrivateRedis, Server, require};

use crate::broker::{GROUP, Stream, kind_and_code, message, redis};
use crate::by_hand::{acks, settle, take};

#[tokio::test]
async fn credentials_that_are_refused_are_an_error_at_the_start() {
    if !require(Server::PrivateRedis) {
        return;
    }
    let server = PrivateRedis::start_with(&[("requirepass", "pass/word")]).await.unwrap();
    let broker = Redis::new(&server.url()).unwrap();
    let owner = broker.clone().password("pass/word");
    owner.publisher().check().await.unwrap();
    let owners = server.url().replace("redis://", "redis://:pass%2Fword@");
    Redis::new(&owners).unwrap().publisher().check().await.unwrap();
    let mut reader = redis::cmd("ACL");
    reader.arg("SETUSER").arg("reader").arg(&["on", ">secret", "~*", "+@read", "+client", "+info"]);
    Stream::on(&owners, "none").ask::<()>(&reader);
    owner.publisher().declare_group("orders", GROUP).await.unwrap();

    for wrong in [broker.clone(), broker.clone().username("reader").password("wrong-secret")] {
        let refused = wrong.source("orders", GROUP).prepare(1).await.unwrap_err();
        assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused), "{refused}");
        assert!(!refused.to_string().contains("wrong-secret"), "{refused}");
        let refused = wrong.publisher().publish(vec![message("orders", 1)]).await.remove(0).unwrap_err();
        assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused), "{refused}");
    }
    let reader = broker.username("reader").password("secret");
    let refused = reader.publisher().publish(vec![message("orders", 1)]).await.remove(0).unwrap_err();
    assert_eq!(kind_and_code(&refused), (ErrorKind::Statement, Code::NotPublished), "{refused}");
    let refused = reader.source("orders", "other").declare().prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused), "{refused}");
}

/// As `docs/brokers/redis.md` grants them.
#[tokio::test]
async fn the_documented_permissions_are_enough_to_consume() {
    if !require(Server::PrivateRedis) {
        return;
    }
    let server = PrivateRedis::start().await.unwrap();
    let owner = Redis::new(&server.url()).unwrap();
    owner.publisher().declare_group("orders", GROUP).await.unwrap();
    owner.publisher().publish_all(vec![message("orders", 1)]).await.unwrap();
    let page = include_str!("../../../../../docs/brokers/redis.md");
    let granted = page.lines().find_map(|line| line.strip_prefix("ACL SETUSER orders ")).unwrap();
    let mut grant = redis::cmd("ACL");
    grant.arg("SETUSER").arg("orders").arg(granted.split(' ').collect::<Vec<_>>());
    Stream::on(&server.url(), "none").ask::<()>(&grant);

    let mut source = owner.username("orders").password("PASSWORD").source("orders", GROUP);
    source.prepare(5).await.unwrap();
    let delivery = take(&mut source, 1).await;
    assert!(source.settler().extend(vec![*delivery[0].receipt()]).await.iter().all(Result::is_ok));
    settle(&source, acks(delivery)).await;
    source.close().await;
    let consumers: Vec<redis::Value> =
        Stream::on(&server.url(), "none").ask(redis::cmd("XINFO").arg("CONSUMERS").arg("orders").arg(GROUP));
    assert!(consumers.is_empty(), "it may leave the group");
}

#[tokio::test]
async fn a_server_must_show_a_certificate_that_is_trusted() {
    if !require(Server::PrivateRedis) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let port = hapax_testkit::servers::address(&PrivateRedis::start().await.unwrap().url()).unwrap().port();
    let (cert, key, port) = (path("cert.pem"), path("key.pem"), port.to_string());
    let tls = [
        ("tls-port", port.as_str()),
        ("tls-cert-file", cert.as_str()),
        ("tls-key-file", key.as_str()),
        ("tls-ca-cert-file", cert.as_str()),
        ("tls-auth-clients", "no"),
    ];
    let _server = PrivateRedis::start_with(&tls).await.unwrap(); // its plain port serves the probe
    let broker = Redis::new(&format!("rediss://127.0.0.1:{port}/0")).unwrap();
    broker.clone().ca_file(&cert).unwrap().publisher().check().await.unwrap();
    let stranger = broker.publisher().check().await.unwrap_err();
    assert_eq!(kind_and_code(&stranger), (ErrorKind::Unavailable, Code::BrokerUnavailable));
    assert!(stranger.to_string().to_lowercase().contains("certificate"), "{stranger}");
}

#[tokio::test]
async fn a_missing_stream_or_group_is_an_error_at_the_start() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::named("missing");
    let missing = redis().source(&stream.name, GROUP).prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&missing), (ErrorKind::Setup, Code::QueueMissing));
    assert!(missing.to_string().contains(GROUP) && missing.to_string().contains(&stream.name), "{missing}");
    stream.create();
    let missing = redis().source(&stream.name, "another").check().await.unwrap_err();
    assert_eq!(kind_and_code(&missing), (ErrorKind::Setup, Code::QueueMissing));

    stream.delete();
    stream.ask::<()>(redis::cmd("SET").arg(&stream.name).arg("a text"));
    let unfit = redis().source(&stream.name, GROUP).declare().prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&unfit), (ErrorKind::Setup, Code::BrokerRefused), "{unfit}");
    let database = Redis::new(&hapax_testkit::servers::redis_url().replace("/0", "/4711")).unwrap();
    let unfit = database.publisher().check().await.unwrap_err();
    assert_eq!(kind_and_code(&unfit), (ErrorKind::Setup, Code::BrokerRefused), "{unfit}");
    let none =
        redis().source(&stream.name, GROUP).lease(std::time::Duration::ZERO).prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&none), (ErrorKind::Setup, Code::ConfigWrongValue));
}
