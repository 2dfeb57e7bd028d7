//! Durations (`"5m"`) and sizes (`"4MiB"`).

use std::time::Duration;

use toml::de::DeValue;

use super::read::Value;

/// The longest duration: a hundred years. Longer ones are slips, and would overflow a database's clock.
const LONGEST: Duration = Duration::from_hours(24 * 36_500);

/// Every unit of size with its number of bytes.
const UNITS: [(&str, u64); 7] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

impl Value<'_> {
    /// A duration such as `"1s"`, `"5m"`, `"14d"` or `"1h 30m"` that is no shorter than `least`.
    pub(super) fn duration(&self, least: Duration) -> Option<Duration> {
        let text = self.text()?;
        let Ok(duration) = humantime::parse_duration(&text.value) else {
            let cure = "Write a number with its unit: `500ms`, `20s`, `5m`, `1h 30m`, `14d`.";
            self.wrong(format!("is not a duration: `{}`", text.written), cure);
            return None;
        };
        if (least..=LONGEST).contains(&duration) {
            return Some(duration);
        }
        let bound = if duration < least { ("no shorter", least) } else { ("no longer", LONGEST) };
        let bound = format!("{} than {}", bound.0, humantime::format_duration(bound.1));
        self.wrong(format!("must be {bound}"), format!("Write a duration {bound}."));
        None
    }

    /// A duration that is not zero.
    pub(super) fn positive_duration(&self) -> Option<Duration> {
        self.duration(Duration::from_millis(1))
    }

    /// A number of bytes such as `"4MiB"`, `"500kB"` or `1048576`, from one to `most`.
    pub(super) fn size(&self, most: u64) -> Option<u64> {
        if let DeValue::Integer(_) = self.any() {
            return self.integer(1, most);
        }
        let text = self.text()?;
        let size = parse_size(&text.value).filter(|size| (1..=most).contains(size));
        if size.is_none() {
            let cause = format!("is not a size from 1 to {most} bytes: `{}`", text.written);
            self.wrong(cause, "Write a whole number with its unit: `512KiB`, `4MiB`, `500kB`.");
        }
        size
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let unit_start = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_start);
    let (_, bytes) = UNITS.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_numbers_of_a_unit() {
        assert_eq!(parse_size("4MiB"), Some(4 * 1024 * 1024));
        assert_eq!(parse_size("500 kB"), Some(500_000));
        for refused in ["", "4", "MiB", "4.5MiB", "4 mib", "-1B", "99999999999GiB"] {
            assert_eq!(parse_size(refused), None, "{refused}");
        }
    }
}
