//! Places at which a test can end the process.

/// Marks a step of a delivery at which a test can end the process.
///
/// Without the feature `crash-points` it is nothing. With it, `HAPAX_CRASH_AT=name:n` ends the
/// process with SIGKILL at the n-th passage, so that no destructor, buffer or handshake can help.
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        $crate::crash::pass($name);
    };
}

/// Counts a passage and ends the process if the test asked for this one.
#[cfg(feature = "crash-points")]
#[doc(hidden)]
pub fn pass(name: &'static str) {
    use std::sync::Once;
    use std::sync::atomic::{AtomicU32, Ordering};

    static PASSED: AtomicU32 = AtomicU32::new(0);
    static ARMED: Once = Once::new();

    ARMED.call_once(|| {
        let Ok(wanted) = std::env::var("HAPAX_CRASH_AT") else { return };
        let (point, nth) = wanted.split_once(':').unwrap_or((&wanted, "1"));
        let nth: u32 = nth.parse().unwrap_or(1);
        let armed = fail::cfg_callback(point.to_owned(), move || {
            if PASSED.fetch_add(1, Ordering::SeqCst) + 1 == nth {
                kill_self();
            }
        });
        assert!(armed.is_ok(), "HAPAX_CRASH_AT={wanted} cannot be armed");
    });
    fail::fail_point!(name);
}

/// SIGKILL through `kill(1)`: the standard library has no call for it, and `abort` would be SIGABRT.
#[cfg(feature = "crash-points")]
fn kill_self() {
    let _ = std::process::Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    loop {
        std::thread::park();
    }
}
