//! Creates the client for a URL: credentials, time limits, headers of every request.
//!
//! Settings come from the environment, under the names that the providers' own tools use: `AWS_*`, `GOOGLE_*`,
//! `AZURE_*`. Without credentials requests are not signed, which is how public buckets are read. No request waits for a
//! cloud's metadata service, because this machine may be outside that cloud, unless `AWS_METADATA_ENDPOINT` gives its
//! address.

use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "s3")]
use std::time::Instant;

use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, ClientOptions, HeaderMap, HeaderValue, ObjectStore, RetryConfig};

use super::failure::RequestFailure;
use super::lengths::WithLengths;
#[cfg(feature = "s3")]
use super::reach;
use super::reach::Answered;
use crate::store::url::WebUrl;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
use crate::store::url::identified;

/// Timeout for making a connection. A server that is being restarted refuses at once.
const CONNECT: Duration = Duration::from_secs(10);

/// Timeout for silence of a server, also in the middle of an answer. An answer may take any time as long as bytes keep
/// coming.
const SILENCE: Duration = Duration::from_secs(30);

/// The first pause between two attempts.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two attempts, and so the longest delay until a server that is up again is noticed.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long requests are retried.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetryTimes {
    pub(super) usual: Duration,
    /// How long, if a server has never been reached; `None` if as long as usual.
    pub(super) first: Option<Duration>,
}

impl RetryTimes {
    /// Returns how long a request is retried after this failure.
    pub(super) fn of(&self, failure: &RequestFailure) -> Duration {
        self.first.filter(|_| failure.is_unreached()).unwrap_or(self.usual)
    }

    fn connector(&self, answered: &'static Answered) -> WithLengths {
        WithLengths(self.first.map(|_| answered))
    }
}

/// A client of a server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) objects: Arc<dyn ObjectStore>,
    /// Prefix of every key.
    pub(super) prefix: String,
    /// Which server is meant, where settings say it and not the URL; empty for web servers.
    pub(super) meant: String,
    /// Whether it is a plain web server, which can only read objects.
    pub(super) is_web: bool,
    /// Whether requests are not signed.
    pub(super) is_anonymous: bool,
}

/// Names and values of settings, like environment variables.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings(Vec<(String, String)>);

impl Settings {
    /// Reads the environment. Ignores variables that are empty or not UTF-8.
    pub(super) fn of_environment() -> Self {
        Self::new(
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        )
    }

    pub(super) fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(pairs.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find_map(|(known, value)| (known == name).then_some(value.as_str()))
    }

    /// Passes the variables with names that begin with `family` to a builder; those that it does not know are ignored.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    fn apply<B, K: std::str::FromStr>(&self, family: &str, builder: B, set: impl Fn(B, K, &str) -> B) -> B {
        let family = self.0.iter().filter(|(name, _)| name.starts_with(family));
        family.fold(builder, |builder, (name, value)| match name.to_ascii_lowercase().parse() {
            Ok(key) => set(builder, key, value),
            Err(_) => builder,
        })
    }
}

#[cfg_attr(not(any(feature = "s3", feature = "gcs", feature = "azure")), expect(unused_variables))]
#[cfg_attr(not(feature = "s3"), expect(clippy::unused_async))]
/// Creates the client of a URL. Makes no request, except one for the region of an S3 bucket if the settings lack it.
/// Returns `None` if support for the scheme is not built in.
pub(super) async fn connect(
    place: &str,
    settings: &Settings,
    patience: RetryTimes,
    answered: &'static Answered,
) -> Result<Option<Server>, RequestFailure> {
    let (scheme, rest) = place.split_once("://").unwrap_or(("", place));
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    Ok(Some(match scheme {
        "http" | "https" => web(place, patience, answered)?,
        #[cfg(feature = "s3")]
        "s3" => s3(bucket, prefix, settings, patience, answered).await?,
        #[cfg(feature = "gcs")]
        "gs" => gcs(bucket, prefix, settings, patience, answered)?,
        #[cfg(feature = "azure")]
        "az" => azure(bucket, prefix, settings, patience, answered)?,
        _ => return Ok(None),
    }))
}

fn unusable(error: &object_store::Error) -> RequestFailure {
    RequestFailure::of_request(error, None, true)
}

fn retries(patience: RetryTimes) -> RetryConfig {
    let patience = patience.usual;
    // Must exceed the first pause, or the range from which the next pause is drawn would be empty.
    let max_backoff = patience.clamp(2 * FIRST_PAUSE, LONGEST_PAUSE);
    let backoff = BackoffConfig { init_backoff: FIRST_PAUSE, max_backoff, base: 2.0 };
    // Limits the time, not the number of attempts: an outage of a minute is many quick refusals.
    RetryConfig { backoff, max_retries: usize::MAX, retry_timeout: patience }
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
/// `accept_encoding` keeps servers from packing or unpacking objects in transit: the bytes must arrive as stored.
fn client(accept_encoding: &'static str, patience: RetryTimes) -> ClientOptions {
    let mut headers = HeaderMap::new();
    headers.insert("accept-encoding", HeaderValue::from_static(accept_encoding));
    client_with(headers, patience)
}

fn client_with(headers: HeaderMap, patience: RetryTimes) -> ClientOptions {
    // A single attempt must not take longer than all attempts together may.
    let at_most = patience.usual.max(Duration::from_secs(1));
    ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT.min(at_most))
        .with_read_timeout(SILENCE.min(at_most))
        .with_user_agent(HeaderValue::from_static(concat!("ndarray-shm/", env!("CARGO_PKG_VERSION"))))
        .with_default_headers(headers)
}

fn web(place: &str, patience: RetryTimes, answered: &'static Answered) -> Result<Server, RequestFailure> {
    let url = WebUrl::split(place);
    let mut headers = HeaderMap::new();
    // Google's servers unpack objects stored with gzip for clients that do not accept gzip.
    let accepted = if url.host().ends_with("googleapis.com") { "gzip" } else { "identity" };
    headers.insert("accept-encoding", HeaderValue::from_static(accepted));
    if let Some(user) = url.basic_authorization() {
        let mut value = HeaderValue::from_str(&user).map_err(|error| RequestFailure::last(error.to_string()))?;
        value.set_sensitive(true);
        headers.insert("authorization", value);
    }
    let objects = HttpBuilder::new()
        .with_url(url.without_user())
        .with_http_connector(patience.connector(answered))
        .with_client_options(client_with(headers, patience).with_allow_http(true))
        .with_retry(retries(patience))
        .build()
        .map_err(|error| unusable(&error))?;
    let is_anonymous = !url.has_secrets();
    Ok(Server { objects: Arc::new(objects), prefix: String::new(), meant: String::new(), is_web: true, is_anonymous })
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
fn bucket_server<B: ObjectStore>(
    bucket: object_store::Result<B>,
    prefix: &str,
    meant: String,
    is_anonymous: bool,
) -> Result<Server, RequestFailure> {
    let objects = Arc::new(bucket.map_err(|error| unusable(&error))?);
    Ok(Server { objects, prefix: prefix.to_owned(), meant, is_web: false, is_anonymous })
}

#[cfg(feature = "s3")]
async fn s3(
    bucket: &str,
    prefix: &str,
    settings: &Settings,
    patience: RetryTimes,
    answered: &'static Answered,
) -> Result<Server, RequestFailure> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key, resolve_bucket_region};

    let mut builder = AmazonS3Builder::new().with_client_options(client("identity", patience));
    builder = settings.apply("AWS_", builder, |builder, key, value| builder.with_config(key, value));
    let has = |builder: &AmazonS3Builder, key: Key| builder.get_config_value(&key).is_some();
    let credentials = [
        Key::AccessKeyId,
        Key::SecretAccessKey,
        Key::WebIdentityTokenFile,
        Key::ContainerCredentialsRelativeUri,
        Key::ContainerCredentialsFullUri,
        Key::MetadataEndpoint,
    ];
    let is_anonymous = !credentials.into_iter().any(|key| has(&builder, key))
        || settings.get("AWS_SKIP_SIGNATURE").is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1");
    let endpoint = builder.get_config_value(&Key::S3Endpoint).or_else(|| builder.get_config_value(&Key::Endpoint));
    if endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://")) {
        // An endpoint with `http://` implies permission to use HTTP.
        builder = builder.with_allow_http(true);
    }
    if endpoint.is_none() && !has(&builder, Key::Region) && !has(&builder, Key::DefaultRegion) {
        let begin = Instant::now();
        let region = loop {
            match resolve_bucket_region(bucket, &client("identity", patience)).await {
                Ok(region) => break region,
                Err(error) => {
                    let may_pass = reach::resolver_says_again(format!("{bucket}.s3.amazonaws.com")).await;
                    if !may_pass || begin.elapsed() >= patience.usual {
                        return Err(RequestFailure::not_reached(&error));
                    }
                }
            }
            tokio::time::sleep(LONGEST_PAUSE).await;
        };
        builder = builder.with_region(region);
    }
    // Names of buckets are unique among the regions of one partition only, such as that of China.
    let meant = match endpoint {
        Some(endpoint) => identified(&endpoint, ""),
        None => format!("region {}", builder.get_config_value(&Key::Region).unwrap_or_default()),
    };
    let builder = builder.with_bucket_name(bucket).with_skip_signature(is_anonymous).with_retry(retries(patience));
    let builder = builder.with_http_connector(patience.connector(answered));
    bucket_server(builder.build(), prefix, meant, is_anonymous)
}

#[cfg(feature = "gcs")]
fn gcs(
    bucket: &str,
    prefix: &str,
    settings: &Settings,
    patience: RetryTimes,
    answered: &'static Answered,
) -> Result<Server, RequestFailure> {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey as Key};

    // Without accepting gzip, Google's servers unpack objects stored with gzip, and send no length.
    let mut builder = GoogleCloudStorageBuilder::new().with_client_options(client("gzip", patience));
    builder = settings.apply("GOOGLE_", builder, |builder, key, value| builder.with_config(key, value));
    let signs_in = std::env::home_dir()
        .is_some_and(|home| home.join(".config/gcloud/application_default_credentials.json").exists());
    let is_anonymous = !signs_in
        && [Key::ServiceAccount, Key::ServiceAccountKey, Key::ApplicationCredentials]
            .into_iter()
            .all(|key| builder.get_config_value(&key).is_none());
    let meant = builder.get_config_value(&Key::BaseUrl).map_or(String::new(), |url| identified(&url, ""));
    let builder = builder.with_bucket_name(bucket).with_skip_signature(is_anonymous).with_retry(retries(patience));
    let builder = builder.with_http_connector(patience.connector(answered));
    bucket_server(builder.build(), prefix, meant, is_anonymous)
}

#[cfg(feature = "azure")]
fn azure(
    container: &str,
    prefix: &str,
    settings: &Settings,
    patience: RetryTimes,
    answered: &'static Answered,
) -> Result<Server, RequestFailure> {
    use object_store::azure::{AzureConfigKey as Key, MicrosoftAzureBuilder};

    let mut builder = MicrosoftAzureBuilder::new().with_client_options(client("identity", patience));
    builder = settings.apply("AZURE_", builder, |builder, key, value| builder.with_config(key, value));
    let is_anonymous = [Key::AccessKey, Key::SasKey, Key::ClientSecret, Key::Token, Key::MsiEndpoint]
        .into_iter()
        .all(|key| builder.get_config_value(&key).is_none());
    // Containers are unique in an account only.
    let set = |key: Key| builder.get_config_value(&key).unwrap_or_default();
    let endpoint = builder.get_config_value(&Key::Endpoint).map_or(String::new(), |url| identified(&url, ""));
    let (account, emulated, fabric) = (set(Key::AccountName), set(Key::UseEmulator), set(Key::UseFabricEndpoint));
    let meant = format!("account {account:?} {endpoint} emulator {emulated} fabric {fabric}");
    let builder =
        builder.with_container_name(container).with_skip_signature(is_anonymous).with_retry(retries(patience));
    let builder = builder.with_http_connector(patience.connector(answered));
    bucket_server(builder.build(), prefix, meant, is_anonymous)
}
