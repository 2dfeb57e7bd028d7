//! One trial: a provider, a service, a load, and death.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hapax::BoxError;

use super::audit::{Books, Findings, compare};
use super::load::Load;
use super::process::Process;
use super::quiet::{progress, until_quiet};
use super::scratch::Scratch;
use crate::client::{Server, get, send};

/// How often to look how far it has got.
const LOOK: Duration = Duration::from_millis(20);
/// How long after that the kill comes, at most: an arbitrary moment.
const MOMENT: f64 = 0.05;
/// Nothing has happened for so long: the next kill comes all the same.
const STANDSTILL: Duration = Duration::from_secs(15);
/// How long the provider takes for a charge, in milliseconds.
const SLOW: &str = "5";

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) payments: usize,
    pub(super) copies: usize,
    pub(super) kills: u32,
    pub(super) lose: f64,
    pub(super) seed: u64,
    pub(super) shows_progress: bool,
}

impl Trial {
    /// Runs it, and tells what was found.
    pub(super) async fn run(&self, scratch: &Scratch) -> Result<Findings, BoxError> {
        let mut random = Rng::with_seed(self.seed);
        let run = format!("{:08x}", fastrand::u32(..)); // not the seed's: the same seed can be run twice on one database
        let load = Arc::new(Load::draw(self.payments, self.copies, &run, &mut random));
        let log = |name: &str| scratch.folder.path().join(name);
        let (lose, seed) = (self.lose.to_string(), random.u64(..).to_string());
        let provider = ["provider", "--lose", &lose, "--slow", SLOW, "--seed", &seed];
        let provider = Process::start(&provider, log("provider.log"))?;
        let url = provider.server.to_string();
        let service = ["serve", "--store", &scratch.store, "--provider", &url];
        let service = Process::start(&service, log("service.log"))?;

        let asking = tokio::spawn(Arc::clone(&load).ask(service.server.clone()));
        let kills = self.kill(&service, &load, &mut random).await?;
        asking.await??;
        let quiet = until_quiet(&service).await?;
        provider.check()?;
        self.wipe();

        let found = compare(&load.wanted, &books(&service.server, &provider.server).await?);
        Ok(Findings {
            copies: self.copies,
            requests: load.requests(),
            kills,
            differing_answers: load.differing(),
            dead: quiet.dead,
            seed: self.seed,
            ..found
        })
    }

    /// Kills the service whenever the work has got so far.
    async fn kill(&self, service: &Process, load: &Load, random: &mut Rng) -> Result<u32, BoxError> {
        // Half of the work is that all copies are answered, the other half that all payments are charged.
        let all = self.payments * self.copies;
        let mut moments: Vec<usize> = (0..self.kills).map(|_| random.usize(..2 * all)).collect();
        moments.sort_unstable();
        let (mut charged, mut reached, mut since) = (0, 0, Instant::now());
        for moment in moments {
            while reached < moment && since.elapsed() < STANDSTILL {
                service.check()?;
                if let Some(progress) = progress(service).await {
                    charged = usize::try_from(progress.charged)?;
                    self.show(load, charged);
                }
                let now = load.answered() + charged.min(self.payments) * self.copies;
                if now > reached {
                    (reached, since) = (now, Instant::now());
                }
                tokio::time::sleep(LOOK).await;
            }
            tokio::time::sleep(Duration::from_secs_f64(random.f64() * MOMENT)).await;
            service.kill().await;
        }
        Ok(self.kills)
    }

    fn show(&self, load: &Load, charged: usize) {
        if self.shows_progress && std::io::stderr().is_terminal() {
            let (answered, all) = (load.answered(), self.payments * self.copies);
            eprint!("\r{answered} of {all} requests answered, {charged} payments charged   ");
        }
    }

    fn wipe(&self) {
        if self.shows_progress && std::io::stderr().is_terminal() {
            eprint!("\r{:70}\r", "");
        }
    }
}

async fn books(service: &Server, provider: &Server) -> Result<Books, BoxError> {
    Ok(Books {
        payments: fetch(service, "/payments").await?,
        accounts: fetch(service, "/accounts").await?,
        charges: fetch(provider, "/charges").await?,
    })
}

async fn fetch<T: serde::de::DeserializeOwned>(server: &Server, path: &str) -> Result<T, BoxError> {
    let answer = send(server, get(path)?).await?;
    if !answer.status.is_success() {
        return Err(format!("{path}: {}", answer.status).into());
    }
    Ok(serde_json::from_slice(&answer.body)?)
}
