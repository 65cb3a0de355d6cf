//! An HTTP client that adds `Content-Length` to answers without it: `object_store` needs the length before it reads.
//!
//! It also records the status of the last answer, which `object_store` reports for few errors only, notes why an
//! attempt failed, and keeps `object_store` from retrying for long when a server has never been reached.
//!
//! Servers that generate their answers send them in pieces (chunked). Such an answer is read whole before it is passed
//! on, with its length. All other answers are streamed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use futures_util::StreamExt as _;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, HeaderValue};

use super::failure;
use super::reach::{Answered, Reach};
use crate::retries;
use crate::store::LARGEST_OBJECT;

/// Connects with clients that add missing lengths. With servers that have answered, if they doubt those that have not.
#[derive(Debug)]
pub(super) struct WithLengths(pub(super) Option<&'static Answered>);

impl HttpConnector for WithLengths {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        let reach = self.0.map(|answered| Reach::new(answered, options));
        Ok(HttpClient::new(Measured { client, reach }))
    }
}

#[derive(Debug)]
struct Measured {
    client: HttpClient,
    reach: Option<Reach>,
}

impl Measured {
    /// Makes one attempt. An error that is not worth another one soon has a kind that `object_store` does not retry.
    async fn attempt(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let doubted = self.reach.as_ref().map(|reach| (reach, reach.peer(&request)));
        let answer = self.client.execute(request).await;
        match (&answer, doubted) {
            (Ok(_), Some((reach, peer))) => reach.answered(&peer),
            (Err(error), Some((reach, peer))) => {
                if let Some(unreached) = reach.unreached(peer, error).await {
                    return Err(HttpError::new(HttpErrorKind::Unknown, unreached));
                }
            }
            (_, None) => {}
        }
        match &answer {
            Ok(answer) if failure::is_retried(answer.status().as_u16()) => retries::failed(answer.status()),
            Ok(_) => retries::answered(),
            Err(error) => retries::failed(failure::reason(error)),
        }
        answer
    }
}

/// Maximum length of the answer in bytes. An extension of the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most(pub(super) u64);

/// The status of the last answer to a request; 0 before the first. An extension of the request.
#[derive(Debug, Clone, Default)]
pub(super) struct LastStatus(Arc<AtomicU16>);

impl LastStatus {
    /// Returns the status of the last attempt, or `None` if it got no answer.
    pub(super) fn get(&self) -> Option<u16> {
        Some(self.0.load(Ordering::Relaxed)).filter(|status| *status != 0)
    }

    fn set(&self, status: u16) {
        self.0.store(status, Ordering::Relaxed);
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the answer says no length, and has more bytes than there can be in it ({0})")]
pub(super) struct Endless(u64);

impl HttpService for Measured {
    fn call<'service, 'answer>(
        &'service self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'answer>>
    where
        'service: 'answer,
        Self: 'answer,
    {
        Box::pin(async move {
            let is_get = request.method().as_str() == "GET";
            let most = request.extensions().get().map_or(LARGEST_OBJECT, |Most(most)| *most);
            let last = request.extensions().get().cloned().unwrap_or_else(LastStatus::default);
            last.set(0);
            let answer = self.attempt(request).await?;
            last.set(answer.status().as_u16());
            if !is_get || !answer.status().is_success() || answer.headers().contains_key("content-length") {
                return Ok(answer);
            }
            let (mut head, body) = answer.into_parts();
            let mut bytes = Vec::new();
            let mut pieces = body.bytes_stream();
            while let Some(piece) = pieces.next().await {
                let piece = piece.map_err(broken)?;
                if (bytes.len() + piece.len()) as u64 > most {
                    return Err(HttpError::new(HttpErrorKind::Unknown, Endless(most)));
                }
                bytes.extend_from_slice(&piece);
            }
            head.headers.insert("content-length", HeaderValue::from(bytes.len()));
            Ok(HttpResponse::from_parts(head, HttpResponseBody::from(bytes)))
        })
    }
}

/// Marks an answer that broke off as interrupted: `object_store` retries only errors of that kind.
fn broken(error: HttpError) -> HttpError {
    HttpError::new(HttpErrorKind::Interrupted, error)
}
