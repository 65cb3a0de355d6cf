//! Tells a server that cannot be reached at all from one that pauses.
//!
//! Only for a server that has not answered this process yet: a server that has answered exists, and is waited for.
//! Decides by error kinds and the resolver's codes. The HTTP client does not pass on the resolver's code, so the name
//! is looked up once more.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use dns_lookup::LookupErrorKind;
use hyper_util::client::proxy::matcher::Matcher;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};
use object_store::{ClientConfigKey, ClientOptions};

/// The servers that have answered this process, by scheme, host and port.
#[derive(Debug, Default)]
pub(super) struct Answered(Mutex<BTreeSet<String>>);

impl Answered {
    fn has(&self, peer: &HttpPeer) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&peer.address)
    }

    fn add(&self, peer: &HttpPeer) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(&peer.address) {
            known.insert(peer.address.clone());
        }
    }
}

/// What a client connects to: the server of a URL, or the proxy in front of it.
#[derive(Debug, Clone)]
pub(super) struct HttpPeer {
    host: String,
    address: String,
    is_proxy: bool,
}

impl fmt::Display for HttpPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", if self.is_proxy { "proxy" } else { "host" }, self.host)
    }
}

/// Why a server cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreached {
    #[error("{0} is unknown")]
    UnknownHost(HttpPeer),
    #[error("{0} refuses connections")]
    Refused(HttpPeer),
    #[error("there is no route to {0}")]
    NoRoute(HttpPeer),
}

/// Finds out whether a failed request has reached anything.
#[derive(Clone)]
pub(super) struct Reach {
    answered: &'static Answered,
    /// The proxies of the environment, as the HTTP client sees them.
    proxies: Arc<Matcher>,
    /// The proxy of the store's own settings, which replaces those.
    proxy: Option<String>,
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reach").field("answered", &self.answered).finish_non_exhaustive()
    }
}

impl Reach {
    pub(super) fn new(answered: &'static Answered, options: &ClientOptions) -> Self {
        let proxy = options.get_config_value(&ClientConfigKey::ProxyUrl);
        Self { answered, proxies: Arc::new(Matcher::from_system()), proxy }
    }

    /// Returns what a request connects to.
    pub(super) fn peer(&self, request: &HttpRequest) -> HttpPeer {
        let server = request.uri();
        let proxy = match &self.proxy {
            Some(proxy) => proxy.parse().ok(),
            None => self.proxies.intercept(server).map(|proxy| proxy.uri().clone()),
        };
        let is_proxy = proxy.is_some();
        let uri = proxy.as_ref().unwrap_or(server);
        let host = uri.host().unwrap_or_default();
        // The authority may have a password.
        let port = uri.port().map_or_else(String::new, |port| format!(":{port}"));
        let address = format!("{}://{host}{port}", uri.scheme_str().unwrap_or_default());
        HttpPeer { host: host.trim_matches(['[', ']']).to_owned(), address, is_proxy }
    }

    /// Notes that the peer has answered.
    pub(super) fn answered(&self, peer: &HttpPeer) {
        self.answered.add(peer);
    }

    /// Returns why the peer cannot be reached. Returns `None` if it has ever answered, and for every failure that may
    /// pass: a timeout, a broken connection, a resolver that says "try again".
    pub(super) async fn unreached(&self, peer: HttpPeer, error: &HttpError) -> Option<Unreached> {
        if self.answered.has(&peer) || error.kind() != HttpErrorKind::Connect {
            return None;
        }
        match io_error(error).map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => return Some(Unreached::Refused(peer)),
            Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => {
                return Some(Unreached::NoRoute(peer));
            }
            _ => {}
        }
        let kind = resolver_error(peer.host.clone()).await?;
        matches!(kind, LookupErrorKind::NoName | LookupErrorKind::NoData).then_some(Unreached::UnknownHost(peer))
    }
}

/// Returns the error of the operating system that made a request fail.
fn io_error(error: &HttpError) -> Option<&io::Error> {
    let chain = std::iter::successors(Some(error as &(dyn StdError + 'static)), |error: &&(dyn StdError + 'static)| {
        (*error).source()
    });
    chain.filter_map(|error| error.downcast_ref::<io::Error>()).last()
}

/// Looks up a name. Returns `None` if it has an address, or is one.
async fn resolver_error(host: String) -> Option<LookupErrorKind> {
    if host.parse::<IpAddr>().is_ok() {
        return None;
    }
    let lookup = tokio::task::spawn_blocking(move || dns_lookup::lookup_host(&host).err().map(|error| error.kind()));
    // A lookup that panics says nothing about the host.
    lookup.await.ok().flatten()
}

/// Whether the resolver could not say now whether a host exists.
#[cfg(feature = "s3")]
pub(super) async fn resolver_says_again(host: String) -> bool {
    matches!(resolver_error(host).await, Some(LookupErrorKind::Again))
}
