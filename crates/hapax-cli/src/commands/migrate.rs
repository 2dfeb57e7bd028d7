//! `hapax migrate`: Hapax's tables.

use std::process::ExitCode;

use hapax::sql::{Migration, SqlStore, migrations};
use serde_json::json;

use crate::args::Migrate;
use crate::config::store::StoreKind;
use crate::open::{self, Missing, with_sql_store};
use crate::out::say;
use crate::sql::SqlTarget;
use crate::trouble::{FINDINGS, Trouble};

/// Applies, checks or prints the migrations.
pub(crate) async fn run(args: Migrate) -> Result<ExitCode, Trouble> {
    if args.print {
        return print(&args);
    }
    let missing = if args.check { Missing::Refuse } else { Missing::Create };
    let (store, _) = open::unchecked_store(&args.store, missing).await?;
    with_sql_store!(store, store => migrate(&args, &store).await)
}

/// Prints the SQL for the kind of store that is named, without connecting to it.
fn print(args: &Migrate) -> Result<ExitCode, Trouble> {
    let (kind, schema) = open::kind(&args.store)?;
    let all = match kind {
        #[cfg(feature = "sqlite")]
        StoreKind::Sqlite => migrations::<hapax::sqlx::Sqlite>(&schema),
        #[cfg(feature = "postgres")]
        StoreKind::Postgres => migrations::<hapax::sqlx::Postgres>(&schema),
        #[cfg(feature = "mysql")]
        StoreKind::MySql => migrations::<hapax::sqlx::MySql>(&schema),
        _ => return Err(open::no_driver().into()),
    };
    for migration in all {
        say!("-- {}\n{}", migration.name, migration.sql.trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

async fn migrate<D: SqlTarget>(args: &Migrate, store: &SqlStore<D>) -> Result<ExitCode, Trouble> {
    if args.check {
        let pending = store.pending().await?;
        say(
            args,
            "pending",
            &pending.iter().map(|migration| migration.version).collect::<Vec<_>>(),
            &pending,
        );
        return Ok(if pending.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FINDINGS) });
    }
    let pending = store.pending().await?;
    let applied = store.migrate().await?;
    say(args, "applied", &applied, &pending);
    Ok(ExitCode::SUCCESS)
}

fn say(args: &Migrate, what: &str, versions: &[u32], migrations: &[Migration]) {
    if args.json {
        say!("{}", json!({ what: versions }));
    } else if versions.is_empty() {
        say!("the schema is up to date");
    } else {
        let named = migrations.iter().filter(|migration| versions.contains(&migration.version));
        named.for_each(|migration| say!("{what} {}", migration.name));
    }
}
