//! A TCP proxy that breaks connections on demand.
//!
//! Put between a service and its database or broker, it shows the service every way in which a network fails:
//! refused ([`Proxy::cut`]), closed ([`Proxy::sever`]), silent ([`Proxy::stall`]), and the one that matters
//! most to a consumer, *done but never told* ([`Proxy::swallow`], [`Proxy::swallow_after`]): the commit whose
//! outcome is unknown.
//!
//! ```no_run
//! # fn example() -> std::io::Result<()> {
//! use hapax_testkit::{proxy::Proxy, servers};
//!
//! let proxy = Proxy::start(servers::address(&servers::postgres_url())?)?;
//! let url = proxy.route(&servers::postgres_url())?;   // for the service
//! proxy.swallow_after(b"COMMIT");                     // its next commit will be done, and its answer lost
//! # Ok(())
//! # }
//! ```
//!
//! Patterns can be seen in plain text only: keep TLS off (`?sslmode=disable`).

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{self, Runtime},
    sync::{oneshot, watch},
};

use crate::local::url::ServerUrl;

/// How long a request has, after [`Proxy::swallow_after`] let it through, to reach the server and take effect
/// there before its connection is closed.
const GRACE: Duration = Duration::from_millis(200);

/// How much is read at once; a larger answer takes several turns.
const CHUNK: usize = 16 * 1024;

/// A proxy in front of one server. It has a thread of its own, so that a test that blocks does not hold it
/// up.
///
/// A control call holds for all bytes sent after it returns. Dropping the proxy closes its connections and
/// its port.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free local port and passes everything to and from `upstream`, which need not be there
    /// yet.
    pub fn start(upstream: SocketAddr) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = listen(&runtime)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = oneshot::channel();
        let serving = accept(listener, upstream, Arc::clone(&shared));
        let thread = thread::Builder::new().name("proxy".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serving => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// A server's URL, led through this proxy. Fails if it is no URL.
    pub fn route(&self, url: &str) -> io::Result<String> {
        Ok(ServerUrl::parse(url)?.with_address(self.address))
    }

    /// How many connections were accepted since the start, including those closed at once while cut: a
    /// client's attempts to connect.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Closes all connections, and each new one at once, until [`Proxy::heal`]: the server is down.
    pub fn cut(&self) {
        self.shared.control.send_modify(|control| {
            control.mode = Mode::Cut;
            control.generation += 1;
        });
    }

    /// Closes all connections once, and goes on accepting: the server, or something on the way, was
    /// restarted.
    pub fn sever(&self) {
        self.shared.control.send_modify(|control| control.generation += 1);
    }

    /// Bytes stop flowing, in both directions, and connections stay open, until [`Proxy::heal`]: the network
    /// is gone and nobody has noticed. What is sent meanwhile arrives afterwards.
    pub fn stall(&self) {
        self.set(Mode::Stall);
    }

    /// Answers are read from the server and dropped, until [`Proxy::heal`]: requests take effect, and nobody
    /// is told. Connections that lost something are closed when healed, since a stream with a gap is nothing
    /// TCP would deliver.
    pub fn swallow(&self) {
        self.set(Mode::Swallow);
    }

    /// Once: the next time a client's bytes contain `pattern`, they are passed on, the answers on that
    /// connection are dropped, and after 200 ms it is closed. Other connections are untouched. A later call
    /// replaces an earlier one.
    pub fn swallow_after(&self, pattern: &[u8]) {
        let trigger = Arc::new(Trigger { pattern: pattern.to_vec(), fired: AtomicBool::new(false) });
        self.shared.control.send_modify(|control| control.trigger = Some(trigger));
    }

    /// Whether the pattern of the last [`Proxy::swallow_after`] has been seen.
    pub fn has_fired(&self) -> bool {
        self.shared
            .control
            .borrow()
            .trigger
            .as_ref()
            .is_some_and(|trigger| trigger.fired.load(Ordering::SeqCst))
    }

    /// Passes everything again. A pattern that has not been seen yet stays set.
    pub fn heal(&self) {
        self.set(Mode::Pass);
    }

    fn set(&self, mode: Mode) {
        self.shared.control.send_modify(|control| control.mode = mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It fails if the thread has ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    control: watch::Sender<Control>,
    accepted: AtomicUsize,
}

#[derive(Clone, Debug, Default)]
struct Control {
    mode: Mode,
    /// Connections of an earlier generation are to close.
    generation: u64,
    trigger: Option<Arc<Trigger>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Pass,
    Cut,
    Stall,
    Swallow,
}

/// What [`Proxy::swallow_after`] waits for, on all connections together.
#[derive(Debug)]
struct Trigger {
    pattern: Vec<u8>,
    fired: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

fn listen(runtime: &Runtime) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    // A listener belongs to the runtime in whose context it is made.
    let _context = runtime.enter();
    TcpListener::from_std(listener)
}

async fn accept(listener: TcpListener, upstream: SocketAddr, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // The connection was gone before we looked, or there are no descriptors left: neither is for
            // ever.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let control = shared.control.subscribe();
        let (mode, generation) = {
            let now = control.borrow();
            (now.mode, now.generation)
        };
        if mode != Mode::Cut {
            let connection = Connection { control, generation, answers_lost: AtomicBool::new(false) };
            tokio::spawn(async move { connection.serve(client, upstream).await });
        }
    }
}

/// One client's connection, with its counterpart at the server.
struct Connection {
    control: watch::Receiver<Control>,
    generation: u64,
    /// An answer was dropped, so that nothing can follow it.
    answers_lost: AtomicBool,
}

impl Connection {
    /// Passes bytes until either side ends the connection, or the test does. Both close when this returns.
    async fn serve(&self, client: TcpStream, upstream: SocketAddr) {
        tokio::select! {
            // First, so that what a stall held up is not passed on after all when a healing follows at once.
            biased;
            () = self.closed() => {}
            // A side that breaks ends the whole; nobody is here to be told why.
            _ = self.pass(client, upstream) => {}
        }
    }

    async fn closed(&self) {
        let ends = |control: &Control| {
            let healed = control.mode == Mode::Pass && self.answers_lost.load(Ordering::SeqCst);
            control.generation != self.generation || healed
        };
        // It fails only once the proxy is gone.
        let _ = self.control.clone().wait_for(ends).await;
    }

    async fn pass(&self, mut client: TcpStream, upstream: SocketAddr) -> io::Result<()> {
        let mut server = TcpStream::connect(upstream).await?;
        // A small packet that waits for its acknowledgement would look like a slow server.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (client_reads, client_writes) = client.split();
        let (server_reads, server_writes) = server.split();
        tokio::try_join!(
            self.pump(Direction::ToServer, client_reads, server_writes),
            self.pump(Direction::ToClient, server_reads, client_writes),
        )?;
        Ok(())
    }

    async fn pump(
        &self,
        direction: Direction,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut watcher = Watcher::default();
        let mut chunk = vec![0; CHUNK];
        loop {
            self.while_stalled().await?;
            let length = from.read(&mut chunk).await?;
            // Again, for what arrived while we were waiting to read.
            self.while_stalled().await?;
            if length == 0 {
                return to.shutdown().await;
            }
            let bytes = &chunk[..length];
            match direction {
                Direction::ToClient if self.loses_answers() => {}
                Direction::ToServer if self.fires(&mut watcher, bytes) => {
                    return last_request(&mut to, bytes).await;
                }
                _ => to.write_all(bytes).await?,
            }
        }
    }

    async fn while_stalled(&self) -> io::Result<()> {
        let mut control = self.control.clone();
        control.wait_for(|control| control.mode != Mode::Stall).await.map(drop).map_err(io::Error::other)
    }

    /// Whether an answer that has just come is to be dropped; notes that it is.
    fn loses_answers(&self) -> bool {
        if self.control.borrow().mode == Mode::Swallow {
            self.answers_lost.store(true, Ordering::SeqCst);
        }
        self.answers_lost.load(Ordering::SeqCst)
    }

    /// Whether these bytes complete the pattern, for the first time on any connection. If so, answers are
    /// dropped from here on: before the request is passed on, so that its answer cannot slip through.
    fn fires(&self, watcher: &mut Watcher, bytes: &[u8]) -> bool {
        let trigger = self.control.borrow().trigger.clone();
        let Some(trigger) = trigger.filter(|trigger| !trigger.fired.load(Ordering::SeqCst)) else {
            return false;
        };
        let fires = watcher.sees(&trigger, bytes) && !trigger.fired.swap(true, Ordering::SeqCst);
        if fires {
            self.answers_lost.store(true, Ordering::SeqCst);
        }
        fires
    }
}

/// Passes a request on, lets it take effect, and ends the connection.
async fn last_request(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    tokio::time::sleep(GRACE).await;
    Err(io::ErrorKind::ConnectionAborted.into())
}

/// Looks for a trigger's pattern in one connection's bytes, which may come in any pieces.
#[derive(Default)]
struct Watcher {
    trigger: Option<Arc<Trigger>>,
    /// The end of what came before: as much as could be the beginning of the pattern.
    tail: Vec<u8>,
}

impl Watcher {
    fn sees(&mut self, trigger: &Arc<Trigger>, bytes: &[u8]) -> bool {
        if !self.trigger.as_ref().is_some_and(|current| Arc::ptr_eq(current, trigger)) {
            *self = Self { trigger: Some(Arc::clone(trigger)), tail: Vec::new() };
        }
        self.tail.extend_from_slice(bytes);
        let length = trigger.pattern.len();
        // An empty pattern is in everything; `windows` takes no zero.
        let seen = length == 0 || self.tail.windows(length).any(|window| window == trigger.pattern);
        let keep = length.saturating_sub(1).min(self.tail.len());
        self.tail.drain(..self.tail.len() - keep);
        seen
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::servers::eventually;

    const SOON: Duration = Duration::from_secs(10);

    /// Long enough for a byte on loopback to arrive, if it were on its way.
    const A_MOMENT: Duration = Duration::from_millis(100);

    /// A server that answers each byte with the same byte in upper case, and remembers what it got.
    struct Shouter {
        address: SocketAddr,
        heard: Arc<std::sync::Mutex<Vec<u8>>>,
    }

    impl Shouter {
        async fn start() -> io::Result<Self> {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let address = listener.local_addr()?;
            let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
            let memory = Arc::clone(&heard);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(Self::answer(stream, Arc::clone(&memory)));
                }
            });
            Ok(Self { address, heard })
        }

        async fn answer(mut stream: TcpStream, memory: Arc<std::sync::Mutex<Vec<u8>>>) -> io::Result<()> {
            let mut chunk = [0; 64];
            loop {
                let length = stream.read(&mut chunk).await?;
                if length == 0 {
                    return Ok(());
                }
                memory.lock().unwrap().extend_from_slice(&chunk[..length]);
                stream.write_all(&chunk[..length].to_ascii_uppercase()).await?;
            }
        }

        fn heard(&self) -> String {
            String::from_utf8(self.heard.lock().unwrap().clone()).unwrap()
        }
    }

    async fn ask(stream: &mut TcpStream, question: &str) -> io::Result<String> {
        stream.write_all(question.as_bytes()).await?;
        answer(stream, question.len()).await
    }

    async fn answer(stream: &mut TcpStream, length: usize) -> io::Result<String> {
        let mut answer = vec![0; length];
        timeout(SOON, stream.read_exact(&mut answer)).await.expect("an answer or an error")?;
        Ok(String::from_utf8(answer).unwrap())
    }

    async fn is_closed(stream: &mut TcpStream) -> bool {
        // Closed orderly or with a reset, but not merely silent.
        matches!(timeout(SOON, stream.read(&mut [0])).await, Ok(Ok(0) | Err(_)))
    }

    async fn is_silent(stream: &mut TcpStream) -> bool {
        timeout(A_MOMENT, stream.read(&mut [0])).await.is_err()
    }

    #[tokio::test]
    async fn bytes_and_ends_pass_in_both_directions() -> io::Result<()> {
        let server = Shouter::start().await?;
        let proxy = Proxy::start(server.address)?;
        let mut first = TcpStream::connect(proxy.addr()).await?;
        let mut second = TcpStream::connect(proxy.addr()).await?;
        assert_eq!(ask(&mut first, "one").await?, "ONE");
        assert_eq!(ask(&mut second, "two").await?, "TWO");
        assert_eq!(proxy.accepted(), 2);
        first.shutdown().await?;
        assert!(is_closed(&mut first).await, "the server ends, too, and that passes back");
        Ok(())
    }

    #[tokio::test]
    async fn cut_closes_old_and_new_connections_until_healed() -> io::Result<()> {
        let server = Shouter::start().await?;
        let proxy = Proxy::start(server.address)?;
        let mut old = TcpStream::connect(proxy.addr()).await?;
        ask(&mut old, "a").await?;
        proxy.cut();
        assert!(is_closed(&mut old).await);
        let mut new = TcpStream::connect(proxy.addr()).await?;
        assert!(is_closed(&mut new).await);
        assert_eq!(proxy.accepted(), 2, "an attempt that was refused counts");
        proxy.heal();
        assert_eq!(ask(&mut TcpStream::connect(proxy.addr()).await?, "b").await?, "B");
        Ok(())
    }

    #[tokio::test]
    async fn sever_closes_connections_once() -> io::Result<()> {
        let server = Shouter::start().await?;
        let proxy = Proxy::start(server.address)?;
        let mut old = TcpStream::connect(proxy.addr()).await?;
        ask(&mut old, "a").await?;
        proxy.sever();
        assert!(is_closed(&mut old).await);
        assert_eq!(ask(&mut TcpStream::connect(proxy.addr()).await?, "b").await?, "B");
        Ok(())
    }

    #[tokio::test]
    async fn a_stall_delays_bytes_and_keeps_connections() -> io::Result<()> {
        let server = Shouter::start().await?;
        let proxy = Proxy::start(server.address)?;
        let mut stream = TcpStream::connect(proxy.addr()).await?;
        ask(&mut stream, "a").await?;
        proxy.stall();
        stream.write_all(b"b").await?;
        assert!(is_silent(&mut stream).await);
        assert_eq!(server.heard(), "a", "the request is held up, too");
        proxy.heal();
        assert_eq!(answer(&mut stream, 1).await?, "B");
        Ok(())
    }

    #[tokio::test]
    async fn swallowed_answers_never_come_and_healing_closes_what_lost_some() -> io::Result<()> {
        let server = Shouter::start().await?;
        let proxy = Proxy::start(server.address)?;
        let mut idle = TcpStream::connect(proxy.addr()).await?;
        let mut asking = TcpStream::connect(proxy.addr()).await?;
        ask(&mut idle, "a").await?;
        proxy.swallow();
        asking.write_all(b"b").await?;
        eventually("the request has arrived", SOON, async || server.heard() == "ab").await;
        assert!(is_silent(&mut asking).await);
        proxy.heal();
        assert!(is_closed(&mut asking).await);
        assert_eq!(ask(&mut idle, "c").await?, "C", "a connection without a gap goes on");
        Ok(())
    }

    #[tokio::test]
    async fn swallow_after_fires_once_even_on_a_pattern_in_pieces() -> io::Result<()> {
        let server = Shouter::start().await?;
        let proxy = Proxy::start(server.address)?;
        let mut other = TcpStream::connect(proxy.addr()).await?;
        let mut stream = TcpStream::connect(proxy.addr()).await?;
        proxy.swallow_after(b"commit");
        assert_eq!(ask(&mut stream, "begin; com").await?, "BEGIN; COM");
        assert!(!proxy.has_fired());
        stream.write_all(b"mit;").await?;
        assert!(is_closed(&mut stream).await, "closed without an answer");
        assert!(proxy.has_fired());
        assert_eq!(server.heard(), "begin; commit;");
        assert_eq!(ask(&mut other, "commit").await?, "COMMIT", "once only, and on that connection only");
        Ok(())
    }

    #[tokio::test]
    async fn a_server_that_is_away_looks_like_one() -> io::Result<()> {
        let nobody = crate::local::port::free_address()?;
        let proxy = Proxy::start(nobody)?;
        assert!(is_closed(&mut TcpStream::connect(proxy.addr()).await?).await);
        let address = proxy.addr();
        drop(proxy);
        assert!(TcpStream::connect(address).await.is_err(), "nor does the proxy stay");
        Ok(())
    }

    mod server {
        use super::*;
        use crate::{
            process::Subject,
            servers::{self, Server, TestDatabase, eventually, require},
        };

        fn psql(url: &str, script: &str) -> Subject {
            Subject::new("psql").arg("--no-psqlrc").arg("-tA").arg(url).arg("-c").arg(script)
        }

        #[tokio::test]
        async fn a_commit_whose_answer_is_lost_has_happened() -> io::Result<()> {
            if !require(Server::Postgres) {
                return Ok(());
            }
            let database = TestDatabase::create().await?;
            let create = psql(database.url(), "CREATE TABLE orders (id int)").start()?.wait_exit(SOON).await;
            assert!(create.success());

            let proxy = Proxy::start(servers::address(database.url())?)?;
            proxy.swallow_after(b"COMMIT");
            let url = format!("{}?sslmode=disable", proxy.route(database.url())?);
            let mut doubtful = psql(&url, "BEGIN; INSERT INTO orders VALUES (1); COMMIT").start()?;
            let status = doubtful.wait_exit(SOON).await;
            assert!(!status.success() && proxy.has_fired(), "psql must not know\n{doubtful}");

            // The server may still be at it when the client has given up.
            eventually("and yet it is there", SOON, async || {
                let look = psql(database.url(), "SELECT count(*) FROM orders").start();
                let mut look = look.expect("psql runs");
                look.wait_exit(SOON).await.success() && look.stdout().trim() == "1"
            })
            .await;
            database.remove().await
        }
    }
}
