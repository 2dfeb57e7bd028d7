//! A message that a handler publishes: its body and key from the handler's parameters.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hapax::{Destination, Publication};

use crate::config::handler::{Body, Publish, Template};
use crate::config::parameter::{Bound, Parameter};

/// A publish with its parameters found.
#[derive(Debug)]
pub(crate) struct Publishing {
    kind: String,
    destination: Destination,
    key: Option<Key>,
    body: Json,
}

/// A key that is fixed or a parameter's value.
#[derive(Debug)]
enum Key {
    Fixed(String),
    Parameter(usize),
}

/// A JSON text with places for parameters.
#[derive(Debug)]
enum Json {
    /// As it is.
    Text(String),
    Parameter(usize),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Publishing {
    /// The configuration was checked: every parameter that is named is declared.
    pub(crate) fn new(publish: &Publish, parameters: &[Parameter]) -> Self {
        let index = |name: &String| parameters.iter().position(|parameter| parameter.name == *name);
        let key = publish.key.as_ref().and_then(|key| match &key.value {
            Template::Text(text) => Some(Key::Fixed(text.clone())),
            Template::Parameter(name) => index(name).map(Key::Parameter),
        });
        Self {
            kind: publish.kind.clone(),
            destination: publish.to.destination(),
            key,
            body: Json::of(&publish.body.value, &index),
        }
    }

    /// The message with these values. A key that is null is none.
    pub(crate) fn publication(&self, values: &[Option<Bound>]) -> Publication {
        let mut body = String::new();
        self.body.write(values, &mut body);
        let publication = Publication::bytes(self.kind.clone(), body)
            .content_type("application/json")
            .to(self.destination.clone());
        let key = match &self.key {
            None => None,
            Some(Key::Fixed(key)) => Some(key.clone()),
            Some(Key::Parameter(index)) => values[*index].as_ref().map(text),
        };
        match key {
            Some(key) => publication.key(key),
            None => publication,
        }
    }
}

impl Json {
    fn of(body: &Body, index: &impl Fn(&String) -> Option<usize>) -> Self {
        match body {
            Body::Template(Template::Text(text)) => Self::Text(quoted(text)),
            Body::Template(Template::Parameter(name)) => {
                index(name).map_or_else(|| Self::Text("null".to_owned()), Self::Parameter)
            }
            Body::Number(number) => Self::Text(number.clone()),
            Body::Boolean(truth) => Self::Text(truth.to_string()),
            Body::List(items) => Self::List(items.iter().map(|item| Self::of(item, index)).collect()),
            Body::Object(members) => {
                let member = |(name, value): (&String, &Body)| (quoted(name), Self::of(value, index));
                Self::Object(members.iter().map(member).collect())
            }
        }
    }

    fn write(&self, values: &[Option<Bound>], out: &mut String) {
        match self {
            Self::Text(text) => out.push_str(text),
            Self::Parameter(index) => {
                out.push_str(&values[*index].as_ref().map_or_else(|| "null".to_owned(), json));
            }
            Self::List(items) => {
                out.push('[');
                for (number, item) in items.iter().enumerate() {
                    out.push_str(if number == 0 { "" } else { "," });
                    item.write(values, out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (number, (name, value)) in members.iter().enumerate() {
                    out.push_str(if number == 0 { "" } else { "," });
                    out.push_str(name);
                    out.push(':');
                    value.write(values, out);
                }
                out.push('}');
            }
        }
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default() // a string cannot fail
}

/// A value in JSON's notation, digit for digit.
fn json(value: &Bound) -> String {
    match value {
        Bound::Int(_) | Bound::Bool(_) | Bound::Decimal(_) | Bound::Json(_) => text(value),
        Bound::Text(_) | Bound::Timestamp(_) | Bound::Uuid(_) | Bound::Bytes(_) => quoted(&text(value)),
    }
}

/// A value as a text.
fn text(value: &Bound) -> String {
    match value {
        Bound::Int(number) => number.to_string(),
        Bound::Bool(truth) => truth.to_string(),
        Bound::Bytes(bytes) => STANDARD.encode(bytes),
        Bound::Decimal(text)
        | Bound::Text(text)
        | Bound::Timestamp(text)
        | Bound::Uuid(text)
        | Bound::Json(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn case_40_values_keep_their_digits() {
        let template = |name: &str| Body::Template(Template::Parameter(name.to_owned()));
        let members: BTreeMap<String, Body> = [
            ("a".to_owned(), template("amount")),
            (
                "l\"".to_owned(),
                Body::List(vec![Body::Number("1.50".into()), Body::Boolean(true), template("note")]),
            ),
            ("t".to_owned(), Body::Template(Template::Text("\"x\"".into()))),
        ]
        .into();
        let names = ["amount", "note"];
        let index = |name: &String| names.iter().position(|known| known == name);
        let mut out = String::new();
        let values = [Some(Bound::Decimal("9007199254740993.10".into())), None];
        Json::of(&Body::Object(members), &index).write(&values, &mut out);
        assert_eq!(out, r#"{"a":9007199254740993.10,"l\"":[1.50,true,null],"t":"\"x\""}"#);
    }
}
