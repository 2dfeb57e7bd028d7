//! How connecting fails, and what is said then.

use std::time::Duration;

use hapax_core::{Code, Error, ErrorKind, Store as _};
use hapax_mongodb::MongoStore;
use hapax_mongodb::mongodb::Client;
use hapax_mongodb::mongodb::bson::{Document, doc};
use hapax_testkit::servers::{MongoDatabase, Server, mongodb_url, require};

async fn refused(url: &str) -> Error {
    let store = MongoStore::builder(url).connect_within(Duration::from_secs(1)).connect().await;
    store.expect_err("it cannot be connected to")
}

#[tokio::test]
async fn a_url_that_cannot_be_read_shows_no_password() {
    for url in ["mongo://h/d", "mongodb://me:s%ZZcret@h/d", "mongodb://h:99999/d", "mongodb://127.0.0.1"] {
        let error = refused(url).await;
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Setup, Code::ConfigWrongValue),
            "{url}: {error}"
        );
        assert!(!error.to_string().contains("cret"), "{error}");
    }
    let error = MongoStore::builder("mongodb://h/d").prefix("Hapax!").connect().await.expect_err("no prefix");
    assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::ConfigWrongValue), "{error}");
}

#[tokio::test]
async fn where_nobody_listens_the_store_is_unavailable() {
    let error = refused("mongodb://me:secret@127.0.0.1:1/d").await;
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, Code::StoreUnavailable), "{error}");
    assert!(error.to_string().contains("127.0.0.1:1") && !error.to_string().contains("secret"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_refused_and_a_place_has_none() {
    if !require(Server::MongoDb) {
        return;
    }
    let login = mongodb_url().replace("mongodb://", "mongodb://nobody:secret@");
    let error = refused(&login.replace("/?", "/shop?authSource=admin&")).await;
    assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::StoreRefused), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_missing_or_newer_is_told() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let builder = MongoStore::builder(&mongodb_url()).database(database.name()).prefix("shop");
    let store = builder.pool(3).connect().await.expect("the store opens");
    assert_eq!((store.capacity(), store.prefix()), (3, "shop"));
    assert!(store.place().contains(database.name()));
    assert_eq!(store.check().await.expect_err("it is missing").code(), Code::SchemaMissing);
    let consumer = hapax_core::ConsumerName::new("orders").expect("a name");
    let keys = [super::ground::key("m1")];
    let request = hapax_core::ClaimRequest { keys: &keys, ..hapax_core::ClaimRequest::none(&consumer) };
    let error = store.begin_claim(&request).await.expect_err("it is missing");
    assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::SchemaMissing), "{error}");

    let (one, other) = tokio::join!(store.migrate(), store.migrate());
    assert!(one.expect("it migrates").contains(&1) || other.expect("it migrates").contains(&1));
    assert_eq!(store.migrate().await.expect("nothing is missing"), [] as [u32; 0]);
    store.check().await.expect("the schema is there");

    let client = Client::with_uri_str(mongodb_url()).await.expect("the server answers");
    let versions = client.database(database.name()).collection::<Document>("shop_schema_version");
    versions.insert_one(doc! { "_id": 99_i64 }).await.expect("a later release was here");
    assert_eq!(store.check().await.expect_err("it is newer").code(), Code::SchemaTooNew);
    assert_eq!(store.migrate().await.expect_err("it is newer").code(), Code::SchemaTooNew);
}
