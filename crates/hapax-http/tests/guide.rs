//! The guide names tests for what it claims: each of them exists.

use std::path::Path;

#[test]
fn every_test_that_the_guide_names_exists() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(folder.join("docs/http.md")).expect("the guide");
    let mut named = 0;
    for (start, _) in guide.match_indices(".rs#") {
        let rest = &guide[start + 4..];
        let (name, rest) = rest.split_once("](").expect("a link");
        let (path, _) = rest.split_once(')').expect("its end");
        let file = folder.join("../..").join("docs").join(path);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{path} is not there"));
        assert!(text.contains(&format!("fn {name}")), "{path} has no test {name}");
        named += 1;
    }
    assert!(named > 40, "{named}");
}
