//! The manager itself: one loop that waits for clients, their requests and their deaths.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::endpoint::listen;
use super::places::Places;
use super::requests::{self, Request, Status};
use crate::backend::Directory;
use crate::counted::Reclaim;
use crate::error::{Error, Result};
use crate::manager_client::socket_path;
use crate::manager_client::wire::{CANNOT, DONE, GREETING, REFUSAL, Talk, Use};
use crate::os::daemon::{self, Process, Source};
use crate::os::{self, Bell, Listener, Socket};
use crate::segment::counts::LONGEST_GRACE;

/// Maximum number of clients; fewer if the descriptor limit is lower.
const MOST_CLIENTS: usize = 4096;

/// Connections beyond the maximum number of clients, so that `status` and `stop` requests always get through.
const QUESTIONS: usize = 16;

/// Descriptors for one client: its connection and its process.
const DESCRIPTORS: u64 = 2;

/// Descriptors that are left for everything else.
const SPARE: u64 = 32;

/// The refusal of a client beyond the maximum number.
const TOO_MANY: &str = "there are too many clients already; raise `ulimit -n` for the manager";

/// How often all directories are searched while there are clients, to find orphans of deaths that were not seen.
const ROUND: Duration = Duration::from_secs(10);

/// How often in the first seconds: clients of a killed predecessor may die before they have connected to this manager.
const FIRST_ROUNDS: Duration = Duration::from_millis(500);

/// How long no connection is accepted after accepting failed.
const REST: Duration = Duration::from_millis(100);

/// Options for starting a manager. The [module's page](crate::manager) has an example.
#[derive(Debug, Clone, Default)]
pub struct ManagerOptions {
    socket: Option<PathBuf>,
    idle: Option<Duration>,
}

impl ManagerOptions {
    /// Begins with the defaults: the socket where this user's clients look for it, and no idle limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens at `path` instead of the [default socket](crate::manager).
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// Ends the manager after this long without a client. By default it goes on without clients.
    pub fn idle_exit(mut self, after: Duration) -> Self {
        self.idle = Some(after);
        self
    }
}

/// The manager of one socket, listening.
///
/// # Examples
///
/// ```no_run
/// use ndarray_shm::manager::{Manager, ManagerOptions};
///
/// if let Some(manager) = Manager::start(&ManagerOptions::new())? {
///     println!("listening at {}", manager.socket().display());
///     manager.run()?; // until it is stopped
/// }
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug)]
pub struct Manager {
    // Declared first, so dropped first: when a client sees the end of its connection, the socket is gone.
    listener: Listener,
    path: PathBuf,
    bell: Bell,
    idle: Option<Duration>,
    clients: BTreeMap<u64, Connection>,
    next_client: u64,
    places: Places,
    since: Instant,
    /// Whether a client or another thread asked it to end.
    is_stopping: bool,
}

/// A handle that ends a [`Manager`] from another thread.
#[derive(Debug, Clone)]
pub struct Stopper(Bell);

impl Stopper {
    /// Asks the manager to end. Returns at once.
    pub fn stop(&self) {
        self.0.ring();
    }
}

#[derive(Debug)]
struct Connection {
    /// `None` once the client closed the connection, or sent a malformed line.
    talk: Option<Talk>,
    /// The pidfd of the client, which shows its death. `None` if there is none: then the end of the connection counts
    /// as the death.
    watch: Option<Process>,
    /// The client's process id; 0 if it has none in this pid namespace.
    process: u32,
    greeted: bool,
}

impl Manager {
    /// Becomes this user's manager. Returns `Ok(None)` if there is one already.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](crate::ErrorKind::Unsupported) off Linux.
    /// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied): the socket or its directory is another user's, or
    ///   writable by other users.
    /// - [`Manager`](crate::ErrorKind::Manager): something else has the socket's name, the name is too long, or its
    ///   directory stays locked.
    /// - [`InvalidSetting`](crate::ErrorKind::InvalidSetting): `NDSHM_MANAGER_SOCKET` is empty.
    pub fn start(options: &ManagerOptions) -> Result<Option<Self>> {
        let path = socket_path(options.socket.as_deref())?;
        let failed = |error| Error::os("preparing to wait for processes", path.display(), error);
        let bell = daemon::supported().and_then(|()| Bell::new()).map_err(failed)?;
        let Some(listener) = listen(&path)? else { return Ok(None) };
        let mut manager = Self {
            listener,
            path,
            bell,
            idle: options.idle,
            clients: BTreeMap::new(),
            next_client: 0,
            places: Places::default(),
            since: Instant::now(),
            is_stopping: false,
        };
        manager.add_usual_places();
        Ok(Some(manager))
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> &Path {
        &self.path
    }

    /// Returns a handle that ends this manager from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.bell.clone())
    }

    /// Serves clients until it is stopped, or idle for the time given in the options. Then removes the socket.
    ///
    /// # Errors
    ///
    /// [`Os`](crate::ErrorKind::Os): waiting failed. Those of [`start`](Self::start): a client connected at the last
    /// moment, and listening again failed.
    pub fn run(mut self) -> Result<()> {
        let mut round = Instant::now() + FIRST_ROUNDS;
        let mut accept_from = Instant::now();
        let mut lonely = Some(Instant::now());
        loop {
            self.places.reclaim_due(Instant::now(), |backend| Reclaim::new().run(backend));
            let now = Instant::now();
            if now >= round {
                round = now + if self.since.elapsed() < ROUND { FIRST_ROUNDS } else { ROUND };
                if !self.listener.has_name() {
                    log::warn!("the manager's socket was removed: this manager ends, and another can start");
                    return Ok(());
                }
                if !self.places.uses.is_empty() {
                    self.places.go_round(now);
                    continue;
                }
            }
            let is_lonely = self.places.uses.is_empty() && self.places.next().is_none();
            lonely = is_lonely.then(|| lonely.unwrap_or(now));
            let end = lonely.zip(self.idle).and_then(|(since, idle)| since.checked_add(idle));
            if end.is_some_and(|end| now >= end) {
                if self.may_end()? {
                    return Ok(());
                }
                lonely = None;
                continue;
            }
            let resting = (accept_from > now).then_some(accept_from);
            let wake = [Some(round), self.places.next(), end, resting].into_iter().flatten().min();
            let wait = wake.map(|wake| wake.saturating_duration_since(now));
            self.wait(wait, resting.is_none())?;
            if resting.is_none() && !self.accept() {
                accept_from = Instant::now() + REST;
            }
            if self.is_stopping {
                return Ok(());
            }
        }
    }

    /// Adds the directories that most processes use, to find the orphans of processes that died while there was no
    /// manager.
    fn add_usual_places(&mut self) {
        let shm = Directory::shm().map(|shm| (shm.name().to_owned(), shm.path().to_owned()));
        let emulated = Directory::emulated_path().map(|path| ("emulated".to_owned(), path));
        for (backend, path) in [shm, emulated].into_iter().flatten() {
            // `None` if the directory does not exist.
            if let Some(used) = Use::of(&path, &backend) {
                let _ = self.places.add(used); // two directories always fit into the new table
            }
        }
        self.places.mark_all(Instant::now());
    }

    /// Waits, then handles the bell, requests and deaths, in this order.
    fn wait(&mut self, limit: Option<Duration>, accepts: bool) -> Result<()> {
        let mut sources = vec![Source::Bell(&self.bell)];
        let mut asked = Vec::new();
        for (&number, client) in &self.clients {
            if let Some(talk) = &client.talk {
                sources.push(Source::Socket(&talk.socket));
                asked.push((number, false));
            }
            if let Some(process) = &client.watch {
                sources.push(Source::Process(process));
                asked.push((number, true));
            }
        }
        if accepts {
            sources.push(Source::Listener(&self.listener));
        }
        let answers = daemon::wait(&sources, limit)
            .map_err(|error| Error::os("waiting for clients", self.path.display(), error))?;
        self.is_stopping |= answers[0];
        // The listener is the last source and not a client, so `zip` leaves its answer out.
        let happened = asked.into_iter().zip(&answers[1..]).filter_map(|(client, yes)| yes.then_some(client));
        let happened: Vec<(u64, bool)> = happened.collect();
        // Requests first, also those of dead clients: the last line may name a directory that the client used.
        for (number, _) in &happened {
            self.listen_to(*number);
        }
        for (number, _) in happened.into_iter().filter(|(_, is_death)| *is_death) {
            self.bury(number);
        }
        Ok(())
    }

    /// Accepts all waiting connections. Returns `false` if that failed and should be tried again after a pause.
    fn accept(&mut self) -> bool {
        loop {
            let socket = match self.listener.accept(Some(Instant::now())) {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return true,
                Err(error) => {
                    log::warn!("the manager cannot accept a client: {error}");
                    return false;
                }
            };
            if let Err(reason) = self.welcome(socket) {
                log::info!("the manager refused a client: {reason}");
            }
        }
    }

    fn welcome(&mut self, socket: Socket) -> io::Result<()> {
        let talk = Talk::new(socket);
        let peer = talk.socket.peer()?;
        if !os::is_user(peer.user) {
            talk.say(&format!("{REFUSAL}this manager serves another user, not user {}", peer.user))?;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if self.clients.len() >= most_clients() + QUESTIONS {
            talk.say(&format!("{REFUSAL}{TOO_MANY}"))?;
            return Err(io::Error::other(TOO_MANY));
        }
        let process = peer.process.unwrap_or(0);
        let watch = Process::of_peer(&talk.socket);
        let is_gone = matches!(watch, Ok(None));
        let watch = watch.unwrap_or_else(|error| {
            log::debug!("client {process} cannot be watched: {error}");
            None
        });
        let number = self.next_client;
        self.next_client += 1;
        let client = Connection { talk: Some(talk), watch, process, greeted: false };
        self.clients.insert(number, client);
        // Reads the lines that the client sent before it was accepted. They count even if the client is dead by now:
        // its directories become due.
        self.listen_to(number);
        if is_gone {
            self.bury(number);
        }
        Ok(())
    }

    /// Reads the lines that a client has sent, and answers them.
    fn listen_to(&mut self, number: u64) {
        loop {
            let Some(talk) = self.clients.get_mut(&number).and_then(|client| client.talk.as_mut()) else { return };
            let answer = match talk.hear(Instant::now()) {
                Ok(Some(line)) => self.answer(number, &line).map_err(str::to_owned),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error.to_string()),
                Ok(None) | Err(_) => return self.hang_up(number),
            };
            let is_refusal = answer.is_err();
            let text = answer.unwrap_or_else(|reason| format!("{REFUSAL}{reason}"));
            if let Some(talk) = self.clients.get(&number).and_then(|client| client.talk.as_ref()) {
                let _ = talk.say(&text); // fails if the client reads no answers; the manager does not wait for it
            }
            if is_refusal {
                return self.hang_up(number);
            }
        }
    }

    fn answer(&mut self, number: u64, line: &str) -> Result<String, &'static str> {
        let request = requests::parse(line)?;
        let client = self.clients.get_mut(&number).ok_or("gone")?;
        client.greeted |= request == Request::Greeting;
        if !client.greeted {
            return Err("the first line must be the greeting, ndshm-manager 1");
        }
        let done = match request {
            Request::Greeting => return Ok(GREETING.to_owned()),
            Request::Use(_) if !self.places.uses.contains_key(&number) && self.places.uses.len() >= most_clients() => {
                return Err(TOO_MANY);
            }
            Request::Use(used) if !used.is_seen_here() => {
                Err("the manager sees another directory under this path, or none")
            }
            Request::Use(used) => self.places.note(number, used),
            Request::Look { after, id } => self.places.remind(number, id, Instant::now() + after.min(LONGEST_GRACE)),
            Request::Status => return Ok(self.status().line()),
            Request::Stop => {
                self.is_stopping = true;
                Ok(())
            }
        };
        Ok(done.map_or_else(|reason| format!("{CANNOT}{reason}"), |()| DONE.to_owned()))
    }

    /// Handles the end of a connection. The client may be dead, or only have closed it, for example by exec. So its
    /// directories are searched now, and its death is still waited for.
    fn hang_up(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        client.talk = None;
        let process = client.process;
        if client.watch.is_none() || !self.places.uses.contains_key(&number) {
            return self.bury(number);
        }
        self.places.mark_of(number, Instant::now());
        // The process may connect again and again. One pidfd for it is enough. The twin is the same process, because
        // two living processes never share an id.
        let is_twin = |(other, client): &(&u64, &Connection)| {
            **other != number && client.process == process && process != 0 && client.watch.is_some()
        };
        if let Some((&twin, _)) = self.clients.iter().find(is_twin) {
            self.clients.remove(&number);
            self.places.hand_over(number, twin);
        }
    }

    /// Forgets a client that is dead, or that has no pidfd and closed its connection, and makes its directories due.
    fn bury(&mut self, number: u64) {
        if let Some(client) = self.clients.remove(&number) {
            self.places.leave(number, Instant::now());
            log::debug!("client {} has ended", client.process);
        }
    }

    /// Searches all directories once more and removes the socket. Returns `false` if an array in flight expires later,
    /// or if a client connected at the last moment.
    fn may_end(&mut self) -> Result<bool> {
        self.places.mark_all(Instant::now());
        self.places.reclaim_due(Instant::now(), |backend| Reclaim::new().run(backend));
        // Arrays that only seem held are not waited for, unless a client has died there: a process that announces
        // nothing to a manager may hold them for ever.
        if self.places.is_waiting() {
            return Ok(false);
        }
        // First the name goes, so that no further client can connect, then the manager accepts those that connected
        // before. In the other order, a client that connects between the two would be lost.
        self.listener.remove_name();
        let before = self.next_client;
        self.accept();
        if self.next_client == before {
            return Ok(true);
        }
        // If another process became the manager after the name went, the client finds its connection closed and
        // connects there.
        let Some(listener) = listen(&self.path)? else { return Ok(true) };
        self.listener = listener;
        Ok(false)
    }

    fn status(&self) -> Status {
        Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: self.since.elapsed(),
            clients: self.places.uses.len(),
            directories: self.places.len(),
            sweeps: self.places.sweeps,
            reclaimed: self.places.reclaimed,
        }
    }
}

fn most_clients() -> usize {
    let descriptors = usize::try_from(os::descriptor_limit().saturating_sub(SPARE) / DESCRIPTORS);
    MOST_CLIENTS.min(descriptors.unwrap_or(usize::MAX).saturating_sub(QUESTIONS))
}
