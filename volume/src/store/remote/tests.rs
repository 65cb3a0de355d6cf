//! Tests of remote stores against real servers and failing servers.

#[path = "../../../tests/servers/mod.rs"]
mod servers;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use self::servers::{Fault, FaultyProxy, HttpServer, S3Server, python};
use super::connect::Settings;
use super::open_with;
use crate::error::StoreFailure;
use crate::retries::{Retries, Retry};
use crate::store::conformance::{self, noise, samples};
use crate::store::{Store, StoredVersion, local};

/// Opens a bucket behind an endpoint, with a retry time of so many seconds.
fn bucket(endpoint: &str, place: &str, seconds: &str) -> Arc<dyn Store> {
    let pairs = S3Server::environment(endpoint).map(|(name, value)| (name.to_owned(), value));
    let patience = ("NDSHM_RETRY_SECONDS".to_owned(), seconds.to_owned());
    open_with(place, &Settings::new(pairs.into_iter().chain([patience]))).expect("a bucket")
}

fn web(url: &str, seconds: &str) -> Arc<dyn Store> {
    let patience = ("NDSHM_RETRY_SECONDS".to_owned(), seconds.to_owned());
    open_with(url, &Settings::new([patience])).expect("a web server")
}

/// Returns an error with its cause.
fn words(error: &crate::error::Error) -> String {
    let source = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", source.unwrap_or_default())
}

/// Writes the samples as files.
fn fill(directory: &Path) {
    let store = local::LocalStore::new(directory);
    for (key, (bytes, gzip)) in samples() {
        store.put(key, bytes, gzip).expect(key);
    }
}

#[test]
fn bucket_keeps_every_promise() {
    if python("bucket_keeps_every_promise").is_none() {
        return;
    }
    let server = S3Server::start();
    for place in ["s3://test", "s3://test/a prefix/b=c"] {
        let store = bucket(&server.endpoint(), place, "20");
        assert!(store.is_remote());
        assert_eq!(store.locate("c/0"), format!("{place}/c/0"));
        conformance::writes(&*store);
        conformance::reads(&*store);
        conformance::is_replaced_in_one_step(&*store, 5);
        for key in samples().into_keys() {
            assert!(store.delete(key).expect(key));
        }
    }
}

#[test]
fn bucket_without_conditional_requests_is_written() {
    if python("bucket_without_conditional_requests_is_written").is_none() {
        return;
    }
    let server = S3Server::start();
    let pairs = S3Server::environment(&server.endpoint()).map(|(name, value)| (name.to_owned(), value));
    let without = ("AWS_CONDITIONAL_PUT".to_owned(), "disabled".to_owned());
    let store = open_with("s3://test", &Settings::new(pairs.into_iter().chain([without]))).expect("a bucket");
    for bytes in [[1; 10], [2; 10]] {
        assert!(store.put_new("first", bytes.to_vec()).expect("it cannot be known"));
        assert_eq!(store.get("first").expect("reading").expect("it is there").bytes, bytes);
    }
}

#[test]
fn web_servers_keep_every_promise_of_reading() {
    if python("web_servers_keep_every_promise_of_reading").is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    for server in [HttpServer::start(directory.path()), HttpServer::without_tags(directory.path())] {
        let store = web(&server.url(), "20");
        conformance::reads(&*store);
        let error = store.put("new", vec![1], false).expect_err("read only");
        assert!(words(&error).contains("read only"), "{error}");
        assert!(store.list("0").is_err());
        assert!(store.delete("info").is_err());
    }
    let below = HttpServer::start(directory.path().parent().expect("a parent"));
    let name = directory.path().file_name().expect("a name").to_str().expect("text");
    conformance::reads(&*web(&format!("{}/{name}?signature=123", below.url()), "20"));
}

#[test]
fn nginx_keeps_every_promise_of_reading() {
    if python("nginx_keeps_every_promise_of_reading").is_none() {
        return;
    }
    // Readable only by the user that runs the tests: nginx started by root serves as another user.
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    let Some(server) = HttpServer::nginx(directory.path()) else { return };
    // This nginx does not map `NAME` to `NAME.gz`: rename the file to the object's key.
    fs::rename(directory.path().join("0/packed.gz"), directory.path().join("0/packed")).expect("renamed");
    let store = web(&server.url(), "20");
    let found = store.get("0/packed").expect("reading").expect("it is there");
    assert!(!found.gzip && found.bytes == samples()["0/packed"].0);
    let (bytes, _) = &samples()["info"];
    assert_eq!(&store.get("info").expect("reading").expect("it is there").bytes, bytes, "not packed on the way");
    for (key, (bytes, _)) in samples() {
        assert!(store.get(key).expect(key).expect(key).bytes == bytes, "{key}");
    }
    let part = store.get_range("c/0/1/2", 5..9).expect("a part").expect("it is there");
    assert_eq!(part.bytes, noise(3, 1_000_003)[5..9]);
    assert_eq!(store.get_suffix("c/0/1/2", 2_000_000).expect("all").expect("it is there").bytes.len(), 1_000_003);
    assert_eq!(store.get_suffix("c/0/1/2", 7).expect("the end").expect("it is there").bytes.len(), 7);
    assert!(store.get_range("c/0/1/2", 5..2_000_000).is_err());
    assert!(store.get("nothing").expect("nothing").is_none());
}

#[test]
fn refused_requests_and_cut_bodies_change_nothing() {
    if python("refused_requests_and_cut_bodies_change_nothing").is_none() {
        return;
    }
    let server = S3Server::start();
    let direct = bucket(&server.endpoint(), "s3://test/v", "20");
    let objects: Vec<_> = (0..60).map(|number| (format!("c/{number}"), noise(number, 50_000))).collect();
    for (key, bytes) in &objects {
        direct.put(key, bytes.clone(), false).expect("an object");
    }
    let mut proxy = FaultyProxy::start(&server.endpoint(), |request| match request.number {
        7 => Some(Fault::Truncated),
        13 => Some(Fault::TruncatedWithoutTag),
        31 => Some(Fault::Closed),
        number => (number % 20 == 5).then_some(Fault::Status(503)),
    });
    let store = bucket(&proxy.url(), "s3://test/v", "20");
    thread::scope(|scope| {
        for worker in 0..4 {
            let (store, objects) = (&store, &objects);
            scope.spawn(move || {
                for (key, bytes) in objects.iter().skip(worker).step_by(4) {
                    assert!(store.get(key).expect("it is had").expect("it is there").bytes == *bytes, "{key}");
                }
            });
        }
    });
    let came = proxy.requests().len();
    assert!((64..80).contains(&came), "60 objects took {came} requests");
    proxy.decide(|request| (request.number % 2 == 0).then_some(Fault::Status(503)));
    store.put("new", noise(1, 1000), true).expect("it is written");
    assert!(direct.get("new").expect("reading").is_some_and(|object| object.gzip && object.bytes == noise(1, 1000)));
    proxy.go_down();
}

#[test]
fn killed_server_is_waited_for_until_it_returns() {
    if python("killed_server_is_waited_for_until_it_returns").is_none() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    fs::create_dir_all(place.path().join("test/v")).expect("a bucket");
    for number in 0..40 {
        fs::write(place.path().join(format!("test/v/{number}")), noise(number, 100_000)).expect("an object");
    }
    let mut server = S3Server::start_with(place.path());
    let store = bucket(&server.endpoint(), "s3://test/v", "60");
    let (began, begins) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for number in 0..40 {
                let found = store.get(&number.to_string()).expect("it comes back").expect("it is there");
                assert!(found.bytes == noise(number, 100_000), "{number}");
                let _ = began.send(number); // nothing receives after the kill
                thread::sleep(Duration::from_millis(20));
            }
        });
        while begins.recv().expect("a reader") < 10 {}
        server.kill();
        thread::sleep(Duration::from_secs(1));
        server.restart();
        reader.join().expect("a reader");
    });
}

#[test]
fn dead_server_is_an_error_in_bounded_time() {
    if python("dead_server_is_an_error_in_bounded_time").is_none() {
        return;
    }
    let mut server = S3Server::start();
    let store = bucket(&server.endpoint(), "s3://test/v", "1");
    store.put("0/1", vec![1, 2, 3], false).expect("while it is there");
    server.kill();
    let begin = Instant::now();
    let errors = [
        store.get("0/1").expect_err("gone"),
        store.get_range("0/1", 0..1).expect_err("gone"),
        store.put("0/1", vec![3], false).expect_err("gone"),
        store.list("").expect_err("gone"),
    ];
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
    for error in &errors[..3] {
        let text = words(error);
        assert!(text.contains("`s3://test/v/0/1` failed"), "{text}");
        assert!(text.to_lowercase().contains("connect"), "{text}");
    }
}

#[test]
fn silent_server_is_an_error_in_bounded_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let store = web(&format!("http://{}/v", listener.local_addr().expect("an address")), "1");
    let begin = Instant::now();
    let text = words(&store.get("info").expect_err("silence"));
    assert!(text.contains("/v/info") && text.contains("tim"), "{text}");
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
}

#[test]
fn answers_without_length_or_tag_are_read_whole() {
    if python("answers_without_length_or_tag_are_read_whole").is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    let server = HttpServer::without_lengths(directory.path());
    let store = web(&server.url(), "5");
    for (key, (bytes, gzip)) in samples() {
        let found = store.get(key).expect(key).expect(key);
        assert!(found.bytes == bytes && found.gzip == gzip, "{key}");
    }
    let (key, (bytes, _)) = samples().into_iter().max_by_key(|(_, (bytes, _))| bytes.len()).expect("several");
    let length = bytes.len() as u64;
    assert!(store.get_at_most(key, length).expect("not more").is_some());
    let asked = FaultyProxy::start(&server.url(), |_| None);
    let error = web(&asked.url(), "600").get_at_most(key, length - 1).expect_err("more");
    assert!(words(&error).contains(&format!("more bytes than there can be in it ({})", length - 1)), "{error}");
    assert_eq!(asked.requests().len(), 1, "it would be as long again");
    let proxied = HttpServer::without_tags(directory.path());
    let proxy =
        FaultyProxy::start(&proxied.url(), |request| (request.number < 3).then_some(Fault::TruncatedWithoutTag));
    let found = web(&proxy.url(), "20").get("c/0/1/2").expect("it comes whole").expect("it is there");
    assert!(found.bytes == noise(3, 1_000_003));
    assert_eq!(proxy.requests().len(), 4);
}

#[test]
fn denied_object_is_missing_for_anonymous_clients_only() {
    if python("denied_object_is_missing_for_anonymous_clients_only").is_none() {
        return;
    }
    let server = S3Server::start();
    let proxy = FaultyProxy::start(&server.endpoint(), |_| Some(Fault::Denied));
    let signed = bucket(&proxy.url(), "s3://test/v", "1");
    let text = words(&signed.get("0/1").expect_err("denied"));
    assert!(text.contains("s3://test/v/0/1") && text.contains("access denied"), "{text}");
    assert!(!text.contains("127.0.0.1"), "{text}");
    let anonymous = Settings::new([("AWS_ENDPOINT_URL".to_owned(), proxy.url())]);
    let anonymous = open_with("s3://test/v", &anonymous).expect("a bucket");
    assert!(anonymous.get("0/1").expect("nothing").is_none());
    assert!(anonymous.size("0/1").expect("nothing").is_none());
    assert!(web(&proxy.url(), "1").get("0/1").expect("nothing").is_none());
    proxy.decide(|_| Some(Fault::Status(403)));
    assert!(web(&proxy.url(), "1").get("0/1").is_err(), "only S3 means nothing by it");
    let secret = proxy.url().replace("http://", "http://me:secret@") + "/v?signature=secret";
    for error in [web(&secret, "1").get("0/1").expect_err("refused"), web(&secret, "1").list("").expect_err("refused")]
    {
        let text = format!("{} {error:?}", words(&error));
        assert!(!text.contains("secret"), "{text}");
    }
    let paths: Vec<_> = proxy.requests().into_iter().map(|request| request.path).collect();
    assert!(paths.iter().any(|path| path == "/v/0/1?signature=secret"), "{paths:?}");
}

#[test]
fn caller_in_another_runtime_gets_answers() {
    if python("caller_in_another_runtime_gets_answers").is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    let server = HttpServer::start(directory.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for _ in 0..30 {
            assert!(web(&server.url(), "5").get("info").expect("reading").is_some());
        }
    });
}

/// Returns a port of the loopback on which nothing listens.
fn closed_port() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

/// Opens a web server without a retry time, as most users do.
fn usual(url: &str) -> Arc<dyn Store> {
    open_with(url, &Settings::default()).expect("a web server")
}

#[test]
fn refused_first_request_is_an_error_soon() {
    let place = format!("http://{}/v", closed_port());
    let begin = Instant::now();
    let error = usual(&place).get("info").expect_err("nothing listens");
    // Two minutes are the retry time of later requests.
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
    assert_eq!(error.store_failure(), Some(StoreFailure::NotReached), "{error:?}");
    let text = words(&error);
    for part in ["/v/info` failed", "host `127.0.0.1` refuses connections", "check the address", "NDSHM_RETRY_SECONDS"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn unknown_host_is_an_error_soon() {
    let host = "mistyped.invalid";
    let code = dns_lookup::lookup_host(host).err().map(|error| error.kind());
    if !matches!(code, Some(dns_lookup::LookupErrorKind::NoName | dns_lookup::LookupErrorKind::NoData)) {
        eprintln!("NOT RUN: unknown_host_is_an_error_soon needs a resolver that answers, not {code:?}");
        return;
    }
    let begin = Instant::now();
    let error = usual(&format!("https://{host}/v")).get("info").expect_err("no such host");
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
    assert_eq!(error.store_failure(), Some(StoreFailure::NotReached), "{error:?}");
    assert!(words(&error).contains("host `mistyped.invalid` is unknown"), "{error:?}");
}

/// Waits until a request has been retried for so long.
fn retried(retries: &Retries, at_least: Duration) -> Retry {
    let begin = Instant::now();
    loop {
        if let Some(retry) = retries.current().filter(|retry| retry.elapsed >= at_least) {
            return retry;
        }
        assert!(begin.elapsed() < Duration::from_mins(2), "nothing is retried");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn retry_time_holds_for_the_first_request_if_it_is_set() {
    if python("retry_time_holds_for_the_first_request_if_it_is_set").is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    let server = HttpServer::start(directory.path());
    let mut proxy = FaultyProxy::counting(&server.url());
    proxy.go_down();
    let (store, retries) = (web(&proxy.url(), "600"), Retries::new());
    thread::scope(|scope| {
        let reading = scope.spawn(|| retries.run(|| store.get("info")));
        let retry = retried(&retries, super::FIRST_PATIENCE + Duration::from_secs(1));
        assert_eq!(retry.object, format!("{}/info", proxy.url()));
        assert!(retry.reason.contains("onnect"), "{retry}");
        assert!(!reading.is_finished(), "it waits");
        proxy.come_up();
        assert!(reading.join().expect("no panic").expect("it has started").is_some());
    });
    assert_eq!(retries.current(), None, "nothing is retried any more");
}

#[test]
fn server_that_has_answered_is_waited_for() {
    if python("server_that_has_answered_is_waited_for").is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    let server = HttpServer::start(directory.path());
    let mut proxy = FaultyProxy::counting(&server.url());
    assert!(usual(&proxy.url()).get("info").expect("it answers").is_some());
    proxy.go_down();
    // Another store of the same server: the process knows the server.
    let (store, retries) = (usual(&proxy.url()), Retries::new());
    thread::scope(|scope| {
        let reading = scope.spawn(|| retries.run(|| store.get("info")));
        retried(&retries, super::FIRST_PATIENCE + Duration::from_secs(1));
        assert!(!reading.is_finished(), "it waits");
        proxy.come_up();
        assert!(reading.join().expect("no panic").expect("it is back").is_some());
    });
}

#[test]
fn status_that_is_retried_is_listed() {
    if python("status_that_is_retried_is_listed").is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    fill(directory.path());
    let server = HttpServer::start(directory.path());
    let proxy = FaultyProxy::start(&server.url(), |_| Some(Fault::Status(503)));
    let (store, retries) = (usual(&format!("{}?signature=secret", proxy.url())), Retries::new());
    thread::scope(|scope| {
        let reading = scope.spawn(|| retries.run(|| store.get("info")));
        let retry = retried(&retries, Duration::ZERO).to_string();
        assert!(retry.contains("/info") && retry.contains("503") && !retry.contains("secret"), "{retry}");
        proxy.decide(|_| None);
        assert!(reading.join().expect("no panic").expect("it answers").is_some());
    });
}

/// Returns the version of an object, after checking that each way to read the object returns the same.
fn version_of(store: &dyn Store, key: &str) -> StoredVersion {
    let version = store.version(key).expect(key).expect("it is there");
    assert_eq!(store.get(key).expect(key).expect(key).version, version);
    assert_eq!(store.get_range(key, 0..1).expect(key).expect(key).version, version);
    assert_eq!(store.get_range(key, 1..1).expect(key).expect(key).version, version);
    assert_eq!(store.get_suffix(key, 1).expect(key).expect(key).version, version);
    version
}

#[test]
fn version_is_the_entity_tag() {
    if python("version_is_the_entity_tag").is_none() {
        return;
    }
    let server = S3Server::start();
    let store = bucket(&server.endpoint(), "s3://test/v", "20");
    let versions = [1, 2].map(|seed| {
        store.put("object", noise(seed, 1000), false).expect("an object");
        version_of(&*store, "object")
    });
    assert!(versions.iter().all(StoredVersion::is_settled) && versions[0] != versions[1], "{versions:?}");

    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("object");
    let (tagged, plain) = (HttpServer::start(directory.path()), HttpServer::without_tags(directory.path()));
    let (tagged, plain) = (web(&tagged.url(), "20"), web(&plain.url(), "20"));
    let versions = [1, 2].map(|seed| {
        fs::write(&file, noise(seed, 1000)).expect("a file");
        // The server's tags have the length and the modification time.
        let file = fs::File::options().write(true).open(&file).expect("the file");
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seed)).expect("its time");
        assert_eq!(version_of(&*plain, "object"), StoredVersion::Unknown);
        version_of(&*tagged, "object")
    });
    assert!(versions.iter().all(StoredVersion::is_settled) && versions[0] != versions[1], "{versions:?}");
    fs::remove_file(&file).expect("removed");
    assert_eq!((tagged.version("object").expect("no"), plain.version("object").expect("no")), (None, None));
}

#[test]
fn weak_tags_are_no_versions() {
    let meta = |tag: Option<&str>| object_store::ObjectMeta {
        location: "object".into(),
        last_modified: std::time::UNIX_EPOCH.into(),
        size: 1,
        e_tag: tag.map(str::to_owned),
        version: None,
    };
    let tag = "\"5f-1\"";
    assert_eq!(super::version(&meta(Some(tag))), StoredVersion::settled(tag));
    for tag in [Some("W/\"5f-1\""), None] {
        assert_eq!(super::version(&meta(tag)), StoredVersion::Unknown, "{tag:?}");
    }
}

#[test]
fn cache_place_of_a_bucket_says_which_server_is_meant() {
    let place = |endpoint: &str, place: &str| bucket(endpoint, place, "1").cache_place("0/1").expect("a place");
    let first = place("http://me:secret@127.0.0.1:7001", "s3://test/v");
    assert!(first.starts_with("\"s3://test/v/0/1\" of \"http://127.0.0.1:7001\""), "{first}");
    // At this address each network namespace has servers of its own.
    assert_eq!(first.contains(" in net:["), std::fs::read_link("/proc/self/ns/net").is_ok(), "{first}");
    assert_ne!(first, place("http://127.0.0.1:7002", "s3://test/v"), "another server");
    assert_ne!(first, place("http://127.0.0.1:7001", "s3://other/v"));
    assert_ne!(first, place("http://127.0.0.1:7001", "s3://test/w"));
    let of_region = |region: &str| {
        let pairs = [("AWS_REGION", region), ("AWS_ACCESS_KEY_ID", "secret"), ("AWS_SECRET_ACCESS_KEY", "secret")];
        let settings = Settings::new(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        open_with("s3://test/v", &settings).expect("a bucket").cache_place("").expect("a place")
    };
    assert_eq!(of_region("eu-central-1"), "\"s3://test/v\" of region eu-central-1");
    let azure = |account: &str| {
        let pairs = [("AZURE_STORAGE_ACCOUNT_NAME", account), ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")];
        let settings = Settings::new(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        open_with("az://container/v", &settings).expect("a container").cache_place("").expect("a place")
    };
    assert!(azure("first") != azure("second") && !azure("first").contains("c2VjcmV0"), "{}", azure("first"));
}
