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
    /// Of `/webhooks/standard`: whsec_… Each can be given twice, while one is changed for another.
    #[arg(
        long = "standard-secret",
        value_name = "SECRET",
        env = "CHECKOUT_STANDARD_SECRET",
        hide_env_values = true
    )]
    standard: Vec<String>,
    /// Of `/webhooks/github`.
    #[arg(
        long = "github-secret",
        value_name = "SECRET",
        env = "CHECKOUT_GITHUB_SECRET",
        hide_env_values = true
    )]
    github: Vec<String>,
    /// Of `/webhooks/stripe`.
    #[arg(
        long = "stripe-secret",
        value_name = "SECRET",
        env = "CHECKOUT_STRIPE_SECRET",
        hide_env_values = true
    )]
    stripe: Vec<String>,
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
    if !secrets.standard.is_empty() {
        let webhook = StandardWebhooks::new(secrets.standard.iter().map(String::as_str))?;
        routes = routes.route_service("/webhooks/standard", into_queue(webhook, queues));
    }
    if !secrets.github.is_empty() {
        let webhook = GitHub::new(secrets.github.iter().map(String::as_str))?;
        routes = routes.route_service("/webhooks/github", into_queue(webhook, queues));
    }
    if !secrets.stripe.is_empty() {
        let webhook = Stripe::new(secrets.stripe.iter().map(String::as_str))?;
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
