//! The word that somebody probably meant.

/// Below this similarity (of 0 to 1) a guess misleads more than it helps.
const CLOSE_ENOUGH: f64 = 0.7;

/// The one of `known` that is most like `word`, if any is like it.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let similarity = |candidate: &str| strsim::jaro_winkler(&word.to_lowercase(), candidate);
    let scored = known.iter().map(|candidate| (similarity(candidate), *candidate));
    let (score, candidate) = scored.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (score >= CLOSE_ENOUGH).then_some(candidate)
}

/// The cure for an unknown word: the nearest one, and all there are.
pub(super) fn suggestion(word: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return "There is none that it could be.".to_owned();
    }
    let quoted: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
    let all = format!("Known here: {}.", quoted.join(", "));
    match nearest(word, known) {
        Some(nearest) => format!("Did you mean `{nearest}`? {all}"),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_named_and_a_far_one_is_not() {
        let known = ["retry", "retention", "timeout"];
        assert_eq!(nearest("retries", &known), Some("retry"));
        assert_eq!(nearest("RETRY", &known), Some("retry"));
        assert_eq!(nearest("xyz", &known), None);
        assert_eq!(suggestion("tmeout", &known[2..]), "Did you mean `timeout`? Known here: `timeout`.");
    }
}
