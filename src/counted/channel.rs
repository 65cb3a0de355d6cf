//! Channels: messages with arrays between two processes, over a Unix stream socket.
//!
//! ```text
//! body, as JSON: {"message": .., "arrays": [PARCEL, ..]}; behind it the descriptors of those parcels that have one, in order
//! PARCEL: {"strategy": "file_system",     "dtype": "<f4", "shape": [2, 3], "order": "C", "handle": "ndshm1:.."}
//!         {"strategy": "file_descriptor", "dtype": "<f4", "shape": [2, 3], "order": "C",
//!          "backend": "shm", "directory": "/dev/shm", "location": "ndshm-.."}, the directory escaped as in a handle
//!         {"strategy": "sealed",          "dtype": "<f4", "shape": [2, 3], "order": "C"}
//! ```

use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::parcel::{Parcel, ReceivedArray, Shareable};
use super::wire::{Wire, deadline};
use crate::error::{Error, Result};
use crate::os::{self, Peer, Socket};

/// What errors call a channel that has no path.
const UNNAMED: &str = "(channel)";

/// One end of a connection over which two processes send each other messages with arrays.
///
/// A message is anything that `serde` writes as JSON, with any number of arrays beside it: counted arrays by descriptor or
/// by name as their [strategy](crate::counted::SharingStrategy) says, and frozen ones. Nothing is copied. Both ends can send and
/// receive, any number of threads can use one end, and a message arrives whole or not at all.
///
/// Arrays that travel by name are kept for 30 seconds by the handle alone; send [`handle_with`] options of your own, or keep
/// the array until the answer comes, if a receiver may take longer. Arrays that travel by descriptor are kept by the socket.
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// use ndarray::array;
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
/// let weights = weights.attach::<f64, ndarray::Ix1>()?;
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

/// A message of a [`Channel`] and the arrays that came with it, in the order in which they were sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct Received<M> {
    /// The message itself.
    pub message: M,
    /// The arrays, not attached yet. Those that are dropped unattached are given up at once.
    pub arrays: Vec<ReceivedArray>,
}

/// What is written.
#[derive(Serialize)]
struct Outgoing<'a, M: ?Sized> {
    message: &'a M,
    arrays: &'a [Parcel],
}

/// What is read.
#[derive(Deserialize)]
struct Incoming<M> {
    message: M,
    /// Read only when the message has been taken: one that cannot be read must not block the channel.
    arrays: Vec<Value>,
}

impl Channel {
    /// Makes both ends of a channel: keep one, and give the other to a child as an inherited descriptor.
    ///
    /// A child that gets text only, such as an entry of [`process`](crate::process), [connects](Self::connect) by a path.
    ///
    /// # Errors
    ///
    /// [`TooManyOpenFiles`](Error::TooManyOpenFiles); [`Unsupported`](Error::Unsupported) on Windows.
    pub fn pair() -> Result<(Self, Self)> {
        let (one, other) = os::pair().map_err(|error| Error::os("make a channel", UNNAMED, error))?;
        Ok((Self::of_socket(one, UNNAMED)?, Self::of_socket(other, UNNAMED)?))
    }

    /// Connects to a [`ChannelListener`].
    ///
    /// # Errors
    ///
    /// [`Os`](Error::Os) with `NotFound` or `ConnectionRefused`: no process listens there.
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

    /// Uses a connected stream socket: an inherited descriptor, or one that the program made by other means.
    ///
    /// # Errors
    ///
    /// [`Os`](Error::Os): it is not a stream socket.
    pub fn from_socket(socket: impl Into<Socket>) -> Result<Self> {
        Self::of_socket(socket.into(), UNNAMED)
    }

    fn of_socket(socket: Socket, name: &str) -> Result<Self> {
        Ok(Self { wire: Wire::new(socket, name)? })
    }

    /// Gives the socket back, to be inherited by a child or used otherwise. What had arrived in part is lost.
    pub fn into_socket(self) -> Socket {
        self.wire.socket
    }

    /// Returns the process that was at the other end when the connection was made.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) where the system does not say.
    pub fn peer(&self) -> Result<Peer> {
        let Wire { socket, name, .. } = &self.wire;
        socket.peer().map_err(|error| Error::os("ask which process is at the other end", name, error))
    }

    /// Makes this process, a forked child, the one that uses this end. The parent must not use its copy afterwards.
    pub fn adopt(self) -> Self {
        Self { wire: self.wire.adopt() }
    }

    /// Sends a message with arrays, waiting as long as it takes until the kernel has all of it.
    ///
    /// # Errors
    ///
    /// - [`Closed`](Error::Closed): the other end is gone.
    /// - [`Protocol`](Error::Protocol): it is longer than 64 MiB (arrays do not count), or JSON cannot express it.
    /// - those of making a handle: [`RefcountedArray::handle`](crate::RefcountedArray::handle).
    pub fn send<M: Serialize + ?Sized>(&self, message: &M, arrays: &[&dyn Shareable]) -> Result<()> {
        self.send_timeout(message, arrays, Duration::MAX)
    }

    /// Sends a message with arrays, but waits no longer than this.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send). [`TimedOut`](Error::TimedOut): if a part was sent by then, nothing can be sent any more.
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
        // What no process will receive must not keep an array alive.
        sent.inspect_err(|_| parcels.iter().for_each(Parcel::revoke))
    }

    /// Waits for a message.
    ///
    /// A message is received whole or not at all: after any error but `Closed` and `Protocol` the next call begins with the
    /// same message, also with another type `M`. To skip one, receive it as [`serde::de::IgnoredAny`].
    ///
    /// # Errors
    ///
    /// - [`Closed`](Error::Closed): there will be no more.
    /// - [`TooManyOpenFiles`](Error::TooManyOpenFiles): its descriptors cannot be had now; free some, and receive again.
    /// - [`Message`](Error::Message): it is not of type `M`.
    /// - [`Protocol`](Error::Protocol): what arrived is no message of a channel, after which nothing more can be received; or
    ///   one of its arrays is of a kind that this version does not know, and then the next message is next.
    pub fn receive<M: DeserializeOwned>(&self) -> Result<Received<M>> {
        self.receive_timeout(Duration::MAX)
    }

    /// Waits for a message, but no longer than this.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](Error::TimedOut), and those of [`receive`](Self::receive).
    pub fn receive_timeout<M: DeserializeOwned>(&self, limit: Duration) -> Result<Received<M>> {
        let (incoming, files) = self.wire.receive(limit, |body| {
            let incoming: Incoming<M> = serde_json::from_slice(body)
                .map_err(|error| Error::Message { location: self.wire.name.clone(), reason: error.to_string() })?;
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
        // All of them first: those that can be read are given up if one cannot.
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

/// Waits at a path for other processes to connect, each of which gets a [`Channel`]; the path is removed when this is dropped.
#[derive(Debug)]
pub struct ChannelListener {
    listener: os::Listener,
    path: String,
}

impl ChannelListener {
    /// Begins to listen at a path, with mode 0600. What a listener that was killed left there is replaced.
    ///
    /// # Errors
    ///
    /// [`Os`](Error::Os) with `AlreadyExists`: a process listens there; with `InvalidInput`: something else has the name, or
    /// the path is too long; with `PermissionDenied`. [`Unsupported`](Error::Unsupported) on Windows.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let op = "listening for channels (the directory must exist, and no other process may listen at this path)";
        let listener = os::listen(path).map_err(|error| Error::os_elsewhere(op, path.display(), error))?;
        Ok(Self { listener, path: path.display().to_string() })
    }

    /// Waits for a connection.
    ///
    /// # Errors
    ///
    /// [`TooManyOpenFiles`](Error::TooManyOpenFiles).
    pub fn accept(&self) -> Result<Channel> {
        self.accept_timeout(Duration::MAX)
    }

    /// Waits for a connection, but no longer than this.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](Error::TimedOut), and those of [`accept`](Self::accept).
    pub fn accept_timeout(&self, limit: Duration) -> Result<Channel> {
        let socket = self.listener.accept(deadline(limit)).map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => Error::TimedOut { location: self.path.clone(), waited: limit },
            _ => Error::os("accept at", &self.path, error),
        })?;
        Channel::of_socket(socket, &self.path)
    }
}

#[cfg(test)]
crate::os::with_sockets! {
    mod tests {
        use std::io::ErrorKind;

        use super::*;

        #[test]
        fn what_is_wrong_with_a_path_is_said_of_a_socket_and_not_of_an_array() {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("socket");
            let refused = |error: Error, kind: ErrorKind, advice: &str| {
                assert!(error.to_string().contains(advice), "{error}");
                assert!(matches!(&error, Error::Os { source, .. } if source.kind() == kind), "{error:?}");
            };
            refused(Channel::connect(&path).unwrap_err(), ErrorKind::NotFound, "a process must listen");
            let missing = ChannelListener::bind(directory.path().join("none/socket")).unwrap_err();
            refused(missing, ErrorKind::NotFound, "the directory must exist");
            let _listener = ChannelListener::bind(&path).unwrap();
            refused(ChannelListener::bind(&path).unwrap_err(), ErrorKind::AlreadyExists, "no other process may listen");
        }
    }
}
