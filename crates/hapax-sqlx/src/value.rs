//! What is bound to a statement, in a form every driver can take.

/// One bound value.
#[derive(Clone, Debug)]
pub enum Value {
    /// An integer, or null.
    Int(Option<i64>),
    /// A text, or null.
    Text(Option<String>),
    /// Bytes, or null.
    Bytes(Option<Vec<u8>>),
    /// An array of integers.
    Ints(Vec<Option<i64>>),
    /// An array of texts.
    Texts(Vec<Option<String>>),
}

impl Value {
    /// The length of a text or of bytes; zero for the rest.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Text(Some(text)) => text.len(),
            Self::Bytes(Some(bytes)) => bytes.len(),
            _ => 0,
        }
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Int(Some(value.into()))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(Some(value.to_owned()))
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(Some(value))
    }
}

impl From<Option<&str>> for Value {
    fn from(value: Option<&str>) -> Self {
        Self::Text(value.map(str::to_owned))
    }
}

impl From<Option<String>> for Value {
    fn from(value: Option<String>) -> Self {
        Self::Text(value)
    }
}

impl From<&bytes::Bytes> for Value {
    fn from(value: &bytes::Bytes) -> Self {
        Self::Bytes(Some(value.to_vec()))
    }
}

impl From<Option<&[u8]>> for Value {
    fn from(value: Option<&[u8]>) -> Self {
        Self::Bytes(value.map(<[u8]>::to_vec))
    }
}

impl FromIterator<i64> for Value {
    fn from_iter<I: IntoIterator<Item = i64>>(values: I) -> Self {
        Self::Ints(values.into_iter().map(Some).collect())
    }
}

impl FromIterator<Option<i64>> for Value {
    fn from_iter<I: IntoIterator<Item = Option<i64>>>(values: I) -> Self {
        Self::Ints(values.into_iter().collect())
    }
}

impl FromIterator<String> for Value {
    fn from_iter<I: IntoIterator<Item = String>>(values: I) -> Self {
        Self::Texts(values.into_iter().map(Some).collect())
    }
}

impl<'t> FromIterator<&'t str> for Value {
    fn from_iter<I: IntoIterator<Item = &'t str>>(values: I) -> Self {
        Self::Texts(values.into_iter().map(|text| Some(text.to_owned())).collect())
    }
}

/// Values in the order of a statement's parameters.
macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$($crate::value::Value::from($value)),*] };
}

pub(crate) use values;

/// A text without NUL characters, which PostgreSQL cannot store. For words that operators read, never
/// for what is compared.
pub(crate) fn legible(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
