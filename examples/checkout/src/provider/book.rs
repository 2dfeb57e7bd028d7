//! What the provider has charged, by key.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::charges::{ChargeRequested, Charged};

/// One charge, and how often it was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Charge {
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) request: ChargeRequested,
    pub(crate) receipt: String,
    pub(crate) asked: u64,
}

/// Another charge stands under the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reused;

#[derive(Default)]
pub(super) struct Book(Mutex<HashMap<String, Charge>>);

impl Book {
    /// Charges, or finds the charge that stands under the key.
    pub(super) fn charge(&self, key: &str, request: &ChargeRequested) -> Result<Charged, Reused> {
        let mut charges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = charges.len() + 1;
        let charge = charges.entry(key.to_owned()).or_insert_with(|| Charge {
            key: key.to_owned(),
            request: request.clone(),
            receipt: format!("receipt-{number}"),
            asked: 0,
        });
        if charge.request != *request {
            return Err(Reused);
        }
        charge.asked += 1;
        Ok(Charged { receipt: charge.receipt.clone() })
    }

    pub(super) fn charges(&self) -> Vec<Charge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amount::Amount;

    #[test]
    fn one_key_is_one_charge_and_no_other() {
        let book = Book::default();
        let asked =
            |amount| ChargeRequested { payment: "p".into(), account: "ada".into(), amount: Amount(amount) };
        let first = book.charge("k", &asked(5)).unwrap();
        assert_eq!(book.charge("k", &asked(5)).unwrap().receipt, first.receipt);
        assert_eq!(book.charge("k", &asked(6)).unwrap_err(), Reused);
        assert_ne!(book.charge("l", &asked(5)).unwrap().receipt, first.receipt);
        assert_eq!(book.charges().len(), 2);
    }
}
