//! From a URL to a client of the server it names: credentials, time limits, what is asked for in every request.
//!
//! Settings come from the environment, under the names that the servers' own tools use: `AWS_*`, `GOOGLE_*`, `AZURE_*`. Where it has
//! no credentials, requests are not signed, which is how public buckets are read; no request waits for the metadata service of a cloud
//! that this machine may not be in, unless `AWS_METADATA_ENDPOINT` says where it is.

use std::sync::Arc;
use std::time::Duration;

use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, ClientOptions, HeaderMap, HeaderValue, ObjectStore, RetryConfig};

use super::failure::RequestFailure;
use super::lengths::WithLengths;
use crate::store::url::WebUrl;

/// How long a connection may take to be made. A server that is being restarted refuses at once.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a server may be silent, in the middle of an answer too. Answers of any length may take as long as they keep coming.
const SILENCE: Duration = Duration::from_secs(30);

/// The first pause between two attempts.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest: so much later it is noticed that a server is up again.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A server that can be asked.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) objects: Arc<dyn ObjectStore>,
    /// What stands in front of every key.
    pub(super) prefix: String,
    /// Whether it is a web server, which only answers requests for objects.
    pub(super) is_web: bool,
    /// Whether requests are not signed.
    pub(super) is_anonymous: bool,
}

/// Names and values, as those of the environment.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings(Vec<(String, String)>);

impl Settings {
    /// Takes the environment's. What is empty or no text is as if it were not there.
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

    /// Hands the variables with names that begin with `family` to a builder that knows them.
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
/// Connects to nothing yet, except that a bucket of S3 is asked for its region if the settings lack it. `None`: the scheme was not built in.
pub(super) async fn connect(
    place: &str,
    settings: &Settings,
    patience: Duration,
) -> Result<Option<Server>, RequestFailure> {
    let (scheme, rest) = place.split_once("://").unwrap_or(("", place));
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    Ok(Some(match scheme {
        "http" | "https" => web(place, patience)?,
        #[cfg(feature = "s3")]
        "s3" => s3(bucket, prefix, settings, patience).await?,
        #[cfg(feature = "gcs")]
        "gs" => gcs(bucket, prefix, settings, patience)?,
        #[cfg(feature = "azure")]
        "az" => azure(bucket, prefix, settings, patience)?,
        _ => return Ok(None),
    }))
}

fn unusable(error: &object_store::Error) -> RequestFailure {
    RequestFailure::of_request(error, None, true)
}

fn retries(patience: Duration) -> RetryConfig {
    // Longer than the first pause, or the range that the next is drawn from would be empty.
    let max_backoff = patience.clamp(2 * FIRST_PAUSE, LONGEST_PAUSE);
    let backoff = BackoffConfig { init_backoff: FIRST_PAUSE, max_backoff, base: 2.0 };
    // Time is the limit, not a number of attempts: an outage of a minute is many quick refusals.
    RetryConfig { backoff, max_retries: usize::MAX, retry_timeout: patience }
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
/// `accept_encoding` keeps servers from packing, or unpacking, on the way: what is stored is what must arrive.
fn client(accept_encoding: &'static str, patience: Duration) -> ClientOptions {
    let mut headers = HeaderMap::new();
    headers.insert("accept-encoding", HeaderValue::from_static(accept_encoding));
    client_with(headers, patience)
}

fn client_with(headers: HeaderMap, patience: Duration) -> ClientOptions {
    // Little patience in all means little patience for a single attempt.
    let at_most = patience.max(Duration::from_secs(1));
    ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT.min(at_most))
        .with_read_timeout(SILENCE.min(at_most))
        .with_user_agent(HeaderValue::from_static(concat!("ndarray-shm/", env!("CARGO_PKG_VERSION"))))
        .with_default_headers(headers)
}

fn web(place: &str, patience: Duration) -> Result<Server, RequestFailure> {
    let url = WebUrl::split(place);
    let mut headers = HeaderMap::new();
    // Google's servers unpack objects that are stored under gzip for clients that do not announce that they can.
    let accepted = if url.host().ends_with("googleapis.com") { "gzip" } else { "identity" };
    headers.insert("accept-encoding", HeaderValue::from_static(accepted));
    if let Some(user) = url.basic_authorization() {
        let mut value = HeaderValue::from_str(&user).map_err(|error| RequestFailure::last(error.to_string()))?;
        value.set_sensitive(true);
        headers.insert("authorization", value);
    }
    let objects = HttpBuilder::new()
        .with_url(url.without_user())
        .with_http_connector(WithLengths)
        .with_client_options(client_with(headers, patience).with_allow_http(true))
        .with_retry(retries(patience))
        .build()
        .map_err(|error| unusable(&error))?;
    let is_anonymous = !url.has_secrets();
    Ok(Server { objects: Arc::new(objects), prefix: String::new(), is_web: true, is_anonymous })
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
fn bucket_server<B: ObjectStore>(
    bucket: object_store::Result<B>,
    prefix: &str,
    is_anonymous: bool,
) -> Result<Server, RequestFailure> {
    let objects = Arc::new(bucket.map_err(|error| unusable(&error))?);
    Ok(Server { objects, prefix: prefix.to_owned(), is_web: false, is_anonymous })
}

#[cfg(feature = "s3")]
async fn s3(bucket: &str, prefix: &str, settings: &Settings, patience: Duration) -> Result<Server, RequestFailure> {
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
        // An endpoint with `http://` implies it.
        builder = builder.with_allow_http(true);
    }
    if endpoint.is_none() && !has(&builder, Key::Region) && !has(&builder, Key::DefaultRegion) {
        let region =
            resolve_bucket_region(bucket, &client("identity", patience)).await.map_err(|error| unusable(&error))?;
        builder = builder.with_region(region);
    }
    let builder = builder.with_bucket_name(bucket).with_skip_signature(is_anonymous).with_retry(retries(patience));
    let builder = builder.with_http_connector(WithLengths);
    bucket_server(builder.build(), prefix, is_anonymous)
}

#[cfg(feature = "gcs")]
fn gcs(bucket: &str, prefix: &str, settings: &Settings, patience: Duration) -> Result<Server, RequestFailure> {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey as Key};

    // Without this Google unpacks what is stored under gzip, and says no length.
    let mut builder = GoogleCloudStorageBuilder::new().with_client_options(client("gzip", patience));
    builder = settings.apply("GOOGLE_", builder, |builder, key, value| builder.with_config(key, value));
    let signs_in = std::env::home_dir()
        .is_some_and(|home| home.join(".config/gcloud/application_default_credentials.json").exists());
    let is_anonymous = !signs_in
        && [Key::ServiceAccount, Key::ServiceAccountKey, Key::ApplicationCredentials]
            .into_iter()
            .all(|key| builder.get_config_value(&key).is_none());
    let builder = builder.with_bucket_name(bucket).with_skip_signature(is_anonymous).with_retry(retries(patience));
    let builder = builder.with_http_connector(WithLengths);
    bucket_server(builder.build(), prefix, is_anonymous)
}

#[cfg(feature = "azure")]
fn azure(container: &str, prefix: &str, settings: &Settings, patience: Duration) -> Result<Server, RequestFailure> {
    use object_store::azure::{AzureConfigKey as Key, MicrosoftAzureBuilder};

    let mut builder = MicrosoftAzureBuilder::new().with_client_options(client("identity", patience));
    builder = settings.apply("AZURE_", builder, |builder, key, value| builder.with_config(key, value));
    let is_anonymous = [Key::AccessKey, Key::SasKey, Key::ClientSecret, Key::Token, Key::MsiEndpoint]
        .into_iter()
        .all(|key| builder.get_config_value(&key).is_none());
    let builder =
        builder.with_container_name(container).with_skip_signature(is_anonymous).with_retry(retries(patience));
    let builder = builder.with_http_connector(WithLengths);
    bucket_server(builder.build(), prefix, is_anonymous)
}
