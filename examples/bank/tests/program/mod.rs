//! The bank as its users run it: as programs, over HTTP.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use bytes::Bytes;
use hapax::BoxError;
use hapax_testkit::process::{Running, Subject};
use hapax_testkit::servers::eventually;
use serde_json::{Value, json};

#[path = "../../src/client.rs"]
pub(crate) mod client;

use client::{Answer, get, post, put, send};

pub(crate) const SOON: Duration = Duration::from_mins(1);

/// `bank` with arguments, told of no server by the environment.
pub(crate) fn bank(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bank"));
    for server in ["POSTGRES", "MONGODB", "RABBITMQ", "REDIS"] {
        command.env_remove(format!("HAPAX_BANK_{server}"));
    }
    command.args(args).output().expect("the bank is built with its tests")
}

/// What a check found; it must have ended clean.
pub(crate) fn clean(args: &[&str]) -> Value {
    let output = bank(&[&["check", "--json"], args].concat());
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{complained}");
    let found: Value = serde_json::from_str(&said).expect("one line of JSON");
    for none in ["doubled", "lost", "stuck"] {
        assert_eq!(found[none], 0, "{found}");
    }
    assert_eq!(found["money_before"], found["money_after"], "{found}");
    found
}

/// A service that runs, and where it answers.
pub(crate) struct Service {
    pub(crate) running: Running,
    pub(crate) address: SocketAddr,
}

impl Service {
    pub(crate) async fn start(args: &[&str]) -> Result<Self, BoxError> {
        let subject = args.iter().fold(Subject::new(env!("CARGO_BIN_EXE_bank")), Subject::arg);
        let mut running = subject.start()?;
        running.wait_output("listening on http://", SOON).await;
        let said = running.stdout();
        let address = said.split("http://").nth(1).and_then(|rest| rest.split_whitespace().next());
        let address = address.ok_or("it says where it listens")?.parse()?;
        Ok(Self { running, address })
    }

    /// The transfer service, embedded in a folder.
    pub(crate) async fn transfers_in(folder: &Path) -> Result<Self, BoxError> {
        let (own, peer) = (transfers_url(folder), accounts_url(folder));
        Self::start(&["transfer-service", "--store", &own, "--peer", &peer]).await
    }

    /// The account service, embedded in a folder.
    pub(crate) async fn accounts_in(folder: &Path, more: &[&str]) -> Result<Self, BoxError> {
        let (own, peer) = (accounts_url(folder), transfers_url(folder));
        Self::start(&[&["account-service", "--store", &own, "--peer", &peer], more].concat()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, BoxError> {
        let answer = send(self.address, get(path)?).await?;
        assert!(answer.status.is_success(), "{path}: {answer:?}");
        Ok(serde_json::from_slice(&answer.body)?)
    }

    pub(crate) async fn open(&self, account: &str, balance: &str) -> Result<(), BoxError> {
        let answer =
            send(self.address, put(&format!("/accounts/{account}"), &json!({ "balance": balance }))?).await?;
        assert!(answer.status.is_success(), "{answer:?}");
        Ok(())
    }

    pub(crate) async fn ask(&self, key: Option<&str>, body: &str) -> Result<Answer, BoxError> {
        send(self.address, post("/transfers", key, body.to_owned())?).await
    }

    pub(crate) async fn balance(&self, account: &str) -> Result<String, BoxError> {
        let found = self.get(&format!("/accounts/{account}")).await?;
        Ok(found["balance"].as_str().unwrap_or_default().to_owned())
    }

    pub(crate) async fn until_known(&self, accounts: u64) {
        let known = async || self.get("/moving").await.is_ok_and(|moving| moving["accounts"] == accounts);
        eventually("the accounts are known", SOON, known).await;
    }

    pub(crate) async fn until_state(&self, transfer: &str, state: &str) {
        let path = format!("/transfers/{transfer}");
        let is_there = async || self.get(&path).await.is_ok_and(|transfer| transfer["state"] == state);
        eventually(state, SOON, is_there).await;
    }

    pub(crate) async fn until_health(&self, field: &str, expected: u64) {
        let is_so = async || self.get("/health").await.is_ok_and(|health| health[field] == expected);
        eventually(field, SOON, is_so).await;
    }
}

pub(crate) fn transfers_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("transfers.db").display())
}

pub(crate) fn accounts_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("accounts.db").display())
}

/// A whole message as one would paste it.
pub(crate) fn pasted(id: &str, kind: &str, payload: &Value) -> Bytes {
    json!({ "messageId": id, "type": kind, "occurredAt": "2026-01-01T00:00:00Z", "payload": payload })
        .to_string()
        .into()
}

/// An order to take or give money.
pub(crate) fn movement(transfer: &str, entry: &str, account: &str, amount: &str) -> Value {
    json!({ "transferId": transfer, "entry": entry, "account": account, "amount": amount })
}
