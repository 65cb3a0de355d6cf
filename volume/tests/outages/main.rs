//! Downloads from servers that refuse requests, truncate answers, or disappear for a while or for good. Either the
//! array is right, or the error is clear and the same command then fetches only the missing chunks.
//!
//! This binary is also the process that downloads or uploads: with [`URL`] in its environment it does that instead of
//! running tests.

mod permanent;
#[path = "../servers/mod.rs"]
mod servers;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use ndarray::{ArrayD, Axis, IxDyn};
use ndarray_shm::{DType, Directory, Location, OpenOptions};
use ndarray_shm_volume::demo::{DemoSpec, Pattern};
use ndarray_shm_volume::{
    Bbox, DownloadOptions, Encoding, NewVolume, ReadOptions, UploadOptions, VolumeFormat, VolumeUrl, Workers,
    create_volume, download_to_shared_memory, open_volume, read, upload_from_array,
};

use self::servers::{Fault, FaultyProxy, HttpServer, Request, S3Server, python};

/// The URL of the volume.
const URL: &str = "OUTAGE_TEST_URL";
/// The directory of the arrays.
const ARRAYS: &str = "OUTAGE_TEST_ARRAYS";
/// Makes the process upload instead.
const UPLOAD: &str = "OUTAGE_TEST_UPLOAD";
/// Makes the process read the whole volume into its own memory instead, and compare the elements.
const READ: &str = "OUTAGE_TEST_READ";
/// The array's location.
const LOCATION: &str = "outage-test";

fn main() -> ExitCode {
    if let Ok(url) = std::env::var(URL) {
        return transfer(&url);
    }
    let trial = |name: &str, test: fn(&str)| {
        let name = name.to_owned();
        Trial::test(name.clone(), move || {
            if python(&name).is_some() {
                test(&name);
            }
            Ok::<(), Failed>(())
        })
    };
    let tests = vec![
        trial("downloads_arrive_whole_through_faults", downloads_arrive_whole_through_faults),
        trial("reads_arrive_whole_through_faults", reads_arrive_whole_through_faults),
        trial("download_waits_for_a_restarted_server", download_waits_for_a_restarted_server),
        trial("next_run_after_an_outage_fetches_only_the_rest", next_run_after_an_outage_fetches_only_the_rest),
        trial("downloads_survive_faults_of_web_servers", downloads_survive_faults_of_web_servers),
        trial("uploads_arrive_whole_through_faults", uploads_arrive_whole_through_faults),
        trial("truncated_shards_are_permanent_errors", permanent::truncated_shards_are_permanent_errors),
        trial("shards_need_a_server_with_range_requests", permanent::shards_need_a_server_with_range_requests),
        trial(
            "raw_chunks_come_whole_from_a_server_without_ranges",
            permanent::raw_chunks_come_whole_from_a_server_without_ranges,
        ),
        trial("refused_ranges_are_permanent_errors", permanent::refused_ranges_are_permanent_errors),
        trial("absent_shards_are_missing_chunks", permanent::absent_shards_are_missing_chunks),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Downloads or uploads a whole volume, and prints the numbers of chunks that were transferred and resumed.
fn transfer(url: &str) -> ExitCode {
    let work = || -> ndarray_shm_volume::Result<()> {
        let url = url.parse::<VolumeUrl>()?;
        if std::env::var_os(UPLOAD).is_some() {
            let volume = create_volume(&url, &NewVolume::new(VolumeFormat::Zarr, &SHAPE, &CHUNK_SHAPE, DType::U16))?;
            let bbox = volume.meta().domain();
            let done = upload_from_array(&*volume, &bbox, &elements().view(), &UploadOptions::new())?;
            println!("{} 0", done.stored);
            return Ok(());
        }
        let volume = open_volume(&url)?;
        if std::env::var_os(READ).is_some() {
            let found = read::<u16, IxDyn>(&*volume, &volume.meta().domain(), &ReadOptions::new())?;
            let found = if found.ndim() == 4 { found.index_axis_move(Axis(3), 0) } else { found };
            println!("{}", found == elements());
            return Ok(());
        }
        let backend = Directory::new("test", std::env::var_os(ARRAYS).expect("a directory for arrays"));
        let options = DownloadOptions::new().directory(backend).workers(Workers::Threads(2)).keep_partial(true);
        let location = LOCATION.parse().expect("a location");
        let done = download_to_shared_memory(&*volume, &volume.meta().domain(), &location, &options)?;
        println!("{} {}", done.painted, done.resumed);
        Ok(())
    };
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                text = format!("{text}: {error}");
                cause = error.source();
            }
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

const SHAPE: [u64; 3] = [64, 60, 64];
const CHUNK_SHAPE: [u64; 3] = [16, 15, 16];
const CHUNKS: usize = 64;

/// Returns the elements of every volume of these tests.
fn elements() -> ArrayD<u16> {
    let spec = DemoSpec::new(&SHAPE, &CHUNK_SHAPE, DType::U16).pattern(Pattern::Noise);
    spec.expected(&Bbox::whole(&SHAPE)).expect("all of it")
}

/// The format of the volume in `objects/test/volume`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Zarr,
    /// Shards of eight chunks each.
    Sharded,
    /// Chunks packed by gzip, one channel.
    Precomputed,
}

/// A volume of 64 chunks, and the directory of the arrays.
struct Case {
    directory: tempfile::TempDir,
    kind: Kind,
}

impl Case {
    fn new(kind: Kind) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(directory.path().join("objects/test")).expect("a bucket");
        fs::create_dir(directory.path().join("arrays")).expect("a directory for arrays");
        let case = Self { directory, kind };
        let format = if kind == Kind::Precomputed { VolumeFormat::Precomputed } else { VolumeFormat::Zarr };
        let mut new = NewVolume::new(format, &SHAPE, &CHUNK_SHAPE, DType::U16);
        match kind {
            Kind::Zarr => {}
            Kind::Sharded => new.shard_shape = Some(CHUNK_SHAPE.map(|length| 2 * length).to_vec()),
            Kind::Precomputed => {
                new.shape.push(1);
                new.chunk_shape.push(1);
                new.origin.push(0);
                new.encoding = Encoding::Gzip;
            }
        }
        let volume = create_volume(VolumeUrl::local(case.objects().join("test/volume")), &new).expect("a volume");
        let bbox = volume.meta().domain();
        upload_from_array(&*volume, &bbox, &case.expected().view(), &UploadOptions::new()).expect("its elements");
        case
    }

    fn expected(&self) -> ArrayD<u16> {
        let elements = elements();
        if self.kind == Kind::Precomputed { elements.insert_axis(Axis(3)) } else { elements }
    }

    fn objects(&self) -> PathBuf {
        self.directory.path().join("objects")
    }

    fn command(&self, url: &str, endpoint: &str, patience: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .env(URL, url)
            .env(ARRAYS, self.directory.path().join("arrays"))
            .env("NDSHM_RETRY_SECONDS", patience)
            .envs(S3Server::environment(endpoint))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, url: &str, endpoint: &str, patience: &str) -> Output {
        self.command(url, endpoint, patience).output().expect("a download")
    }

    /// Compares every element of a downloaded array, and returns the numbers of painted and resumed chunks.
    #[track_caller]
    fn check(&self, output: &Output) -> (usize, usize) {
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<usize> = said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let backend = Directory::new("test", self.directory.path().join("arrays"));
        let location: Location = LOCATION.parse().expect("a location");
        let expected = self.expected();
        let array = OpenOptions::new().directory(backend).open::<u16, IxDyn>(&location, expected.shape());
        let equal = array.expect("the array").read().expect("a guard").view() == expected;
        assert!(equal, "the array is not the volume");
        (numbers[0], numbers[1])
    }
}

/// Whether a request is for a chunk or a shard: their names begin with a digit.
fn is_chunk(request: &Request) -> bool {
    let name = request.path.rsplit('/').next().unwrap_or_default();
    request.method == "GET" && name.starts_with(|first: char| first.is_ascii_digit())
}

fn chunks(requests: &[Request]) -> Vec<&str> {
    requests.iter().filter(|request| is_chunk(request)).map(|request| request.path.as_str()).collect()
}

/// Refuses one request in twenty, truncates one body with a tag and one without, and closes one connection.
fn faults(request: &Request) -> Option<Fault> {
    match request.number {
        10 => Some(Fault::Truncated),
        17 => Some(Fault::TruncatedWithoutTag),
        23 => Some(Fault::Closed),
        number => (number % 20 == 5).then_some(Fault::Status(503)),
    }
}

fn downloads_arrive_whole_through_faults(_name: &str) {
    for kind in [Kind::Zarr, Kind::Sharded, Kind::Precomputed] {
        let case = Case::new(kind);
        let server = S3Server::start_with(&case.objects());
        let proxy = FaultyProxy::start(&server.endpoint(), faults);
        let output = case.run("s3://test/volume", &proxy.url(), "30");
        assert_eq!(case.check(&output), (CHUNKS, 0));
        let requests = proxy.requests();
        assert!(chunks(&requests).len() > CHUNKS, "there were no faults");
        // Each shard's index costs requests too.
        let most = CHUNKS + 30 + if kind == Kind::Sharded { 16 } else { 0 };
        assert!(requests.len() < most, "{} requests: {requests:?}", requests.len());
    }
}

fn reads_arrive_whole_through_faults(_name: &str) {
    let check = |case: &Case, url: &str, endpoint: &str| {
        let output = case.command(url, endpoint, "30").env(READ, "1").output().expect("a read");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "true", "the elements differ");
    };
    for kind in [Kind::Zarr, Kind::Sharded, Kind::Precomputed] {
        let case = Case::new(kind);
        let server = S3Server::start_with(&case.objects());
        let proxy = FaultyProxy::start(&server.endpoint(), faults);
        check(&case, "s3://test/volume", &proxy.url());
        assert!(chunks(&proxy.requests()).len() > CHUNKS, "there were no faults");
    }
    let case = Case::new(Kind::Zarr);
    let server = HttpServer::start(&case.objects());
    let proxy = FaultyProxy::start(&server.url(), faults);
    check(&case, &format!("{}/test/volume", proxy.url()), "http://nowhere.invalid");
    assert!(chunks(&proxy.requests()).len() > CHUNKS, "there were no faults");
}

fn uploads_arrive_whole_through_faults(_name: &str) {
    let case = Case::new(Kind::Zarr);
    let server = S3Server::start();
    let proxy = FaultyProxy::start(&server.endpoint(), |request| match request.number {
        12 | 29 => Some(Fault::Closed),
        number => (number % 10 == 5).then_some(Fault::Status(503)),
    });
    let output = case.command("s3://test/new", &proxy.url(), "30").env(UPLOAD, "1").output().expect("an upload");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), format!("{CHUNKS} 0"));
    assert_eq!(case.check(&case.run("zarr://s3://test/new", &server.endpoint(), "30")), (CHUNKS, 0));
}

/// Waits until a download has requested chunks that the proxy holds.
fn wait_until_held(proxy: &FaultyProxy, child: &mut Child) {
    let begin = Instant::now();
    while chunks(&proxy.requests()).len() <= ANSWERED {
        let ended = child.try_wait().expect("its state");
        assert!(ended.is_none(), "the download ended too early: {ended:?}, {:?}", proxy.requests());
        assert!(begin.elapsed() < Duration::from_mins(2), "the download does not begin");
        thread::sleep(Duration::from_millis(5));
    }
}

/// How many requests for chunks are answered before the server disappears. Downloads make 16 requests at a time.
const ANSWERED: usize = 40;

/// Delays answers, and holds requests for more than [`ANSWERED`] chunks.
fn slowly() -> impl FnMut(&Request) -> Option<Fault> {
    let mut asked = 0;
    move |request| {
        asked += usize::from(is_chunk(request));
        Some(if asked > ANSWERED { Fault::Held } else { Fault::Late(Duration::from_millis(50)) })
    }
}

fn download_waits_for_a_restarted_server(_name: &str) {
    let case = Case::new(Kind::Zarr);
    let mut server = S3Server::start_with(&case.objects());
    let mut proxy = FaultyProxy::start(&server.endpoint(), slowly());
    let mut child = case.command("s3://test/volume", &proxy.url(), "60").spawn().expect("a download");
    wait_until_held(&proxy, &mut child);
    // First only the server is gone, and the proxy closes connections without an answer; then the proxy's port refuses
    // too.
    server.kill();
    proxy.let_go();
    thread::sleep(Duration::from_millis(300));
    proxy.go_down();
    thread::sleep(Duration::from_millis(700));
    server.restart();
    proxy.come_up();
    let output = child.wait_with_output().expect("its end");
    assert_eq!(case.check(&output), (CHUNKS, 0));
    assert!(chunks(&proxy.requests()).len() > CHUNKS, "the download did not see the outage");
}

fn next_run_after_an_outage_fetches_only_the_rest(_name: &str) {
    for (kind, named) in [(Kind::Zarr, "s3://test/volume/c/"), (Kind::Precomputed, "s3://test/volume/1_1_1/")] {
        let case = Case::new(kind);
        let server = S3Server::start_with(&case.objects());
        let proxy = FaultyProxy::start(&server.endpoint(), slowly());
        interrupted_and_resumed(&case, proxy, "s3://test/volume", named);
    }
}

/// Takes the server away during a download, for longer than the download retries. The next run must fetch only the
/// rest.
fn interrupted_and_resumed(case: &Case, mut proxy: FaultyProxy, url: &str, named: &str) {
    let endpoint = proxy.url();
    let begin = Instant::now();
    // 6 seconds are enough for a server that answers, also on a slow machine.
    let mut child = case.command(url, &endpoint, "6").spawn().expect("a download");
    wait_until_held(&proxy, &mut child);
    proxy.go_down();
    let output = child.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(named), "the error does not name the object: {said}");
    assert!(said.contains("onnect"), "the error does not say why: {said}");
    assert!(begin.elapsed() < Duration::from_mins(3), "{:?}", begin.elapsed());

    let before: BTreeSet<String> = chunks(&proxy.requests()).into_iter().map(str::to_owned).collect();
    let first = proxy.requests().len();
    proxy.decide(|_| None);
    proxy.come_up();
    let (painted, resumed) = case.check(&case.run(url, &endpoint, "30"));
    assert_eq!(painted + resumed, CHUNKS);
    assert!(resumed >= CHUNKS / 4 && painted >= CHUNKS / 4, "{painted} painted, {resumed} resumed");
    let requests = proxy.requests();
    let fetched = chunks(&requests[first..]);
    assert_eq!(fetched.len(), painted, "only missing chunks are requested, each once: {fetched:?}");
    let distinct: BTreeSet<&str> = fetched.iter().copied().collect();
    assert_eq!(distinct.len(), fetched.len());
    let of_both = distinct.iter().filter(|path| before.contains(**path)).count();
    assert!(before.len() - of_both == resumed, "received chunks are not fetched again");
}

fn downloads_survive_faults_of_web_servers(_name: &str) {
    for with_tags in [true, false] {
        let case = Case::new(Kind::Zarr);
        let directory = case.objects();
        let server = if with_tags { HttpServer::start(&directory) } else { HttpServer::without_tags(&directory) };
        let proxy = FaultyProxy::start(&server.url(), faults);
        let url = format!("{}/test/volume", proxy.url());
        assert_eq!(case.check(&case.run(&url, "http://nowhere.invalid", "30")), (CHUNKS, 0));
        assert!(chunks(&proxy.requests()).len() > CHUNKS, "there were no faults");

        let case = Case::new(Kind::Zarr);
        let server =
            if with_tags { HttpServer::start(&case.objects()) } else { HttpServer::without_tags(&case.objects()) };
        let proxy = FaultyProxy::start(&server.url(), slowly());
        let url = format!("{}/test/volume", proxy.url());
        interrupted_and_resumed(&case, proxy, &url, &format!("{url}/c/"));
    }
}
