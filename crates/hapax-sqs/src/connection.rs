//! Where SQS is and as whom to ask it.

use std::fmt;
use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{Builder, Credentials, Region, SharedHttpClient, StalledStreamProtectionConfig};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use hapax_core::Error;

use crate::endpoint::Endpoint;
use crate::{SqsPublisher, SqsSource, error};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Amazon SQS in one region, or a server that speaks its protocol: the address and the credentials.
///
/// Making one asks nobody anything; [`from_env`](Self::from_env) reads AWS's usual files and variables. It does not
/// use the SDK's retries: sources and publishers have their own.
///
/// Neither `Debug` nor any error prints credentials.
#[derive(Clone)]
pub struct Sqs {
    config: Builder,
    region: Option<String>,
    endpoint: Option<String>,
    has_credentials: bool,
    connect_timeout: Duration,
}

impl Sqs {
    /// SQS as AWS's usual chain says: variables (`AWS_REGION`, `AWS_ACCESS_KEY_ID` …), the files under `~/.aws`, a
    /// web identity, the container's or the instance's role. Credentials are renewed as they expire.
    pub async fn from_env() -> Self {
        Self::new(&aws_config::defaults(BehaviorVersion::latest()).http_client(https()).load().await)
    }

    /// SQS as an application's own SDK configuration says: region, endpoint, credentials and HTTP client.
    pub fn new(config: &SdkConfig) -> Self {
        let mut builder = Builder::from(config);
        if config.http_client().is_none() {
            builder = builder.http_client(https());
        }
        Self {
            config: builder,
            region: config.region().map(ToString::to_string),
            endpoint: config.endpoint_url().map(str::to_owned),
            has_credentials: config.credentials_provider().is_some(),
            connect_timeout: CONNECT_TIMEOUT,
        }
    }

    /// A server that speaks SQS's protocol over plain HTTP, for tests: `sqs://key:secret@host:port?region=NAME`.
    ///
    /// Key and secret (percent-encoded) default to `test`, the region to `us-east-1`.
    ///
    /// # Errors
    ///
    /// `ErrorKind::Setup` if it is no such URL; the error does not repeat the URL.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let Endpoint { url, region, access_key_id, secret_access_key } = Endpoint::parse(url)?;
        let nowhere = Self::new(&SdkConfig::builder().behavior_version(BehaviorVersion::latest()).build());
        Ok(nowhere.endpoint_url(url).region(region).credentials(access_key_id, secret_access_key, None))
    }

    /// Overrides the region.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        let region = region.into();
        self.config = self.config.region(Region::new(region.clone()));
        self.region = Some(region);
        self
    }

    /// Overrides the address, for servers other than Amazon's and for VPC endpoints.
    #[must_use]
    pub fn endpoint_url(mut self, url: impl Into<String>) -> Self {
        let url = url.into();
        self.config = self.config.endpoint_url(&url);
        self.endpoint = Some(url);
        self
    }

    /// Overrides the credentials. Without this AWS's chain provides them, and renews them.
    #[must_use]
    pub fn credentials(
        mut self,
        access_key_id: impl Into<String>,
        secret_access_key: impl Into<String>,
        session_token: Option<String>,
    ) -> Self {
        let credentials =
            Credentials::new(access_key_id, secret_access_key, session_token, None, "configuration");
        self.config = self.config.credentials_provider(credentials);
        self.has_credentials = true;
        self
    }

    /// How long one request may take, connecting included; a request that waits for messages may take so much longer
    /// than it is to wait. Also how long a source tries to find its queue. Default: 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// A queue, by its name or its URL, as a source.
    pub fn source(&self, queue: impl Into<String>) -> SqsSource {
        SqsSource::new(self.clone(), queue.into())
    }

    /// A publisher. It connects when it is first used.
    pub fn publisher(&self) -> SqsPublisher {
        SqsPublisher::new(self)
    }

    pub(crate) fn time_to_connect(&self) -> Duration {
        self.connect_timeout
    }

    /// Whether there is somewhere to send a request to, and somebody to sign it.
    pub(crate) fn check_set_up(&self) -> Result<(), Error> {
        if self.region.is_none() {
            return Err(error::no_region());
        }
        if self.has_credentials { Ok(()) } else { Err(error::no_credentials()) }
    }

    /// A client whose requests SQS answers at once.
    pub(crate) fn client(&self) -> Client {
        self.patient_client(Duration::ZERO)
    }

    /// A client whose requests SQS answers after `wait` at the latest.
    pub(crate) fn patient_client(&self, wait: Duration) -> Client {
        let limits = TimeoutConfig::builder()
            .connect_timeout(self.connect_timeout)
            .operation_timeout(self.connect_timeout + wait)
            .build();
        let config = self.config.clone();
        let config = config.retry_config(RetryConfig::disabled()).timeout_config(limits);
        // It is for long downloads; every request here has a limit.
        Client::from_conf(config.stalled_stream_protection(StalledStreamProtectionConfig::disabled()).build())
    }
}

impl fmt::Debug for Sqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqs")
            .field("region", &self.region)
            .field("endpoint", &self.endpoint)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// rustls with ring, and the system's certificates.
fn https() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_prints_the_credentials() {
        let broker = Sqs::from_url("sqs://AKIASOMEONE:hunter2@127.0.0.1:4566").unwrap();
        let broker = broker.credentials("AKIAOTHER", "hunter3", Some("hunter4".into()));
        let shown = format!("{broker:?} {:?} {:?}", broker.source("orders"), broker.publisher());
        assert!(shown.contains("http://127.0.0.1:4566") && shown.contains("us-east-1"), "{shown}");
        assert!(!shown.contains("AKIA") && !shown.contains("hunter"), "{shown}");
    }

    #[test]
    fn a_region_that_nobody_named_is_asked_for() {
        let nowhere = Sqs::new(&SdkConfig::builder().behavior_version(BehaviorVersion::latest()).build());
        let error = nowhere.check_set_up().unwrap_err();
        assert_eq!(error.code(), hapax_core::Code::ConfigMissingValue);
    }
}
