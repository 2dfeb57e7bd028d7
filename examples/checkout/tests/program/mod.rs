//! The checkout as its users run it: as programs, over HTTP.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use hapax::BoxError;
use hapax_testkit::process::{Running, Subject};
use hapax_testkit::servers::eventually;
use hyper::Request;
use serde_json::Value;

#[path = "../../src/client.rs"]
pub(crate) mod client;
pub(crate) mod sent;

use client::{Answer, Body, Server, get, send};

/// More than anything here takes on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(2);

/// What the environment could tell the program.
const TOLD: [&str; 4] =
    ["CHECKOUT_STORE", "CHECKOUT_STANDARD_SECRET", "CHECKOUT_GITHUB_SECRET", "CHECKOUT_STRIPE_SECRET"];

/// `checkout` with arguments, run to its end.
pub(crate) fn checkout(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_checkout"));
    for variable in TOLD {
        command.env_remove(variable);
    }
    command.args(args).output().expect("the checkout is built with its tests")
}

/// What a check found; it must have ended clean.
pub(crate) fn clean(args: &[&str]) -> Value {
    let output = checkout(&[&["check", "--json"], args].concat());
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{complained}");
    let found: Value = serde_json::from_str(&said).expect("one line of JSON");
    for none in [
        "doubled",
        "lost",
        "differing_answers",
        "wrong_totals",
        "charged_twice",
        "not_charged",
        "wrong_receipts",
        "dead",
    ] {
        assert_eq!(found[none], 0, "{found}");
    }
    found
}

/// The URL of a database in a folder.
pub(crate) fn store_in(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("checkout.db").display())
}

/// A process that runs, and where it answers.
pub(crate) struct Service {
    pub(crate) running: Running,
    pub(crate) server: Server,
}

impl Service {
    pub(crate) async fn start(args: &[&str]) -> Result<Self, BoxError> {
        let subject = TOLD.iter().fold(Subject::new(env!("CARGO_BIN_EXE_checkout")), |subject, variable| {
            subject.env_remove(variable)
        });
        let subject = args.iter().chain(&["--listen", "127.0.0.1:0"]).fold(subject, Subject::arg);
        let mut running = subject.start()?;
        running.wait_output("listening on http://", SOON).await;
        let said = running.stdout();
        let url = said.split_whitespace().last().ok_or("it says where it listens")?;
        Ok(Self { server: url.parse()?, running })
    }

    /// The service on a database.
    pub(crate) async fn serve(store: &str, provider: &str, more: &[&str]) -> Result<Self, BoxError> {
        Self::start(&[&["serve", "--store", store, "--provider", provider], more].concat()).await
    }

    pub(crate) fn url(&self) -> String {
        self.server.to_string()
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, BoxError> {
        let answer = send(&self.server, get(path)?).await?;
        assert!(answer.status.is_success(), "{path}: {answer:?}");
        Ok(serde_json::from_slice(&answer.body)?)
    }

    /// Posts a body with headers.
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, BoxError> {
        let request = Request::post(path).header("content-type", "application/json");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        send(&self.server, request.body(Body::from(body.to_vec()))?).await
    }

    /// Waits until something can be read that is so.
    pub(crate) async fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) {
        let looked = async || self.get(path).await.is_ok_and(|found| is_so(&found));
        eventually(path, SOON, looked).await;
    }
}
