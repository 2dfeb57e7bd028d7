//! What the server is to do in one step, so that nobody comes in between.

use redis::{Cmd, cmd};

use crate::ledger::Held;

/// A stream, the group, and our name in it.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) stream: String,
    pub(crate) group: String,
    pub(crate) consumer: String,
}

/// What is to become of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Ack,
    /// Anybody may take it at once.
    HandBack,
    /// Its lease begins anew.
    Keep,
}

impl Word {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::HandBack => "back",
            Self::Keep => "keep",
        }
    }
}

/// For each entry: is it with this consumer still, delivered as often as when we got it? Only then something is
/// done, and the answer is 1.
///
/// The server's own XACK and XCLAIM ask for neither: a late one would ack, or take, what another instance works
/// on. The number of deliveries tells two deliveries to the same consumer apart. JUSTID leaves that number alone.
const SETTLE: &str = r"
local done = {}
for i = 4, #ARGV, 3 do
  local word, id, count = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1]
  if not (pending and pending[2] == ARGV[2] and pending[4] == count) then
    done[#done + 1] = 0
  else
    if word == 'ack' then
      redis.call('XACK', KEYS[1], ARGV[1], id)
    elseif word == 'keep' then
      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'JUSTID')
    else
      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'IDLE', ARGV[3], 'JUSTID')
    end
    done[#done + 1] = 1
  end
end
return done
";

/// How long an entry that is handed back has lain idle, as the server is told: longer than any lease.
const A_DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// Takes over what has lain idle for a lease, and says how often each entry was delivered. What was deleted from the
/// stream leaves the group: 7.0 does that by itself, 6.2 answers with an entry without an id.
const RECLAIM: &str = r"
local answer = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5])
local entries, deleted = {}, answer[3] and #answer[3] or 0
for _, entry in ipairs(answer[2]) do
  if entry and entry[1] and entry[2] then
    local pending = redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)[1]
    if pending then
      entries[#entries + 1] = { entry[1], pending[4], entry[2] }
    end
  end
end
return { answer[1], entries, deleted }
";

/// Removes our name from the group, unless entries are with it: those would be lost with it.
const LEAVE: &str = r"
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
  return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
return 0
";

impl Seat {
    fn eval(&self, script: &str) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(script).arg(1).arg(&self.stream).arg(&self.group).arg(&self.consumer);
        command
    }

    pub(crate) fn settle<'h>(&self, deliveries: impl IntoIterator<Item = (&'h Held, Word)>) -> Cmd {
        let mut command = self.eval(SETTLE);
        command.arg(A_DAY_MS);
        for (held, word) in deliveries {
            command.arg(word.as_str()).arg(&*held.entry).arg(held.deliveries);
        }
        command
    }

    pub(crate) fn reclaim(&self, idle_ms: u64, from: &str, count: usize) -> Cmd {
        let mut command = self.eval(RECLAIM);
        command.arg(idle_ms).arg(from).arg(count);
        command
    }

    pub(crate) fn leave(&self) -> Cmd {
        self.eval(LEAVE)
    }

    /// New entries, waited for.
    pub(crate) fn read(&self, count: usize, wait_ms: u64) -> Cmd {
        let mut command = cmd("XREADGROUP");
        command.arg("GROUP").arg(&self.group).arg(&self.consumer).arg("COUNT").arg(count);
        command.arg("BLOCK").arg(wait_ms).arg("STREAMS").arg(&self.stream).arg(">");
        command
    }

    /// What the group has in hand; an error with a code of its own where there is no group.
    pub(crate) fn pending(&self) -> Cmd {
        let mut command = cmd("XPENDING");
        command.arg(&self.stream).arg(&self.group);
        command
    }

    /// The group from the stream's first entry on, and the stream if need be.
    pub(crate) fn create(&self) -> Cmd {
        let mut command = cmd("XGROUP");
        command.arg("CREATE").arg(&self.stream).arg(&self.group).arg("0").arg("MKSTREAM");
        command
    }

    pub(crate) fn describe(&self, what: &str) -> Cmd {
        let mut command = cmd("XINFO");
        command.arg(what).arg(&self.stream);
        command
    }
}
