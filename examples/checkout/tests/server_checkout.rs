//! Payments on PostgreSQL.

mod program;

mod server {
    use hapax_testkit::servers::{Server, postgres_url, require};

    use super::program::clean;

    #[test]
    fn every_payment_is_made_and_charged_once() {
        if !require(Server::Postgres) {
            return;
        }
        // It makes a database of its own, and removes it.
        let found = clean(&["--payments", "80", "--copies", "4", "--kills", "6", "--store", &postgres_url()]);
        assert_eq!((&found["payments"], &found["kills"]), (&80.into(), &6.into()), "{found}");
    }
}
