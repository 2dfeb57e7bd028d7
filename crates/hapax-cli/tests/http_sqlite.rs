//! HTTP handlers of `hapax run`, against a service in this process that misbehaves on request.

mod program;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{any, post};
use bytes::Bytes;
use hapax::http::{Idempotency, Tx};
use hapax::{CallRecords as _, CallRequest, CallState, ConsumerName, MessageId};
use hapax_testkit::memory::MemoryStore;
use hapax_testkit::servers::eventually;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use program::{Ended, Folder, SOON};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What the service was asked.
#[derive(Clone, Debug)]
struct Asked {
    path: String,
    key: String,
    headers: HeaderMap,
    body: Bytes,
}

/// A service that remembers what it was asked, and answers as the path says.
#[derive(Clone)]
struct Service {
    asked: Arc<Mutex<Vec<Asked>>>,
    address: SocketAddr,
}

impl Service {
    async fn start() -> Self {
        let (listener, service) = Self::listen().await;
        let router = service.router();
        tokio::spawn(async move { axum::serve(listener, router).await });
        service
    }

    /// The same over TLS, with a certificate that its own authority has signed: itself. The PEM is that authority.
    async fn start_with_tls() -> (Self, String) {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the usual versions")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key.into())
            .expect("a usable certificate");
        let (acceptor, (listener, service)) = (TlsAcceptor::from(Arc::new(tls)), Self::listen().await);
        let router = service.router();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, router) = (acceptor.clone(), TowerToHyperService::new(router.clone()));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), router).await;
                });
            }
        });
        (service, cert.pem())
    }

    async fn listen() -> (TcpListener, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        (listener, Self { asked: Arc::default(), address })
    }

    fn router(&self) -> axum::Router {
        axum::Router::new()
            .route("/{how}", post(answer))
            .fallback(any(async || StatusCode::IM_A_TEAPOT))
            .with_state(self.clone())
    }

    fn url(&self, how: &str) -> String {
        format!("http://{}/{how}", self.address)
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("nobody panicked").clone()
    }

    /// How often each key was sent.
    fn keys(&self) -> BTreeMap<String, usize> {
        self.asked().into_iter().fold(BTreeMap::new(), |mut keys, asked| {
            *keys.entry(asked.key).or_default() += 1;
            keys
        })
    }
}

async fn answer(
    State(service): State<Service>,
    Path(how): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let key = headers["idempotency-key"].to_str().expect("ASCII").to_owned();
    let before = service.keys().get(&key).copied().unwrap_or(0);
    service.asked.lock().expect("nobody panicked").push(Asked {
        path: how.clone(),
        key,
        headers: headers.clone(),
        body,
    });
    match how.as_str() {
        "ok" => StatusCode::NO_CONTENT.into_response(),
        "tell" => (
            StatusCode::BAD_REQUEST,
            format!("Cannot POST /tell as {}", headers["authorization"].to_str().unwrap_or("")),
        )
            .into_response(),
        "refuse" => (StatusCode::UNPROCESSABLE_ENTITY, "no such\n\taddress").into_response(),
        "fail-once" if before == 0 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        "ask-to-wait" if before == 0 => {
            (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "2")], "slow down").into_response()
        }
        "redirect" => Redirect::temporary("/ok").into_response(),
        "endless" => {
            let chunks =
                futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 4096])));
            (StatusCode::BAD_REQUEST, axum::body::Body::from_stream(chunks)).into_response()
        }
        "hang-once" if before == 0 => std::future::pending().await,
        "hang" => std::future::pending().await,
        _ => StatusCode::OK.into_response(),
    }
}

fn config(service: &Service, how: &str, more: &str) -> String {
    format!(
        r#"version = 1

[store]
url = "sqlite:mails.db"
migrate = "apply"

[consumers.mails]
source = {{ queue = "mails" }}
id = "json:/id"
type = "json:/type"
strategy = "eager"
lease = "2s"
timeout = "11s"
retry = {{ attempts = 3, first = "50ms", max = "50ms", jitter = false }}

[consumers.mails.on.OrderPaid.http]
url = "{}"
headers = {{ Authorization = "Bearer ${{file:token}}", "X-Shop" = "one" }}
timeout = "500ms"
{more}
"#,
        service.url(how)
    )
}

async fn mails(config: &str, ids: &[&str]) -> Folder {
    fill(Folder::with(&[]), config, ids).await
}

/// Writes the configuration and a queue with these messages, each twice.
async fn fill(folder: Folder, config: &str, ids: &[&str]) -> Folder {
    folder.write("hapax.toml", config);
    folder.write("token", "hunter2\n");
    let line =
        |id: &&str| format!(r#"{{"id":{},"type":"OrderPaid","amount":12.50}}"#, serde_json::json!(id)) + "\n";
    let lines = ids.iter().map(line);
    folder.write("lines.jsonl", &lines.collect::<String>());
    folder.run("migrate -c @hapax.toml").await.exit(0);
    folder.run("send @lines.jsonl --queue mails -c @hapax.toml --twice").await.exit(0);
    folder
}

async fn run(folder: &Folder) -> Ended {
    folder.run("run @hapax.toml --until-idle 1s --json").await
}

/// The reason and the error of the one dead letter.
async fn letter(folder: &Folder) -> (String, String) {
    let letters = folder.run("dead list -c @hapax.toml --json").await.json(0);
    let [letter] = letters.as_slice() else { panic!("one letter, but: {letters:?}") };
    let word = |name: &str| letter[name].as_str().unwrap_or_default().to_owned();
    (word("reason"), word("error"))
}

#[tokio::test]
async fn every_message_is_called_for_once_with_its_id_as_the_key() {
    let service = Service::start().await;
    let folder = mails(&config(&service, "ok", ""), &["m1", "m2", "a \"b\""]).await;
    let ended = run(&folder).await;
    let summary = &ended.json(0)[0];
    assert_eq!((&summary["handled"], &summary["duplicates"]), (&3.into(), &3.into()), "{ended}");
    let keys: Vec<(String, usize)> = service.keys().into_iter().collect();
    assert_eq!(keys, [(r#""a \"b\"""#.into(), 1), (r#""m1""#.into(), 1), (r#""m2""#.into(), 1)]);
    let asked = service.asked().into_iter().find(|asked| asked.key == "\"m1\"").expect("m1");
    assert_eq!(
        &asked.body[..],
        br#"{"id":"m1","type":"OrderPaid","amount":12.50}"#,
        "the payload, byte for byte"
    );
    let header = |name: &str| {
        asked.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    assert_eq!((header("authorization"), header("x-shop")), ("Bearer hunter2".into(), "one".into()));
    assert_eq!(
        (header("content-type"), header("hapax-message-type")),
        ("application/json".into(), "OrderPaid".into())
    );
    assert!(!ended.to_string().contains("hunter2"), "{ended}");

    let done: i64 =
        sqlx::query_scalar("SELECT count(*) FROM hapax_inbox WHERE state = 0 AND lease_until IS NULL")
            .fetch_one(&mut folder.database("mails.db").await)
            .await
            .expect("the inbox");
    assert_eq!(done, 3);
    assert_eq!(run(&folder).await.json(0)[0]["handled"], 0);
    assert_eq!(service.asked().len(), 3);
}

#[tokio::test]
async fn a_refusal_is_set_aside_with_the_answers_first_bytes() {
    let service = Service::start().await;
    let folder = mails(&config(&service, "refuse", ""), &["m1"]).await;
    assert_eq!(run(&folder).await.json(0)[0]["dead"], 1);
    let (reason, error) = letter(&folder).await;
    assert_eq!(reason, "HX0045");
    assert!(error.contains("422 Unprocessable Entity: no such address"), "{error}");
    assert_eq!(service.asked().len(), 1, "it is not tried again");
}

#[tokio::test]
async fn an_answer_that_repeats_a_secret_does_not_tell_it() {
    let service = Service::start().await;
    let text = config(&service, "tell?token=hunter22", "");
    let folder = Folder::with(&[]);
    let folder = fill(folder, &text.replace("${file:token}", "hunter22"), &["m1"]).await;
    let ended = run(&folder).await;
    assert_eq!(ended.json(0)[0]["dead"], 1);
    let (_, error) = letter(&folder).await;
    assert!(error.contains("Cannot POST") && error.contains("***"), "{error}");
    assert!(!error.contains("hunter22") && !ended.to_string().contains("hunter22"), "{error}\n{ended}");
}

#[tokio::test]
async fn two_consumers_that_call_one_service_need_keys_of_their_own() {
    let service = Service::start().await;
    let one = config(&service, "ok", "");
    let other = one[one.find("[consumers.mails]").expect("it is there")..]
        .replace("consumers.mails", "consumers.bills");
    let other = other.replace("queue = \"mails\"", "queue = \"bills\"");
    let folder = mails(&one, &["m1"]).await;
    folder.write("hapax.toml", &format!("{one}\n{other}"));
    let ended = folder.run("run @hapax.toml --check").await;
    ended.exit(2);
    assert!(ended.stderr().contains("consumer-id"), "{ended}");

    folder.write("hapax.toml", &format!("{one}\n{other}\nidempotency_key = \"consumer-id\"\n"));
    folder.run("send @lines.jsonl --queue bills -c @hapax.toml").await.exit(0);
    assert_eq!(run(&folder).await.json(0)[0]["handled"], 2);
    let keys: Vec<String> = service.keys().into_keys().collect();
    assert_eq!(keys, ["\"bills:m1\"", "\"m1\""]);
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let service = Service::start().await;
    let folder = mails(&config(&service, "endless", ""), &["m1"]).await;
    assert_eq!(run(&folder).await.json(0)[0]["dead"], 1);
    let (reason, error) = letter(&folder).await;
    assert_eq!(reason, "HX0045");
    assert!(error.len() < 1_000, "{}", error.len());
}

#[tokio::test]
async fn a_failure_is_tried_again_under_the_same_key() {
    let service = Service::start().await;
    let folder = mails(&config(&service, "fail-once", ""), &["m1"]).await;
    let summary = &run(&folder).await.json(0)[0];
    assert_eq!(
        (&summary["handled"], &summary["retried"], &summary["dead"]),
        (&1.into(), &1.into(), &0.into())
    );
    assert_eq!(service.keys(), BTreeMap::from([("\"m1\"".into(), 2)]));
}

#[tokio::test]
async fn a_service_that_asks_to_wait_is_left_alone_for_so_long() {
    let service = Service::start().await;
    let folder = mails(&config(&service, "ask-to-wait", ""), &["m1"]).await;
    let begun = std::time::Instant::now();
    let summary = &folder.run("run @hapax.toml --until-idle 3s --json").await.json(0)[0];
    assert_eq!((&summary["handled"], &summary["retried"]), (&1.into(), &1.into()));
    assert!(begun.elapsed() > Duration::from_secs(2), "it came back too soon");
}

#[tokio::test]
async fn a_service_over_tls_has_to_prove_who_it_is() {
    let (service, authority) = Service::start_with_tls().await;
    for (tls, handled) in [("", 0), ("tls = { ca = \"ca.pem\" }", 1)] {
        let text = config(&service, "ok", tls).replace("http://", "https://");
        let folder = Folder::with(&[("ca.pem", &authority)]);
        let folder = fill(folder, &text, &["m1"]).await;
        let ended = run(&folder).await;
        assert_eq!(ended.json(0)[0]["handled"], handled, "{ended}");
        if handled == 0 {
            let (_, error) = letter(&folder).await;
            assert!(error.contains("HX0046") && error.contains("certificate"), "{error}");
        }
    }
    assert_eq!(service.asked().len(), 1);
}

#[tokio::test]
async fn what_is_not_to_be_tried_again_is_not() {
    let service = Service::start().await;
    let folder = mails(&config(&service, "fail-once", "retry_on = [\"429\"]"), &["m1"]).await;
    assert_eq!(run(&folder).await.json(0)[0]["dead"], 1);
    assert_eq!(letter(&folder).await.0, "HX0045");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let service = Service::start().await;
    let folder = mails(&config(&service, "redirect", ""), &["m1"]).await;
    assert_eq!(run(&folder).await.json(0)[0]["dead"], 1);
    let (reason, error) = letter(&folder).await;
    assert_eq!(reason, "HX0045");
    assert!(error.contains("307"), "{error}");
    assert!(service.asked().iter().all(|asked| asked.path == "redirect"));
}

#[tokio::test]
async fn no_answer_is_tried_again_or_set_aside_as_unknown() {
    let service = Service::start().await;
    let folder = mails(&config(&service, "hang-once", ""), &["m1"]).await;
    assert_eq!(run(&folder).await.json(0)[0]["handled"], 1);
    assert_eq!(service.keys(), BTreeMap::from([("\"m1\"".into(), 2)]));

    let service = Service::start().await;
    let folder = mails(&config(&service, "hang", "unknown_outcome = \"dead-letter\""), &["m1"]).await;
    assert_eq!(run(&folder).await.json(0)[0]["dead"], 1);
    let (reason, error) = letter(&folder).await;
    assert_eq!(reason, "HX0044");
    assert!(error.contains("no answer in time"), "{error}");
    assert_eq!(service.asked().len(), 1);
}

#[tokio::test]
async fn a_service_that_is_not_there_is_tried_again_and_its_url_is_not_told() {
    let service = Service::start().await;
    let text = config(&service, "ok", "").replace(&service.url("ok"), "http://shop:hunter2@127.0.0.1:1/mail");
    let folder = mails(&text, &["m1"]).await;
    let ended = run(&folder).await;
    assert_eq!(ended.json(0)[0]["dead"], 1);
    let (reason, error) = letter(&folder).await;
    assert_eq!(reason, "HX0041");
    assert!(error.starts_with("HX0046"), "{error}");
    assert!(!error.contains("hunter2") && !ended.to_string().contains("hunter2"), "{error}\n{ended}");
}

/// The process dies while it waits for the answer: another one takes the message over, and either calls again under
/// the same key, or sets it aside.
#[tokio::test]
async fn case_20_case_35_a_process_that_dies_during_a_call_is_taken_over() {
    for (policy, calls, handled, dead) in [("retry-same-key", 2, 1, 0), ("dead-letter", 1, 0, 1)] {
        let service = Service::start().await;
        let more = format!("unknown_outcome = \"{policy}\"");
        let text = config(&service, "hang-once", &more).replace("timeout = \"500ms\"", "timeout = \"9s\"");
        let text = text.replace("source = { queue = \"mails\" }", "source = { file = \"lines.jsonl\" }");
        let folder = mails(&text, &["m1"]).await;
        let mut doomed = folder.hapax("run @hapax.toml").start().expect("it starts");
        eventually("the call is made", SOON, async || !service.asked().is_empty()).await;
        doomed.kill().expect("it is killed");
        doomed.wait_killed(SOON).await;

        let ended = folder.run("run @hapax.toml --until-idle 4s --json").await;
        let summary = &ended.json(0)[0];
        assert_eq!(
            (&summary["handled"], &summary["dead"]),
            (&handled.into(), &dead.into()),
            "{policy}: {ended}"
        );
        assert_eq!(service.keys(), BTreeMap::from([("\"m1\"".into(), calls)]), "{policy}");
        if dead == 1 {
            assert_eq!(letter(&folder).await.0, "HX0044");
        }
    }
}

/// Both ends are Hapax: the call carries a key, and the service keeps its answer under it. The first call gets no answer
/// in time; the work goes on, and the second one gets the first one's answer.
#[tokio::test]
async fn a_service_with_keys_takes_effect_once_though_its_answer_came_too_late() {
    let (listener, service) = Service::listen().await;
    let kept = MemoryStore::new();
    let late = async |mut tx: Tx<MemoryStore>| {
        tx.add("mails", 1).expect("a number");
        tokio::time::sleep(Duration::from_secs(1)).await; // longer than the call may take: that is what is tested
        StatusCode::CREATED
    };
    let keys = Idempotency::transactional("mails", kept.clone()).expect("a name").one_tenant();
    let router = axum::Router::new().route("/late", post(late)).route_layer(keys);
    tokio::spawn(async move { axum::serve(listener, router).await });
    let text = config(&service, "late", "retry_on = [\"409\", \"timeout\"]")
        .replace("attempts = 3", "attempts = 50");
    let folder = mails(&text, &["m1", "m2"]).await;
    let summary = &folder.run("run @hapax.toml --until-idle 2s --json").await.json(0)[0];
    assert_eq!((&summary["handled"], &summary["dead"]), (&2.into(), &0.into()), "{summary}");
    assert!(summary["retried"].as_u64() >= Some(2), "{summary}");
    assert_eq!(kept.number("mails"), 2);
}

#[tokio::test]
async fn a_call_needs_the_eager_strategy_a_lease_and_time() {
    let service = Service::start().await;
    let good = config(&service, "ok", "");
    for (from, to, said) in [
        ("strategy = \"eager\"\n", "", "cannot join the transaction"),
        ("lease = \"2s\"\n", "", "needs a `lease`"),
        ("lease = \"2s\"\n", "lease = \"0s\"\n", "no shorter than 1ms"),
        ("timeout = \"500ms\"", "timeout = \"11s\"", "the whole message only"),
        ("\"X-Shop\" = \"one\"", "\"idempotency-key\" = \"x\"", "Hapax sets itself"),
        ("timeout = \"500ms\"", "retry_on = [\"200\"]", "from 300 on"),
        ("timeout = \"500ms\"", "retry_on = [\"2xx\"]", "from 300 on"),
        ("\"X-Shop\" = \"one\"", "\"Hapax-Message-Type\" = \"x\"", "Hapax sets itself"),
        ("\"X-Shop\" = \"one\"", "\"X Shop\" = \"x\"", "is no name of a header"),
        ("\"X-Shop\" = \"one\"", "\"X-Shop\" = \"a\\nb\"", "holds what a header"),
        ("timeout = \"500ms\"", "tls = { ca = \"token\" }", "certificate"),
        ("http://", "ftp://", "Begin it with `https://`"),
    ] {
        let folder = Folder::with(&[("hapax.toml", &good.replacen(from, to, 1)), ("token", "hunter2\n")]);
        let ended = folder.run("run @hapax.toml --check").await;
        ended.exit(2);
        assert!(ended.stderr().contains(said), "{said}: {ended}");
        assert!(!ended.stderr().contains("hunter2"), "{ended}");
    }
    let folder = Folder::with(&[("hapax.toml", &good), ("token", "hunter2\n")]);
    folder.run("run @hapax.toml --check").await.exit(0);
}

#[tokio::test]
async fn an_operator_sees_the_calls_of_a_message() {
    let service = Service::start().await;
    let folder = mails(&config(&service, "ok", ""), &[]).await;
    let url = format!("sqlite:{}", folder.path("mails.db").display());
    let store = hapax::SqliteStore::connect(&url).await.expect("the store opens");
    let (consumer, id) = (ConsumerName::new("mails").expect("a name"), MessageId::new("m1").expect("an id"));
    let lease = Duration::from_mins(1);
    let charge = CallRequest {
        consumer: &consumer,
        id: &id,
        label: "charge",
        request: b"{\"amount\":\"25.00\"}",
        lease,
        key_valid_for: lease,
    };
    let CallState::Ours { fence, .. } = store.begin_call(&charge).await.expect("a call") else {
        panic!("it is new")
    };
    let why = folder.run("inbox why m1 -c @hapax.toml").await.exit(0);
    assert!(why.contains("call `charge`") && why.contains("no answer is recorded"), "{why}");
    store.end_call(&charge, fence, b"{\"receipt\":7}").await.expect("it ends");
    let why = folder.run("inbox why m1 -c @hapax.toml --json").await.json(0).remove(0);
    let call = &why["calls"][0];
    assert_eq!((&call["label"], &call["result"]), (&"charge".into(), &"{\"receipt\":7}".into()), "{why}");
    assert_eq!(call["key"], charge.idempotency_key(), "{why}");
}
