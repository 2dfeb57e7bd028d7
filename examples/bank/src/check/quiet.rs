//! Waiting until nothing moves any more.

use std::time::{Duration, Instant};

use hapax::BoxError;

use super::load::{Moving, moving};
use super::process::Process;
use crate::service::Health;

/// How often to look.
const LOOK: Duration = Duration::from_millis(100);
/// All transfers have ended, and so long nothing came: longer than any copy is late, or any lease holds.
const CALM: Duration = Duration::from_secs(3);
/// Something is left to do, and so long nobody did any of it: longer than a waiting message is held by the dead.
const GIVEN_UP: Duration = Duration::from_mins(1);

/// What two looks have to agree in.
type Look = (Health, Health, Moving);

/// Waits until all transfers have ended and nothing is under way, or until what is left will never end:
/// nothing is to be done, and nothing has happened for so long.
pub(crate) async fn until_quiet(
    transfers: &Process,
    accounts: &Process,
    patience: Duration,
    mut look_at: impl FnMut(Moving),
) -> Result<(), BoxError> {
    let (mut last, mut since): (Option<Look>, _) = (None, Instant::now());
    loop {
        transfers.check()?;
        accounts.check()?;
        let look = look(transfers, accounts).await;
        if look.is_none() || look != last {
            (last, since) = (look.or(last), Instant::now());
        }
        if let (Some(look), Some((one, two, moving))) = (look, last) {
            look_at(look.2);
            let is_done = [one, two].iter().all(|health| health.unsent == 0 && health.waiting == 0);
            let enough = match (moving.moving, is_done) {
                (0, true) => CALM,
                (_, true) => patience,
                (_, false) => patience.max(GIVEN_UP),
            };
            if since.elapsed() >= enough {
                return Ok(());
            }
        }
        if since.elapsed() >= patience.max(GIVEN_UP) {
            return Ok(()); // what does not answer is stuck, and the audit says so
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn look(transfers: &Process, accounts: &Process) -> Option<Look> {
    Some((transfers.health().await?, accounts.health().await?, moving(transfers.address).await?))
}
