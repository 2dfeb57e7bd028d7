-- How often each type of event took effect. Runs on SQLite and PostgreSQL, and any number of times.
CREATE TABLE IF NOT EXISTS events (
    type  TEXT    NOT NULL PRIMARY KEY,
    times INTEGER NOT NULL
);
