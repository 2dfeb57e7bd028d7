//! Does the server behind a URL answer in its own protocol?
//!
//! An open port is not enough: a server that starts up or shuts down accepts connections and then refuses
//! them, and a port may belong to something else. So one exchange is made: to PostgreSQL a login, to RabbitMQ,
//! NATS and MariaDB the greeting, to MongoDB the question who it is, to Redis a PING, to SQS the question
//! for its queues, to Kafka what it understands.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use super::{
    op_msg::{Answer, Bson, command},
    url::ServerUrl,
};

/// How long one step of an exchange may take; a local server needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// PostgreSQL's protocol 3.0, as its startup packet spells it.
const POSTGRES_PROTOCOL: u32 = 3 << 16;

/// "AMQP", 0, and version 0.9.1: how a client greets.
const AMQP_GREETING: &[u8; 8] = b"AMQP\0\0\x09\x01";

/// The media type of SQS's requests and answers.
const SQS_PROTOCOL: &str = "application/x-amz-json-1.0";

/// The SQLSTATE of a database that does not exist.
const NO_SUCH_DATABASE: &str = "3D000";

/// The largest answer that is believed: whoever sends more speaks another protocol.
const LARGEST_ANSWER: u32 = 64 * 1024;

/// Why a server cannot be used.
#[derive(Debug)]
pub(crate) enum Unready {
    /// Nothing listens there, or it does not speak the protocol.
    Unreachable(io::Error),
    /// PostgreSQL lets us in, but has no such database.
    NoDatabase,
    /// It answers and refuses, for the reason given.
    Refused(String),
}

impl std::fmt::Display for Unready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "it cannot be reached: {error}"),
            Self::NoDatabase => f.write_str("it has no such database"),
            Self::Refused(reason) => write!(f, "it refuses: {reason}"),
        }
    }
}

impl From<io::Error> for Unready {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error)
    }
}

/// Logs in to the PostgreSQL at `url`. A server that asks for the password that `url` has counts as ready:
/// checking it is the driver's work.
pub(crate) fn postgres(url: &str) -> Result<(), Unready> {
    let url = ServerUrl::parse(url)?;
    let mut stream = connect(&url)?;
    stream.write_all(&startup_packet(&url))?;
    let (kind, body) = answer(&mut stream)?;
    match (kind, body.get(..4)) {
        (b'R', Some([0, 0, 0, 0])) => after_login(&mut stream),
        (b'R', _) if url.has_password() => Ok(()),
        (b'R', _) => Err(Unready::Refused("it wants a password, and the URL has none".into())),
        (b'E', _) => Err(refusal(&body)),
        _ => Err(not_its_protocol("PostgreSQL")),
    }
}

/// Greets the RabbitMQ at `url` and waits for its `connection.start`, which it sends once it serves clients.
pub(crate) fn rabbitmq(url: &str) -> Result<(), Unready> {
    let mut stream = connect(&ServerUrl::parse(url)?)?;
    stream.write_all(AMQP_GREETING)?;
    // A method frame (1) on channel 0, its size, class 10 (connection), method 10 (start).
    let mut frame = [0; 11];
    stream.read_exact(&mut frame)?;
    match frame {
        [1, 0, 0, _, _, _, _, 0, 10, 0, 10] => Ok(()),
        _ => Err(not_its_protocol("AMQP 0.9.1")),
    }
}

/// Asks the MongoDB at `url` whether it is the primary of a replica set: only there are transactions.
pub(crate) fn mongodb(url: &str) -> Result<(), Unready> {
    let hello = hello(ServerUrl::parse(url)?.address()?)?;
    if hello.text("setName").is_some() && hello.is_true("isWritablePrimary") {
        return Ok(());
    }
    Err(Unready::Refused("it is not the primary of a replica set".into()))
}

/// Waits for the greeting of the NATS at `url`, which says whether it has `JetStream`.
pub(crate) fn nats(url: &str) -> Result<(), Unready> {
    let stream = connect(&ServerUrl::parse(url)?)?;
    let mut greeting = String::new();
    BufReader::new(stream).take(LARGEST_ANSWER.into()).read_line(&mut greeting)?;
    match greeting.strip_prefix("INFO ") {
        Some(info) if info.contains("\"jetstream\":true") => Ok(()),
        Some(_) => Err(Unready::Refused("JetStream is not enabled".into())),
        None => Err(not_its_protocol("NATS")),
    }
}

/// Says PING to the Redis at `url`. A server that wants a login counts as ready: that is the client's work.
pub(crate) fn redis(url: &str) -> Result<(), Unready> {
    let mut stream = connect(&ServerUrl::parse(url)?)?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = String::new();
    BufReader::new(stream).take(LARGEST_ANSWER.into()).read_line(&mut answer)?;
    match answer.trim_end() {
        "+PONG" => Ok(()),
        answer if answer.starts_with("-NOAUTH") => Ok(()),
        answer if answer.starts_with('-') => Err(Unready::Refused(answer[1..].to_owned())),
        _ => Err(not_its_protocol("Redis")),
    }
}

/// Waits for the greeting of the MariaDB or MySQL at `url`, which it sends once it serves clients.
pub(crate) fn mariadb(url: &str) -> Result<(), Unready> {
    let mut stream = connect(&ServerUrl::parse(url)?)?;
    // A length of three bytes, a number, and then either the protocol's version, 10, or an error: 255, its number,
    // and its words.
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let [low, middle, high, _] = head;
    let mut greeting = Vec::new();
    stream.take(u64::from(u32::from_le_bytes([low, middle, high, 0]))).read_to_end(&mut greeting)?;
    match greeting.as_slice() {
        [10, ..] => Ok(()),
        [255, _, _, words @ ..] => Err(Unready::Refused(String::from_utf8_lossy(words).into_owned())),
        _ => Err(not_its_protocol("MariaDB's protocol 10")),
    }
}

/// Asks the Kafka at `url` which requests it understands (`ApiVersions`, version 0), which every client does first.
pub(crate) fn kafka(url: &str) -> Result<(), Unready> {
    // Length, request 18, version 0, correlation 7, no client id.
    const REQUEST: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    let mut stream = connect(&ServerUrl::parse(url)?)?;
    stream.write_all(&REQUEST)?;
    // Length, correlation, error.
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    match answer {
        [_, _, _, _, 0, 0, 0, 7, 0, 0] => Ok(()),
        _ => Err(not_its_protocol("Kafka")),
    }
}

/// Asks a MongoDB who it is.
pub(crate) fn hello(address: SocketAddr) -> io::Result<Answer> {
    command(address, "admin", Bson::default().int("hello", 1))
}

/// Asks the SQS at `url` for its queues, unsigned: a refusal is an answer, too. What counts is that it speaks JSON 1.0,
/// SQS's protocol and no other service's, or refuses as AWS does, with a number for its support.
pub(crate) fn sqs(url: &str) -> Result<(), Unready> {
    let url = ServerUrl::parse(url)?;
    let mut stream = connect(&url)?;
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {SQS_PROTOCOL}\r\nContent-Length: 2\r\n\
         X-Amz-Target: AmazonSQS.ListQueues\r\nAuthorization: AWS4-HMAC-SHA256 Credential=probe/20261201/us-east-1/\
         sqs/aws4_request, SignedHeaders=host, Signature=0\r\n\r\n{{}}",
        url.authority
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(u64::from(LARGEST_ANSWER)).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let head = answer.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase();
    let refuses = head.starts_with("http/1.1 403") && head.contains("x-amzn-requestid");
    if refuses || (head.starts_with("http/1.") && head.contains(SQS_PROTOCOL)) {
        return Ok(());
    }
    Err(not_its_protocol("SQS's protocol"))
}

fn connect(url: &ServerUrl<'_>) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&url.address()?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn startup_packet(url: &ServerUrl<'_>) -> Vec<u8> {
    let mut body = POSTGRES_PROTOCOL.to_be_bytes().to_vec();
    for part in ["user", url.user(), "database", url.path, ""] {
        body.extend_from_slice(part.as_bytes());
        body.push(0);
    }
    // A test's URL is far from 4 GiB long, so the length cannot be cut.
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    [length.to_be_bytes().to_vec(), body].concat()
}

/// After the login come settings, and then either readiness or a refusal, such as that of an unknown
/// database.
fn after_login(stream: &mut TcpStream) -> Result<(), Unready> {
    loop {
        match answer(stream)? {
            (b'Z', _) => return Ok(()),
            (b'E', body) => return Err(refusal(&body)),
            _ => {}
        }
    }
}

/// One message: its kind, and its body without the length.
fn answer(stream: &mut TcpStream) -> Result<(u8, Vec<u8>), Unready> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_be_bytes(length);
    if !(4..LARGEST_ANSWER).contains(&length) {
        return Err(not_its_protocol("PostgreSQL"));
    }
    let mut body = Vec::new();
    stream.take(u64::from(length) - 4).read_to_end(&mut body)?;
    Ok((kind, body))
}

/// An error message's fields end with NUL and start with a letter: `C` is the SQLSTATE, `M` the text.
fn refusal(body: &[u8]) -> Unready {
    let field = |letter: u8| {
        let field = body.split(|&byte| byte == 0).find(|field| field.first() == Some(&letter));
        field.map(|field| String::from_utf8_lossy(&field[1..]).into_owned()).unwrap_or_default()
    };
    match field(b'C').as_str() {
        NO_SUCH_DATABASE => Unready::NoDatabase,
        state => Unready::Refused(format!("{} ({state})", field(b'M'))),
    }
}

fn not_its_protocol(protocol: &str) -> Unready {
    Unready::Unreachable(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("what listens there does not speak {protocol}"),
    ))
}
