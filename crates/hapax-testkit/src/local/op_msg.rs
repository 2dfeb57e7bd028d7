//! As much of MongoDB's wire protocol as it takes to ask a server who it is, to make a replica set of it, and to drop
//! a test's database.
//!
//! There is no shell among the server's programs, and a driver would be a dependency of everybody who tests
//! handlers on any store: so here are one message (`OP_MSG`) and the few types of BSON that go into it.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// How long one step of an exchange may take; a local server needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
const OP_MSG: u32 = 2013;
/// The largest answer that is believed.
const LARGEST_ANSWER: u32 = 1024 * 1024;

/// A document under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bson(Vec<u8>);

impl Bson {
    /// Adds an integer.
    pub(crate) fn int(self, name: &str, value: i32) -> Self {
        self.field(0x10, name, &value.to_le_bytes())
    }

    /// Adds a text.
    pub(crate) fn text(self, name: &str, value: &str) -> Self {
        // A test's texts are far from 4 GiB long, so the length cannot be cut.
        let length = u32::try_from(value.len() + 1).unwrap_or(u32::MAX);
        self.field(0x02, name, &[&length.to_le_bytes(), value.as_bytes(), &[0]].concat())
    }

    /// Adds a document.
    pub(crate) fn document(self, name: &str, value: &Self) -> Self {
        self.field(0x03, name, &value.bytes())
    }

    /// Adds an array of one document.
    pub(crate) fn only(self, name: &str, value: &Self) -> Self {
        let array = Self::default().document("0", value);
        self.field(0x04, name, &array.bytes())
    }

    fn field(mut self, kind: u8, name: &str, value: &[u8]) -> Self {
        self.0.push(kind);
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        self.0.extend_from_slice(value);
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() + 5).unwrap_or(u32::MAX);
        [&length.to_le_bytes(), self.0.as_slice(), &[0]].concat()
    }
}

/// A server's answer to a command.
#[derive(Debug)]
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    /// Whether a field is there and true, or 1.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        match self.find(name) {
            Some((0x08, value)) => value == [1],
            Some((0x01, value)) => value == 1.0_f64.to_le_bytes(),
            _ => false,
        }
    }

    /// A field that is a text.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        match self.find(name) {
            Some((0x02, value)) => Some(String::from_utf8_lossy(value.get(4..value.len() - 1)?).into_owned()),
            _ => None,
        }
    }

    /// A field's type and value. What follows a type that no answer of ours has is not looked at.
    fn find(&self, name: &str) -> Option<(u8, &[u8])> {
        let mut rest = self.0.get(4..)?;
        loop {
            let (&kind, after) = rest.split_first().filter(|(kind, _)| **kind != 0)?;
            let end = after.iter().position(|&byte| byte == 0)?;
            let (field, value) = (&after[..end], &after[end + 1..]);
            let prefix = || Some(u32::from_le_bytes(value.get(..4)?.try_into().ok()?) as usize);
            let length = match kind {
                0x01 | 0x09 | 0x11 | 0x12 => 8,
                0x02 => prefix()? + 4,
                0x03 | 0x04 => prefix()?,
                0x05 => prefix()? + 5,
                0x07 => 12,
                0x08 => 1,
                0x0a => 0,
                0x10 => 4,
                _ => return None,
            };
            if field == name.as_bytes() {
                return Some((kind, value.get(..length)?));
            }
            rest = value.get(length..)?;
        }
    }
}

/// Runs a command on a database. Fails if the server refuses it.
pub(crate) fn command(address: SocketAddr, database: &str, command: Bson) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&message(&command.text("$db", database)))?;
    let answer = read(&mut stream)?;
    if answer.is_true("ok") {
        return Ok(answer);
    }
    let reason = answer.text("errmsg").unwrap_or_default();
    Err(io::Error::other(format!("MongoDB refuses: {reason}")))
}

/// Length, request, response to, operation; then flags and one section with the document.
fn message(command: &Bson) -> Vec<u8> {
    let body = command.bytes();
    let length = u32::try_from(body.len() + 21).unwrap_or(u32::MAX);
    let head = [length, 1, 0, OP_MSG, 0].map(u32::to_le_bytes).concat();
    [head, vec![0], body].concat()
}

fn read(stream: &mut TcpStream) -> io::Result<Answer> {
    let mut head = [0; 21];
    stream.read_exact(&mut head)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if word(12) != OP_MSG || !(21..LARGEST_ANSWER).contains(&word(0)) {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "what listens there does not speak MongoDB's protocol",
        ));
    }
    let mut body = Vec::new();
    stream.take(u64::from(word(0)) - 21).read_to_end(&mut body)?;
    Ok(Answer(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_others() {
        let inner = Bson::default().text("ok", "hidden");
        let document =
            Bson::default().int("n", 1).only("members", &inner).document("d", &inner).text("a", "b");
        let mut bytes = document.bytes();
        bytes.splice(bytes.len() - 1.., *b"\x08yes\0\x01\0");
        let answer = Answer(bytes);
        assert_eq!(answer.text("a").as_deref(), Some("b"));
        assert!(answer.is_true("yes") && !answer.is_true("ok") && !answer.is_true("n"));
    }
}
