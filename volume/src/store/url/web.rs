//! The parts of a URL of a web server, and its user as a header of requests.

use super::percent_decoded;

/// The parts of a URL of a web server.
#[derive(Clone, Copy)]
pub(crate) struct WebUrl<'a> {
    scheme: &'a str,
    user: Option<&'a str>,
    host: &'a str,
    rest: &'a str,
}

impl<'a> WebUrl<'a> {
    pub(crate) fn split(url: &'a str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        Self { scheme, user, host, rest }
    }

    /// Returns the host's name or address, without a port.
    pub(crate) fn host(&self) -> &'a str {
        match self.host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => self.host,
        }
    }

    /// Whether the URL has a user or a query.
    pub(crate) fn has_secrets(&self) -> bool {
        self.user.is_some() || self.rest.contains('?')
    }

    pub(crate) fn without_user(&self) -> String {
        format!("{}://{}{}", self.scheme, self.host, self.rest)
    }

    /// Returns user and password as the value of an `Authorization` header.
    pub(crate) fn basic_authorization(&self) -> Option<String> {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (name, password) = self.user?.split_once(':').unwrap_or((self.user?, ""));
        let plain = [percent_decoded(name), b":".to_vec(), percent_decoded(password)].concat();
        let mut text = "Basic ".to_owned();
        for three in plain.chunks(3) {
            let bits = (0..3).fold(0_usize, |bits, at| bits << 8 | usize::from(three.get(at).copied().unwrap_or(0)));
            for at in 0..4 {
                let digit = char::from(DIGITS[bits >> (18 - 6 * at) & 63]);
                text.push(if at <= three.len() { digit } else { '=' });
            }
        }
        Some(text)
    }
}
