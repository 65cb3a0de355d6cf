//! Channels: messages with arrays between two processes, over a Unix stream socket.
//!
//! wire.rs frames the messages. This file defines their body:
//!
//! ```text
//! body, JSON: {"message": .., "arrays": [PARCEL, ..]}, followed by the descriptors of the parcels that have one, in order
//! PARCEL: {"strategy": "file_system",     "dtype": "<f4", "shape": [2, 3], "order": "C", "handle": "ndshm1:.."}
//!         {"strategy": "file_descriptor", "dtype": "<f4", "shape": [2, 3], "order": "C",
//!          "backend": "shm", "directory": "/dev/shm", "location": "ndshm-.."}, with the directory escaped as in a handle
//!         {"strategy": "sealed",          "dtype": "<f4", "shape": [2, 3], "order": "C"}
//!         {"strategy": "foreign",         "dtype": "<f4", "shape": [2, 3], "order": "C", "kind": "cuda", "note": ".."}
//! ```

use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::parcel::{Parcel, ReceivedArray, Shareable};
use super::wire::{Wire, deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Peer, Socket};

/// The name of a channel without a path, in errors.
const UNNAMED: &str = "(channel)";

/// One end of a connection over which two processes exchange messages with arrays.
///
/// A message is any value that `serde` can serialize as JSON, together with any number of arrays:
/// [frozen](crate::FrozenArray) ones, and counted ones, which are sent by descriptor or by name according to their
/// [strategy](crate::counted::SharingStrategy). A [foreign](crate::counted::Foreign) descriptor of another library can
/// take the place of an array. Elements are not copied. Both ends can send and receive. Any number of threads can use
/// one end. A message arrives whole or not at all.
///
/// An array sent by descriptor lives at least until its message is received, because the socket holds the descriptor.
/// An array sent by name is protected for 30 seconds by its handle. If the receiver may take longer, keep the array
/// until the receiver has answered, or send a handle made by [`handle_with`] as text in the message.
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// use ndarray_shm::ndarray::array;
/// use ndarray_shm::counted::{Channel, to_shared};
///
/// let (here, there) = Channel::pair()?;
/// let weights = to_shared(&array![1.0, 2.0, 3.0])?;
/// here.send(&("layer", 7), &[&weights])?;
///
/// // in another process
/// let received = there.receive::<(String, u32)>()?;
/// assert_eq!(received.message, ("layer".to_owned(), 7));
/// let [weights] = received.arrays.try_into().expect("one array");
/// let weights = weights.attach::<f64, ndarray_shm::ndarray::Ix1>()?;
/// assert_eq!(weights.read()?.sum(), 6.0);
/// # }
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// [`handle_with`]: crate::RefcountedArray::handle_with
#[derive(Debug)]
pub struct Channel {
    wire: Wire,
}

/// A message received from a [`Channel`], and its arrays in the order in which they were sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct Received<M> {
    /// The message.
    pub message: M,
    /// The arrays, not attached yet. Dropping one unattached revokes its handle or closes its descriptor.
    pub arrays: Vec<ReceivedArray>,
}

/// The body of a message to be sent.
#[derive(Serialize)]
struct Outgoing<'a, M: ?Sized> {
    message: &'a M,
    arrays: &'a [Parcel],
}

/// The body of a received message.
#[derive(Deserialize)]
struct Incoming<M> {
    message: M,
    /// Decoded only after the message was taken from the wire. An array of an unknown kind would otherwise block the
    /// channel: the message would stay the next one for ever.
    arrays: Vec<Value>,
}

impl Channel {
    /// Creates both ends of a channel: one to keep, the other for a child process that inherits its descriptor.
    ///
    /// A child that receives only text, such as an entry of [`process`](crate::process), [connects](Self::connect) to a
    /// path instead.
    ///
    /// # Errors
    ///
    /// - [`TooManyOpenFiles`](ErrorKind::TooManyOpenFiles).
    /// - [`Unsupported`](ErrorKind::Unsupported): the platform is Windows.
    pub fn pair() -> Result<(Self, Self)> {
        let (one, other) = os::pair().map_err(|error| Error::os("make a channel", UNNAMED, error))?;
        Ok((Self::of_socket(one, UNNAMED)?, Self::of_socket(other, UNNAMED)?))
    }

    /// Connects to a [`ChannelListener`].
    ///
    /// # Errors
    ///
    /// [`Os`](ErrorKind::Os) with `NotFound` or `ConnectionRefused`: no process listens at the path.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::counted::{Channel, ChannelListener};
    ///
    /// # if cfg!(windows) { return Ok(()) }
    /// let path = std::env::temp_dir().join(format!("channel-example-{}.sock", std::process::id()));
    /// let listener = ChannelListener::bind(&path)?;
    ///
    /// // in another process, which knows the path
    /// let there = Channel::connect(&path)?;
    /// there.send("ready", &[])?;
    ///
    /// // in this one
    /// let here = listener.accept()?;
    /// assert_eq!(here.receive::<String>()?.message, "ready");
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let op = "connecting to a channel (a process must listen at this path)";
        let socket = os::connect(path, None).map_err(|error| Error::os_elsewhere(op, path.display(), error))?;
        Self::of_socket(socket, &path.display().to_string())
    }

    /// Makes a channel of a connected stream socket, such as an inherited descriptor.
    ///
    /// # Errors
    ///
    /// [`Os`](ErrorKind::Os): it is not a stream socket.
    pub fn from_socket(socket: impl Into<Socket>) -> Result<Self> {
        Self::of_socket(socket.into(), UNNAMED)
    }

    fn of_socket(socket: Socket, name: &str) -> Result<Self> {
        Ok(Self { wire: Wire::new(socket, name)? })
    }

    /// Returns the socket, for a child to inherit or for other use. A message that has arrived only in part is lost.
    pub fn into_socket(self) -> Socket {
        self.wire.socket
    }

    /// Returns the user, and where known the process, that was at the other end when the connection was made.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported): the system does not provide it.
    pub fn peer(&self) -> Result<Peer> {
        let Wire { socket, name, .. } = &self.wire;
        socket.peer().map_err(|error| Error::os("ask which process is at the other end", name, error))
    }

    /// Lets this process, a forked child, use this end. The parent must not use its copy afterwards.
    pub fn adopt(self) -> Self {
        Self { wire: self.wire.adopt() }
    }

    /// Sends a message with arrays, and waits without limit until the kernel has taken all of it.
    ///
    /// # Errors
    ///
    /// - [`Closed`](ErrorKind::Closed): the other end was closed.
    /// - [`Protocol`](ErrorKind::Protocol): the message is longer than 64 MiB, not counting the elements of arrays, or
    ///   JSON cannot express it; or an earlier message was sent only in part.
    /// - [`Unsupported`](ErrorKind::Unsupported): this platform cannot send descriptors.
    /// - [`TooManyOpenFiles`](ErrorKind::TooManyOpenFiles): each descriptor that is sent needs another one until the
    ///   kernel has taken it.
    /// - those of making a handle: [`RefcountedArray::handle`](crate::RefcountedArray::handle).
    pub fn send<M: Serialize + ?Sized>(&self, message: &M, arrays: &[&dyn Shareable]) -> Result<()> {
        self.send_timeout(message, arrays, Duration::MAX)
    }

    /// Sends a message with arrays, and waits at most `limit`.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut), and those of [`send`](Self::send). If part of the message was sent when the
    /// time ran out, this end cannot send any more.
    pub fn send_timeout<M: Serialize + ?Sized>(
        &self,
        message: &M,
        arrays: &[&dyn Shareable],
        limit: Duration,
    ) -> Result<()> {
        let (mut parcels, mut files) = (Vec::with_capacity(arrays.len()), Vec::new());
        let packed = arrays.iter().try_for_each(|array| {
            let (parcel, file) = array.pack()?;
            parcels.push(parcel);
            files.extend(file);
            Ok(())
        });
        let sent = packed.and_then(|()| {
            let body = serde_json::to_vec(&Outgoing { message, arrays: &parcels });
            let body =
                body.map_err(|error| self.wire.protocol(format!("the message cannot be written as JSON: {error}")))?;
            self.wire.send(&body, &files.iter().collect::<Vec<_>>(), limit)
        });
        // A message that was not sent is never received, and its handles must not protect their arrays.
        sent.inspect_err(|_| parcels.iter().for_each(Parcel::revoke))
    }

    /// Waits for a message.
    ///
    /// A message is received whole or not at all. After any error but `Closed` and `Protocol`, the next call receives
    /// the same message again, if necessary as another type `M`. To skip a message, receive it as
    /// [`serde::de::IgnoredAny`].
    ///
    /// # Errors
    ///
    /// - [`Closed`](ErrorKind::Closed): the other end was closed, and no complete message is left.
    /// - [`TooManyOpenFiles`](ErrorKind::TooManyOpenFiles): this process has too few free descriptors for those of the
    ///   message. Close some, and receive again.
    /// - [`Message`](ErrorKind::Message): the message is not of type `M`.
    /// - [`Protocol`](ErrorKind::Protocol): the bytes are not a channel's, and nothing more can be received; or an
    ///   array of the message is of a kind that this version does not know. Then the message is dropped, and the next
    ///   call receives the one after it.
    pub fn receive<M: DeserializeOwned>(&self) -> Result<Received<M>> {
        self.receive_timeout(Duration::MAX)
    }

    /// Waits for a message, at most `limit`.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut), and those of [`receive`](Self::receive).
    pub fn receive_timeout<M: DeserializeOwned>(&self, limit: Duration) -> Result<Received<M>> {
        let (incoming, files) = self.wire.receive(limit, |body| {
            let incoming: Incoming<M> = serde_json::from_slice(body)
                .map_err(|error| ErrorKind::Message { reason: error.to_string() }.at(&self.wire.name))?;
            let files = incoming.arrays.iter().filter(|parcel| Parcel::comes_with_descriptor(parcel)).count();
            Ok((incoming, files))
        })?;
        let mut files = files.into_iter();
        let arrays = incoming.arrays.into_iter().map(|parcel| {
            let file = if Parcel::comes_with_descriptor(&parcel) { files.next() } else { None };
            let parcel = serde_json::from_value(parcel);
            parcel.map(|parcel| ReceivedArray::new(parcel, file)).map_err(|error| {
                self.wire.protocol(format!("an array that this version cannot read ({error}); the message was dropped"))
            })
        });
        // Decodes all arrays before the first failure is returned, so that the decoded ones are dropped, which revokes
        // their handles.
        let arrays: Vec<Result<ReceivedArray>> = arrays.collect();
        let arrays = arrays.into_iter().collect::<Result<_>>()?;
        Ok(Received { message: incoming.message, arrays })
    }
}

impl From<Channel> for Socket {
    fn from(channel: Channel) -> Self {
        channel.into_socket()
    }
}

/// Listens at a path and accepts connections of other processes, one [`Channel`] for each.
///
/// Dropping it removes the path.
#[derive(Debug)]
pub struct ChannelListener {
    listener: os::Listener,
    path: String,
}

impl ChannelListener {
    /// Begins to listen at a path, with mode 0600, and replaces the socket of a listener that was killed.
    ///
    /// # Errors
    ///
    /// - [`Os`](ErrorKind::Os) with `AlreadyExists`: another process listens at the path.
    /// - [`Os`](ErrorKind::Os) with `InvalidInput`: the path exists and is not a socket, or it is too long.
    /// - [`Os`](ErrorKind::Os) with `PermissionDenied`.
    /// - [`Unsupported`](ErrorKind::Unsupported): the platform is Windows.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let op = "listening for channels (the directory must exist, and no other process may listen at this path)";
        let listener = os::listen(path).map_err(|error| Error::os_elsewhere(op, path.display(), error))?;
        Ok(Self { listener, path: path.display().to_string() })
    }

    /// Waits until a process connects.
    ///
    /// # Errors
    ///
    /// [`TooManyOpenFiles`](ErrorKind::TooManyOpenFiles).
    pub fn accept(&self) -> Result<Channel> {
        self.accept_timeout(Duration::MAX)
    }

    /// Waits until a process connects, at most `limit`.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut), and those of [`accept`](Self::accept).
    pub fn accept_timeout(&self, limit: Duration) -> Result<Channel> {
        let socket = self.listener.accept(deadline(limit)).map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => ErrorKind::TimedOut { waited: limit }.at(&self.path),
            _ => Error::os("accept at", &self.path, error),
        })?;
        Channel::of_socket(socket, &self.path)
    }
}

#[cfg(test)]
crate::os::with_sockets! {
    mod tests {
        use std::io;

        use super::*;

        #[test]
        fn path_errors_give_advice_about_sockets() {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("socket");
            let refused = |error: Error, kind: io::ErrorKind, advice: &str| {
                assert!(error.to_string().contains(advice), "{error}");
                assert!(matches!(error.kind, ErrorKind::Os { .. }), "{error:?}");
                assert_eq!(error.source.map(|source| source.kind()), Some(kind));
            };
            refused(Channel::connect(&path).unwrap_err(), io::ErrorKind::NotFound, "a process must listen");
            let missing = ChannelListener::bind(directory.path().join("none/socket")).unwrap_err();
            refused(missing, io::ErrorKind::NotFound, "the directory must exist");
            let _listener = ChannelListener::bind(&path).unwrap();
            refused(ChannelListener::bind(&path).unwrap_err(), io::ErrorKind::AlreadyExists, "no other process may listen");
        }
    }
}
