//! Over a real socket: clients that hang up, and bodies that are cut off.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use hapax_http::Idempotency;
use hapax_testkit::memory::MemoryStore;
use hapax_testkit::servers::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const LONG: Duration = Duration::from_secs(10);

struct Server {
    address: std::net::SocketAddr,
    runs: Arc<AtomicUsize>,
    gate: Arc<watch::Sender<bool>>,
}

impl Server {
    async fn start() -> Self {
        let (runs, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(watch::Sender::new(false)));
        let (counted, mut closed) = (Arc::clone(&runs), gate.subscribe());
        let handler = async move |body: String| {
            let run = counted.fetch_add(1, Ordering::SeqCst) + 1;
            if body == "slow" {
                closed.wait_for(|open| *open).await.unwrap();
            }
            format!("run {run}")
        };
        let layer = Idempotency::recorded("http.wire", MemoryStore::new()).unwrap().one_tenant();
        let app = Router::new().route("/", post(handler)).layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, runs, gate }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// One request on a connection of its own; the whole answer as text.
    async fn ask(&self, head: &str, body: &str) -> String {
        let mut connection = self.connect().await;
        let length = body.len();
        let request = format!(
            "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{head}\r\n\r\n{body}"
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

#[tokio::test]
async fn a_copy_is_given_the_first_answer() {
    let server = Server::start().await;
    let first = server.ask("idempotency-key: \"k\"", "pay").await;
    assert!(first.starts_with("HTTP/1.1 200") && first.ends_with("run 1"), "{first}");
    let again = server.ask("idempotency-key: \"k\"", "pay").await;
    assert!(again.contains("idempotency-replayed: true") && again.ends_with("run 1"), "{again}");
    let two = server.ask("idempotency-key: \"k\"\r\nidempotency-key: \"k\"", "pay").await;
    assert!(two.starts_with("HTTP/1.1 400") && two.contains("HX0081"), "{two}");
}

#[tokio::test]
async fn a_client_that_hangs_up_while_the_handler_runs_finds_the_answer_later() {
    let server = Server::start().await;
    let mut connection = server.connect().await;
    let request = "POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: \"k\"\r\ncontent-length: 4\r\n\r\nslow";
    connection.write_all(request.as_bytes()).await.unwrap();
    eventually("the handler runs", LONG, async || server.runs() == 1).await;
    drop(connection);
    // The server notices, and drops the request's future, in its own time.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let copy = server.ask("idempotency-key: \"k\"", "slow").await;
    assert!(copy.starts_with("HTTP/1.1 409") && copy.contains("retry-after: 1"), "{copy}");
    server.gate.send_replace(true);
    eventually("the answer is there", LONG, async || {
        server.ask("idempotency-key: \"k\"", "slow").await.ends_with("run 1")
    })
    .await;
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_half_way_through_its_body_leaves_nothing() {
    let server = Server::start().await;
    let mut connection = server.connect().await;
    let request = "POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: \"k\"\r\ncontent-length: 100\r\n\r\nhalf";
    connection.write_all(request.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(connection);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.runs(), 0);
    let whole = server.ask("idempotency-key: \"k\"", "whole").await;
    assert!(whole.starts_with("HTTP/1.1 200"), "{whole}");
}

const MIB: usize = 1024 * 1024;

/// Writes 100 MB behind a head until the server answers or cuts the connection; the answer, and how much it
/// took.
async fn flood(server: &Server, head: &str, piece: &[u8]) -> (String, usize) {
    let (mut reader, mut writer) = server.connect().await.into_split();
    writer.write_all(head.as_bytes()).await.unwrap();
    let flooding = async {
        let mut written = 0;
        while written < 100 * MIB && writer.write_all(piece).await.is_ok() {
            written += piece.len();
        }
        written
    };
    let answering = async {
        let mut answer = vec![0; 4_096];
        let length = reader.read(&mut answer).await.unwrap_or(0);
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    tokio::pin!(flooding);
    let mut taken = None;
    let answer = {
        tokio::pin!(answering);
        loop {
            tokio::select! {
                biased;
                answer = &mut answering => break answer,
                written = &mut flooding, if taken.is_none() => taken = Some(written),
            }
        }
    };
    drop(reader);
    (answer, taken.unwrap_or(0))
}

#[tokio::test]
async fn a_body_of_100_mb_is_refused_before_it_is_read() {
    let server = Server::start().await;
    let length = 100 * MIB;
    let head =
        format!("POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: \"k\"\r\ncontent-length: {length}\r\n\r\n");
    let (answer, taken) = flood(&server, &head, &vec![b'x'; MIB]).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("HX0085"), "{answer}");
    assert!(taken < 100 * MIB, "it was read to its end");
    assert_eq!(server.runs(), 0);
}

#[tokio::test]
async fn a_body_of_100_mb_in_chunks_is_cut_off_at_the_limit() {
    let server = Server::start().await;
    let head = "POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: \"k\"\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut piece = format!("{:x}\r\n", 64 * 1024).into_bytes();
    piece.extend(vec![b'x'; 64 * 1024]);
    piece.extend(b"\r\n");
    let (answer, taken) = flood(&server, head, &piece).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("HX0085"), "{answer}");
    assert!(taken < 100 * MIB, "it was read to its end");
    assert_eq!(server.runs(), 0);
}
