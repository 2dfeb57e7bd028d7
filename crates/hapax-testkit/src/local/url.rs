//! The few parts of a server's URL that tests exchange: its address and its path.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
};

/// `scheme://user:password@host:port/path?query`, split where tests replace something.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl<'a> {
    pub(crate) scheme: &'a str,
    /// `user` or `user:password`, as written (percent-encoded), or empty.
    pub(crate) login: &'a str,
    /// `host` or `host:port`, as written.
    pub(crate) authority: &'a str,
    /// Without its leading `/`.
    pub(crate) path: &'a str,
    /// With its leading `?`, or empty.
    pub(crate) query: &'a str,
}

impl<'a> ServerUrl<'a> {
    /// Splits `url`; the message of the error never shows it, since it may hold a password.
    pub(crate) fn parse(url: &'a str) -> io::Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a server's URL starts with scheme://")
        })?;
        let (rest, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        let (rest, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, authority) = rest.rsplit_once('@').unwrap_or(("", rest));
        Ok(Self { scheme, login, authority, path, query })
    }

    /// The server's address, with the scheme's usual port if the URL names none.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        let usual = match self.scheme {
            "amqp" | "amqps" => 5672,
            "mongodb" => 27017,
            "nats" | "tls" => 4222,
            "redis" | "rediss" => 6379,
            "sqs" => 4566,
            "mysql" | "mariadb" => 3306,
            "kafka" => 9092,
            _ => 5432,
        };
        // What follows the last colon is a port only if it is a number: `[::1]` has colons, too.
        let has_port = self.authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { self.authority.to_owned() } else { format!("{}:{usual}", self.authority) };
        host.to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address")))
    }

    pub(crate) fn user(&self) -> &'a str {
        self.login.split_once(':').map_or(self.login, |(user, _)| user)
    }

    pub(crate) fn has_password(&self) -> bool {
        self.login.contains(':')
    }

    /// The same URL with another path: another database, another virtual host.
    pub(crate) fn with_path(&self, path: &str) -> String {
        let at = if self.login.is_empty() { "" } else { "@" };
        format!("{}://{}{at}{}/{path}{}", self.scheme, self.login, self.authority, self.query)
    }

    /// The same URL at another address: through a proxy.
    pub(crate) fn with_address(&self, address: SocketAddr) -> String {
        ServerUrl { authority: &address.to_string(), ..*self }.with_path(self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_a_path_are_replaced_and_the_rest_stays() -> io::Result<()> {
        let url = ServerUrl::parse("postgres://me:p%40ss@127.0.0.1/test?sslmode=disable")?;
        assert_eq!((url.user(), url.has_password()), ("me", true));
        assert_eq!(url.address()?, "127.0.0.1:5432".parse().unwrap());
        assert_eq!(url.with_path("other"), "postgres://me:p%40ss@127.0.0.1/other?sslmode=disable");
        let proxied = url.with_address("127.0.0.1:9".parse().unwrap());
        assert_eq!(proxied, "postgres://me:p%40ss@127.0.0.1:9/test?sslmode=disable");
        Ok(())
    }

    #[test]
    fn every_part_but_scheme_and_host_may_be_missing() -> io::Result<()> {
        let url = ServerUrl::parse("amqp://127.0.0.1")?;
        assert_eq!((url.user(), url.has_password(), url.path, url.query), ("", false, "", ""));
        assert_eq!(url.address()?, "127.0.0.1:5672".parse().unwrap());
        assert_eq!(ServerUrl::parse("amqp://[::1]:5673/%2f")?.address()?, "[::1]:5673".parse().unwrap());
        assert_eq!(ServerUrl::parse("amqp://[::1]/%2f")?.address()?, "[::1]:5672".parse().unwrap());
        assert_eq!(ServerUrl::parse("mongodb://[::1]/")?.address()?, "[::1]:27017".parse().unwrap());
        assert_eq!(ServerUrl::parse("mysql://root@[::1]/test")?.address()?, "[::1]:3306".parse().unwrap());
        assert!(ServerUrl::parse("localhost:5432").is_err());
        Ok(())
    }
}
