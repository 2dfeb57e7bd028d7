//! One trial: two services, a load, and death.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hapax::BoxError;

use super::audit::{Findings, audit, money};
use super::load::{Load, Moving, moving};
use super::process::{Plan, Process};
use super::quiet::until_quiet;
use super::scratch::Scratch;

/// How often to look how far it has got.
const LOOK: Duration = Duration::from_millis(20);
/// How long after that the kill comes, at most: an arbitrary moment.
const MOMENT: f64 = 0.05;

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    /// Either, by chance.
    Either,
    /// The account service.
    Accounts,
}

/// What is tried.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) transfers: usize,
    /// Between so many accounts.
    pub(crate) accounts: usize,
    pub(crate) duplicates: f64,
    /// How often a service is killed at a random moment.
    pub(crate) kills: u32,
    /// Which one.
    pub(crate) victim: Victim,
    /// How often, besides, the account service dies at its worst moment.
    pub(crate) deaths: u32,
    pub(crate) seed: u64,
    /// Arguments for the account service.
    pub(crate) account_args: Vec<String>,
    /// How long nothing must have happened until what is left counts as stuck.
    pub(crate) patience: Duration,
    pub(crate) shows_progress: bool,
}

/// Completes when one of the services has ended by itself, with the reason.
async fn ended(transfers: &Process, accounts: &Process) -> BoxError {
    loop {
        if let Err(error) = transfers.check().and_then(|()| accounts.check()) {
            return error;
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl Trial {
    /// So many transfers on a good day.
    pub(crate) fn of(transfers: usize) -> Self {
        Self {
            transfers,
            accounts: 40,
            duplicates: 0.0,
            kills: 0,
            victim: Victim::Either,
            deaths: 0,
            seed: 0,
            account_args: Vec::new(),
            patience: Duration::from_secs(15),
            shows_progress: false,
        }
    }

    /// Runs it, and tells what was found.
    pub(crate) async fn run(&self, scratch: &Scratch) -> Result<Findings, BoxError> {
        let mut random = Rng::with_seed(self.seed);
        let load = Arc::new(Load::draw(self.transfers, self.accounts, self.duplicates, &mut random));
        let transfers = Process::start(self.transfer_service(scratch, &mut random))?;
        let accounts = Process::start(self.account_service(scratch, &mut random))?;
        tokio::select! {
            opened = load.open_accounts(transfers.address, accounts.address) => opened?,
            ended = ended(&transfers, &accounts) => return Err(ended),
        }
        let money_before = money(accounts.address).await?;

        let asking = tokio::spawn(Arc::clone(&load).ask(transfers.address));
        self.kill(&transfers, &accounts, &load, &mut random).await?;
        asking.await??;
        let show = |moving: Moving| self.show(&load, moving.moving, &transfers, &accounts);
        until_quiet(&transfers, &accounts, self.patience, show).await?;
        self.wipe();

        let findings = audit(transfers.address, accounts.address, &load.accepted()).await?;
        Ok(Findings {
            money_before,
            duplicates_seen: transfers.duplicates() + accounts.duplicates(),
            kills: transfers.deaths() + accounts.deaths(),
            seed: self.seed,
            ..findings
        })
    }

    /// Kills one of the two whenever the work has got so far.
    async fn kill(
        &self,
        transfers: &Process,
        accounts: &Process,
        load: &Load,
        random: &mut Rng,
    ) -> Result<(), BoxError> {
        // Half of a transfer is that it is accepted, the other half that it ends.
        let mut moments: Vec<usize> = (0..self.kills).map(|_| random.usize(..self.transfers * 2)).collect();
        moments.sort_unstable();
        let mut ended = 0;
        let (mut patience, mut reached) = (Instant::now(), 0);
        for moment in moments {
            while reached < moment && patience.elapsed() < self.patience {
                transfers.check()?;
                accounts.check()?;
                if let Some(Moving { moving, .. }) = moving(transfers.address).await {
                    ended = load.asked().saturating_sub(moving);
                    self.show(load, moving, transfers, accounts);
                }
                if load.asked() + ended > reached {
                    (patience, reached) = (Instant::now(), load.asked() + ended);
                }
                tokio::time::sleep(LOOK).await;
            }
            tokio::time::sleep(Duration::from_secs_f64(random.f64() * MOMENT)).await;
            let victim = if self.victim == Victim::Either && random.bool() { transfers } else { accounts };
            victim.kill().await;
        }
        Ok(())
    }

    fn show(&self, load: &Load, moving: usize, transfers: &Process, accounts: &Process) {
        if self.shows_progress && std::io::stderr().is_terminal() {
            let (asked, kills) = (load.asked(), transfers.deaths() + accounts.deaths());
            eprint!("\r{asked} of {} accepted, {moving} moving, {kills} kills   ", self.transfers);
        }
    }

    fn wipe(&self) {
        if self.shows_progress && std::io::stderr().is_terminal() {
            eprint!("\r{:60}\r", "");
        }
    }

    fn transfer_service(&self, scratch: &Scratch, random: &mut Rng) -> Plan {
        let args = self.service("transfer-service", &scratch.transfers, &scratch.accounts, scratch, random);
        Plan { args, log: scratch.folder.path().join("transfers.log"), deaths: (0, random.fork()) }
    }

    fn account_service(&self, scratch: &Scratch, random: &mut Rng) -> Plan {
        let mut args =
            self.service("account-service", &scratch.accounts, &scratch.transfers, scratch, random);
        args.extend_from_slice(&self.account_args);
        Plan { args, log: scratch.folder.path().join("accounts.log"), deaths: (self.deaths, random.fork()) }
    }

    fn service(
        &self,
        name: &str,
        store: &str,
        peer: &str,
        scratch: &Scratch,
        random: &mut Rng,
    ) -> Vec<String> {
        let (duplicates, seed) = (self.duplicates.to_string(), random.u64(..).to_string());
        let mut args = vec![name, "--store", store, "--duplicates", &duplicates, "--seed", &seed];
        match &scratch.broker {
            Some((url, exchange)) => args.extend(["--broker", url, "--exchange", exchange]),
            None => args.extend(["--peer", peer]),
        }
        args.into_iter().map(str::to_owned).collect()
    }
}
