//! `hapax migrate`: Hapax's tables.

use std::process::ExitCode;

use hapax::sql::{Migration, SqlStore, migrations};
use serde_json::json;

use crate::args::Migrate;
use crate::open::{self, with_store};
use crate::sql::SqlTarget;
use crate::trouble::{FINDINGS, Trouble};

/// Applies, checks or prints the migrations.
pub(crate) async fn run(args: Migrate) -> Result<ExitCode, Trouble> {
    let (store, _) = open::unchecked_store(&args.store).await?;
    with_store!(store, store => migrate(&args, &store).await)
}

async fn migrate<D: SqlTarget>(args: &Migrate, store: &SqlStore<D>) -> Result<ExitCode, Trouble> {
    if args.print {
        for migration in migrations::<D>(store.schema()) {
            println!("-- {}\n{}", migration.name, migration.sql.trim_end());
        }
        return Ok(ExitCode::SUCCESS);
    }
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
        println!("{}", json!({ what: versions }));
    } else if versions.is_empty() {
        println!("the schema is up to date");
    } else {
        let named = migrations.iter().filter(|migration| versions.contains(&migration.version));
        named.for_each(|migration| println!("{what} {}", migration.name));
    }
}
