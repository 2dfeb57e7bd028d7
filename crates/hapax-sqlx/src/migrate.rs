//! The schema's version: what is there, what is missing, and how it gets there.

use hapax_core::{Code, Error, ErrorKind};
use sqlx::{AssertSqlSafe, SqlSafeStr};

use crate::connection::Held;
use crate::dialect::{Dialect, int};
use crate::error::{Result, failed};
use crate::statements::resolve;
use crate::store::SqlStore;

/// One numbered SQL file, also usable by sqlx, refinery or Flyway: it records itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// Its number, from 1.
    pub version: u32,
    /// Its name, as in `0001_initial.sql`.
    pub name: &'static str,
    /// The statements.
    pub sql: String,
}

/// Every migration of a dialect, for a schema or prefix, in order.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// let first = &hapax_sqlx::migrations::<sqlx::Sqlite>("shop")[0];
/// assert!(first.sql.contains("CREATE TABLE shop_inbox"));
/// # }
/// ```
pub fn migrations<D: Dialect>(schema: &str) -> Vec<Migration> {
    let adapt = |(version, name, sql): &(u32, &'static str, &str)| Migration {
        version: *version,
        name,
        sql: D::adapt(sql, schema),
    };
    D::MIGRATIONS.iter().map(adapt).collect()
}

impl<D: Dialect> SqlStore<D> {
    /// Applies the migrations that are missing, in one transaction, and answers with their versions.
    /// Several that start at once wait for each other.
    ///
    /// [`Code::SchemaTooNew`] if a later release was here.
    pub async fn migrate(&self) -> Result<Vec<u32>> {
        let cannot = failed::<D>("cannot apply the schema");
        let mut held = self.connections().side_transaction().await?;
        D::fetch(held.conn(), &self.sql().lock_migrations, Vec::new()).await.map_err(&cannot)?;
        let current = self.version(&mut held).await?;
        let missing = self.missing(current)?;
        for migration in &missing {
            let sql = AssertSqlSafe(migration.sql.as_str()).into_sql_str();
            D::run(held.conn(), sql).await.map_err(&cannot)?;
        }
        if !D::UNLOCK_MIGRATIONS.is_empty() {
            D::run(held.conn(), resolve::<D>(D::UNLOCK_MIGRATIONS, self.schema())).await.map_err(cannot)?;
        }
        held.commit().await?;
        Ok(missing.iter().map(|migration| migration.version).collect())
    }

    /// The migrations that [`migrate`](Self::migrate) would apply. Two round trips.
    pub async fn pending(&self) -> Result<Vec<Migration>> {
        let mut held = self.connections().side().await?;
        let current = self.version(&mut held).await?;
        held.put_back();
        self.missing(current)
    }

    pub(crate) async fn check_schema(&self) -> Result<()> {
        let pending = self.pending().await?;
        let Some(first) = pending.first() else { return Ok(()) };
        let context = format!("the schema `{}` lacks migration {:04}", self.schema(), first.version);
        Err(Error::new(ErrorKind::Setup, Code::SchemaMissing, context))
    }

    /// The version that is there; zero for none.
    async fn version(&self, held: &mut Held<D>) -> Result<u32> {
        let cannot = failed::<D>("cannot read the schema's version");
        if held.fetch(&self.sql().find_schema, Vec::new()).await.map_err(&cannot)?.is_empty() {
            return Ok(0);
        }
        let rows = held.fetch(&self.sql().schema_version, Vec::new()).await.map_err(&cannot)?;
        let version = rows.first().map_or(Ok(0), |row| int::<D>(row, 0)).map_err(cannot)?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    fn missing(&self, current: u32) -> Result<Vec<Migration>> {
        let latest = D::MIGRATIONS.iter().map(|(version, ..)| *version).max().unwrap_or(0);
        if current > latest {
            let context = format!(
                "the schema `{}` has version {current}; this release knows up to {latest}",
                self.schema()
            );
            return Err(Error::new(ErrorKind::Setup, Code::SchemaTooNew, context));
        }
        let later = |migration: &Migration| migration.version > current;
        Ok(migrations::<D>(self.schema()).into_iter().filter(later).collect())
    }
}
