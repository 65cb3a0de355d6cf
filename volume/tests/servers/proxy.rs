//! A proxy between client and server that counts requests, injects faults, and can go down and come up again.

use std::fmt;
use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The proxy answers with this status, without the server.
    Status(u16),
    /// The proxy answers 403, `AccessDenied`, as S3 does for a client that may not know whether an object exists.
    Denied,
    /// The answer ends in the middle of its body.
    Truncated,
    /// Like `Truncated`, and the answer has no tag by which the rest could be requested.
    TruncatedWithoutTag,
    /// The answer is delayed by this time.
    Late(Duration),
    /// The answer comes after [`FaultyProxy::let_go`], and never if the proxy goes down before.
    Held,
    /// The connection is closed instead of an answer.
    Closed,
}

/// A request to the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its number, from 0.
    pub number: usize,
    /// GET, HEAD, PUT, ..
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The value of the header Range, or an empty text.
    pub range: String,
}

type Decide = Box<dyn FnMut(&Request) -> Option<Fault> + Send>;

struct Shared {
    target: String,
    decide: Mutex<Decide>,
    requests: Mutex<Vec<Request>>,
    connections: Mutex<Vec<TcpStream>>,
    down: AtomicBool,
    holds: AtomicBool,
}

/// A proxy in threads of the test.
pub struct FaultyProxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    listening: Option<JoinHandle<()>>,
}

impl fmt::Debug for FaultyProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyProxy({} for {})", self.url(), self.shared.target)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FaultyProxy {
    /// Starts a proxy in front of `target` (`http://127.0.0.1:1234`); `decide` returns the fault of each request.
    pub fn start(target: &str, decide: impl FnMut(&Request) -> Option<Fault> + Send + 'static) -> Self {
        let shared = Arc::new(Shared {
            target: target.trim_start_matches("http://").trim_end_matches('/').to_owned(),
            decide: Mutex::new(Box::new(decide)),
            requests: Mutex::default(),
            connections: Mutex::default(),
            down: AtomicBool::new(true),
            holds: AtomicBool::new(true),
        });
        let mut proxy = Self { shared, address: (Ipv4Addr::LOCALHOST, 0).into(), listening: None };
        proxy.come_up();
        proxy
    }

    /// Starts a proxy without faults, which only counts requests.
    pub fn counting(target: &str) -> Self {
        Self::start(target, |_| None)
    }

    /// Replaces the function that decides on faults.
    pub fn decide(&self, decide: impl FnMut(&Request) -> Option<Fault> + Send + 'static) {
        *lock(&self.shared.decide) = Box::new(decide);
    }

    /// Returns the URL to use instead of the target's.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// Releases the held requests, and holds none from now on.
    pub fn let_go(&self) {
        self.shared.holds.store(false, Ordering::SeqCst);
    }

    /// Breaks all connections and refuses new ones, like a server that was killed.
    pub fn go_down(&mut self) {
        self.shared.down.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for a connection.
        let _connection = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
        for connection in lock(&self.shared.connections).drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Listens again, on the same port.
    pub fn come_up(&mut self) {
        let listener = TcpListener::bind(self.address).expect("a port");
        self.address = listener.local_addr().expect("an address");
        self.shared.down.store(false, Ordering::SeqCst);
        let shared = Arc::clone(&self.shared);
        self.listening = Some(thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if shared.down.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(copy) = client.try_clone() {
                    lock(&shared.connections).push(copy);
                }
                let shared = Arc::clone(&shared);
                thread::spawn(move || while let Ok(true) = one_request(&shared, &client) {});
            }
        }));
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.go_down();
    }
}

/// The head of a request or an answer: its first line, and its other lines, all with their line ends.
struct Head {
    first: String,
    lines: Vec<String>,
}

impl Head {
    fn read(from: &mut impl io::BufRead) -> io::Result<Option<Self>> {
        let mut line = || -> io::Result<String> {
            let mut line = String::new();
            from.read_line(&mut line)?;
            Ok(line)
        };
        let first = line()?;
        if first.is_empty() {
            return Ok(None);
        }
        let mut lines = Vec::new();
        loop {
            let next = line()?;
            if next.trim_end().is_empty() {
                return Ok(Some(Self { first, lines }));
            }
            lines.push(next);
        }
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn length(&self) -> u64 {
        self.value("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)
    }

    fn without(mut self, name: &str) -> Self {
        self.lines.retain(|line| !line.split(':').next().is_some_and(|key| key.eq_ignore_ascii_case(name)));
        self
    }

    fn text(&self, more: &str) -> String {
        format!("{}{}{more}\r\n", self.first, self.lines.concat())
    }
}

/// Answers one request. Returns whether another may come on the same connection.
fn one_request(shared: &Shared, mut client: &TcpStream) -> io::Result<bool> {
    let mut reader = BufReader::new(client);
    let Some(head) = Head::read(&mut reader)? else { return Ok(false) };
    let mut body = Vec::new();
    (&mut reader).take(head.length()).read_to_end(&mut body)?;
    let request = {
        let mut requests = lock(&shared.requests);
        let mut words = head.first.split(' ').map(str::to_owned);
        let request = Request {
            number: requests.len(),
            method: words.next().unwrap_or_default(),
            path: words.next().unwrap_or_default(),
            range: head.value("range").unwrap_or_default().to_owned(),
        };
        requests.push(request.clone());
        request
    };
    let fault = lock(&shared.decide)(&request);
    let refuse = |mut client: &TcpStream, status: u16, body: &str| {
        let body = if request.method == "HEAD" { "" } else { body };
        write!(client, "HTTP/1.1 {status} Refused\r\nContent-Length: {}\r\n\r\n{body}", body.len()).map(|()| true)
    };
    match fault {
        Some(Fault::Status(status)) => return refuse(client, status, "on purpose"),
        Some(Fault::Denied) => return refuse(client, 403, "<Error><Code>AccessDenied</Code></Error>"),
        Some(Fault::Closed) => return client.shutdown(Shutdown::Both).map(|()| false),
        Some(Fault::Late(pause)) => thread::sleep(pause),
        Some(Fault::Held) => {
            while shared.holds.load(Ordering::SeqCst) {
                if shared.down.load(Ordering::SeqCst) {
                    return client.shutdown(Shutdown::Both).map(|()| false);
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        _ => {}
    }
    // One connection to the server per request: the answer ends when the connection does.
    let Ok(mut server) = TcpStream::connect(&shared.target) else {
        return client.shutdown(Shutdown::Both).map(|()| false);
    };
    let head = head.without("connection");
    server.write_all(head.text("Connection: close\r\n").as_bytes())?;
    server.write_all(&body)?;
    let mut server = BufReader::new(server);
    let Some(head) = Head::read(&mut server)? else { return Ok(false) };
    let mut body = Vec::new();
    server.read_to_end(&mut body)?;
    let head = if fault == Some(Fault::TruncatedWithoutTag) { head.without("etag") } else { head };
    let whole =
        request.method == "HEAD" || body.len() as u64 == head.length() || head.value("transfer-encoding").is_some();
    let end = if matches!(fault, Some(Fault::Truncated | Fault::TruncatedWithoutTag)) || !whole {
        body.len() / 2
    } else {
        body.len()
    };
    client.write_all(head.without("connection").text("Connection: close\r\n").as_bytes())?;
    client.write_all(&body[..end])?;
    client.shutdown(Shutdown::Both)?;
    Ok(false)
}
