//! Webhooks: verified, stored into a queue of the service's own database, and answered at once.
//!
//! `hapax run webhooks.toml` takes them from there; a handler that is slow or fails is none of the sender's concern.

use axum::Router;
use hapax::http::webhook::{GitHub, StandardWebhooks, Stripe, Webhook, WebhookQueue};
use hapax::sql::{Dialect, Queues};
use hapax::{BoxError, Publisher};

/// The queue of all events.
const QUEUE: &str = "webhooks";

/// What webhooks are signed with. An endpoint without a secret is not there.
#[derive(Clone, clap::Args)]
pub(crate) struct Secrets {
    /// Of `/webhooks/standard`: whsec_… Several, with commas in between, while one is changed for another.
    #[arg(
        long = "standard-secret",
        value_name = "SECRETS",
        env = "CHECKOUT_STANDARD_SECRET",
        hide_env_values = true
    )]
    standard: Option<String>,
    /// Of `/webhooks/github`.
    #[arg(
        long = "github-secret",
        value_name = "SECRETS",
        env = "CHECKOUT_GITHUB_SECRET",
        hide_env_values = true
    )]
    github: Option<String>,
    /// Of `/webhooks/stripe`.
    #[arg(
        long = "stripe-secret",
        value_name = "SECRETS",
        env = "CHECKOUT_STRIPE_SECRET",
        hide_env_values = true
    )]
    stripe: Option<String>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(…)")
    }
}

/// An endpoint for each secret.
pub(crate) fn routes<D: Dialect>(secrets: &Secrets, queues: &Queues<D>) -> Result<Router, BoxError>
where
    Queues<D>: Publisher,
{
    let mut routes = Router::new();
    if let Some(secrets) = &secrets.standard {
        let webhook = StandardWebhooks::new(secrets.split(','))?;
        routes = routes.route_service("/webhooks/standard", into_queue(webhook, queues));
    }
    if let Some(secrets) = &secrets.github {
        let webhook = GitHub::new(secrets.split(','))?;
        routes = routes.route_service("/webhooks/github", into_queue(webhook, queues));
    }
    if let Some(secrets) = &secrets.stripe {
        let webhook = Stripe::new(secrets.split(','))?;
        routes = routes.route_service("/webhooks/stripe", into_queue(webhook, queues));
    }
    Ok(routes)
}

fn into_queue<W: Webhook, D: Dialect>(webhook: W, queues: &Queues<D>) -> WebhookQueue<W, Queues<D>>
where
    Queues<D>: Publisher,
{
    WebhookQueue::new(webhook, queues.clone(), QUEUE)
}
