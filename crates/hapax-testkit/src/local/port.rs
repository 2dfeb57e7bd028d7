//! A port for a server of one's own.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
};

/// Below what Linux (32768), macOS and Windows (49152) hand to outgoing connections. With a port from there,
/// a client that keeps calling a stopped server is in the end given that very port for its own side, connects
/// *to itself*, and keeps the server from coming back.
const FIRST: u16 = 15_000;
const COUNT: u16 = 17_000;

/// A local TCP address on which nobody listens now. The search starts anywhere, so that two processes which
/// search at the same time rarely find the same.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    let start = random_bits() % u64::from(COUNT);
    (0..COUNT)
        .map(|step| FIRST + offset(start, step))
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .find(|&address| is_free(address))
        .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no free port"))
}

/// Whether a server could listen there.
pub(crate) fn is_free(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_ok()
}

/// Bits that differ from call to call and from process to process; nothing here needs more than that.
pub(crate) fn random_bits() -> u64 {
    RandomState::new().hash_one(())
}

fn offset(start: u64, step: u16) -> u16 {
    // The remainder is below COUNT, which is a u16.
    u16::try_from((start + u64::from(step)) % u64::from(COUNT)).unwrap_or(0)
}
