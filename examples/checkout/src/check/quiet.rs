//! Waiting until nothing moves any more.

use std::time::{Duration, Instant};

use hapax::BoxError;

use super::process::Process;
use crate::client::{get, send};
use crate::serve::Progress;

/// How often to look.
const LOOK: Duration = Duration::from_millis(100);
/// Everything is charged, and so long nothing came: longer than any lease holds.
const CALM: Duration = Duration::from_secs(4);
/// Something is left to do, and so long nobody did any of it: longer than a waiting message is held by the dead.
const GIVEN_UP: Duration = Duration::from_mins(1);

/// Waits until everything is charged and nothing is under way, or until what is left will never end.
pub(super) async fn until_quiet(service: &Process) -> Result<Progress, BoxError> {
    let (mut last, mut since) = (Progress::default(), Instant::now());
    loop {
        service.check()?;
        if let Some(look) = progress(service).await
            && look != last
        {
            (last, since) = (look, Instant::now());
        }
        let is_done = last.payments == last.charged && (last.unsent, last.waiting) == (0, 0);
        if since.elapsed() >= if is_done { CALM } else { GIVEN_UP } {
            return Ok(last);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// How far the service has got, if it answers.
pub(super) async fn progress(service: &Process) -> Option<Progress> {
    let answer = send(&service.server, get("/progress").ok()?).await.ok()?;
    serde_json::from_slice(&answer.body).ok()
}
