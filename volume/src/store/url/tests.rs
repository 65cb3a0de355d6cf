//! Tests of parsing and printing addresses of volumes.

#[cfg(unix)]
use std::path::{Path, PathBuf};

#[cfg(feature = "remote")]
use super::WebUrl;
use super::{StorePlace, VolumeFormat, VolumeUrl, shown};

fn url(text: &str) -> VolumeUrl {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    let error = text.parse::<VolumeUrl>().err().unwrap_or_else(|| panic!("{text} was taken"));
    let said = error.to_string();
    assert!(matches!(error, crate::error::Error::Url { .. }), "{said}");
    said
}

#[track_caller]
fn leads_to(text: &str, path: &str) {
    assert_eq!(url(text).place, StorePlace::Local(path.into()), "{text}");
    round_trips(&url(text));
}

#[track_caller]
fn means(text: &str, place: &str) {
    assert_eq!(url(text).place, StorePlace::Remote(place.into()), "{text}");
    round_trips(&url(text));
}

#[track_caller]
fn round_trips(given: &VolumeUrl) {
    for format in [None, Some(VolumeFormat::Zarr), Some(VolumeFormat::Precomputed), Some(VolumeFormat::N5)] {
        let given = format.map_or(given.clone(), |format| given.clone().format(format));
        let argument = given.to_argument();
        assert_eq!(url(&argument), given, "{argument}");
        if !argument.contains(['@', '?']) {
            assert_eq!(given.to_string(), argument);
        }
    }
}

#[test]
fn paths_are_taken_as_they_are() {
    for path in ["volume.zarr", "/data/em", "../up/em", "~/em", "a%20b", "a b", "a:b", "/a//b/", ".", "s3:/x", "ü?#"] {
        leads_to(path, path);
    }
    leads_to("precomputed://volume", "volume");
    leads_to("ZARR3:///data/em", "/data/em");
    leads_to("N5://volume.n5", "volume.n5");
    assert_eq!(url("zarr2://em").expected_format(), Some(VolumeFormat::Zarr));
    assert_eq!(url("Precomputed://em").expected_format(), Some(VolumeFormat::Precomputed));
    assert_eq!(url("n5://em.n5/raw").expected_format(), Some(VolumeFormat::N5));
    assert_eq!(url("em").expected_format(), None);
}

#[test]
fn file_urls_are_decoded() {
    leads_to("file:///data/my%20em", "/data/my em");
    leads_to("FILE://localhost/data/em/", "/data/em/");
    leads_to("precomputed://file:///data/100%", "/data/100%");
    leads_to("file://./data/em", "data/em");
    leads_to("file://~/em", "~/em");
    assert!(refused("file://machine/em").contains("`machine`"));
    assert!(refused("file:///data/../em").contains(".."));
    assert!(refused("file:///..").contains(".."));
    assert!(refused("file:///data/%00").contains("NUL"));
}

#[test]
fn every_path_reads_back_as_the_same() {
    for path in [
        "",
        "a://b",
        "/a://b/c",
        "s3://bucket/key",
        "./x://y",
        "../x://y",
        "file:///x",
        "%41://ü",
        "..",
        "a://b/..",
        "a://b..c",
    ] {
        // On Windows a colon may only follow a drive letter, so this is not a path there.
        if !(cfg!(windows) && path == "/a://b/c") {
            round_trips(&VolumeUrl::local(path));
        }
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt as _;
        let bytes = std::ffi::OsStr::from_bytes(b"/data/\xff\xfe %\n");
        round_trips(&VolumeUrl::local(Path::new(bytes)));
        round_trips(&VolumeUrl::local(PathBuf::from("relative").join(bytes).join("x")));
        round_trips(&VolumeUrl::local(Path::new(std::ffi::OsStr::from_bytes(b"r\xff"))));
    }
}

#[test]
fn servers_are_written_in_one_way() {
    means("HTTPS://Host.org/em//", "https://Host.org/em");
    means("zarr://http://host:8080", "http://host:8080");
    means("https://host/em/?a=b&c=/", "https://host/em?a=b&c=/");
    means("https://host/em#part", "https://host/em");
    means("http://[::1]:80/em", "http://[::1]:80/em");
    means("precomputed://gs://bucket/a b/%20/", "gs://bucket/a b/%20");
    means("S3://bucket", "s3://bucket");
    means("az://container/key", "az://container/key");
    means("https://me:pass@host/em?sig=1", "https://me:pass@host/em?sig=1");
}

#[test]
fn refused_urls_say_why() {
    for (text, word) in [
        ("ftp://host/em", "`ftp://` is not known"),
        ("precomputed://graphene://https://host", "`graphene://` is not known"),
        ("zarr://precomputed://em", "two formats"),
        ("n5://zarr://em", "two formats"),
        ("", "names nothing"),
        ("zarr://", "names nothing"),
        ("http://", "no host"),
        ("https:///em", "no host"),
        ("https://?x", "no host"),
        ("s3://", "no bucket"),
        ("gs:///key", "no bucket"),
        ("s3://bucket/../other", ".."),
        ("https://host/a/../b", ".."),
        ("https://host/a/%2e./b", ".."),
        ("s3://bucket/a//b", "empty"),
        ("s3://key:secret@bucket/a", "environment"),
        ("a\0b", "NUL"),
        ("https://host/a\nb", "control"),
    ] {
        assert!(refused(text).contains(word), "{text:?}: {}", refused(text));
    }
}

#[test]
fn secrets_are_not_shown() {
    for text in [
        "https://me:secret@host/em?signature=secret",
        "precomputed://https://secret@host/em",
        "ftp://me:secret@host/em",
        "https://host/em?next=https://host/secret",
        "zarr://https://me:se/secret@host",
        "s3://key:secret@bucket/em",
        "https://me:secret@/em",
        "file://me:secret@host/em",
    ] {
        let said = match text.parse::<VolumeUrl>() {
            Ok(url) => format!("{url} {url:?} {:?}", url.place()),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!said.contains("secret"), "{said}");
    }
    assert_eq!(shown("https://me:pass@host:80/em?x=1"), "https://host:80/em?…");
    assert_eq!(shown("/a/path@with?all"), "/a/path@with?all");
}

#[cfg(feature = "remote")]
#[test]
fn users_and_passwords_become_a_header() {
    let header = |url| WebUrl::split(url).basic_authorization();
    // The example of RFC 7617, and lengths that need padding.
    assert_eq!(header("https://Aladdin:open%20sesame@host").as_deref(), Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
    assert_eq!(header("https://me@host").as_deref(), Some("Basic bWU6"));
    assert_eq!(header("https://me:1@host").as_deref(), Some("Basic bWU6MQ=="));
    assert_eq!(header("https://me:12@host").as_deref(), Some("Basic bWU6MTI="));
    assert_eq!(header("https://host"), None);
    assert_eq!(WebUrl::split("https://me:1@host:80/p?q").without_user(), "https://host:80/p?q");
    assert_eq!(WebUrl::split("https://me:1@host:80/p?q").host(), "host");
}

#[test]
fn places_are_compared_and_not_texts() {
    let same = |one: &str, other: &str| url(one).is_same_place(&url(other)) && url(other).is_same_place(&url(one));
    let here = std::env::current_dir().expect("a directory");
    let here = here.to_str().expect("a text");
    assert!(same("nowhere/em", &format!("{here}/nowhere/em/")));
    assert!(same("./nowhere/em", &format!("precomputed://{here}/./nowhere//em")));
    assert!(same("zarr://file://./nowhere/e%6D", "nowhere/em"));
    assert!(!same("nowhere/em", "nowhere/em2") && !same("/em", "s3://em/em"));
    for (one, other) in [
        ("https://Host/em/", "precomputed://https://me:secret@host:443/e%6d?key=1"),
        ("http://host:80/em", "http://host/em"),
        ("s3://bucket/em/", "zarr://s3://bucket/em"),
        ("https://storage.googleapis.com/bucket/deep/em", "gs://bucket/deep/em"),
    ] {
        assert!(same(one, other), "{one} is {other}");
    }
    for (one, other) in [
        ("https://host/em", "http://host/em"),
        ("https://host/em", "https://host:8443/em"),
        ("https://host/em", "https://host/EM"),
        ("s3://bucket/em", "gs://bucket/em"),
        ("s3://bucket/em", "s3://bucket/e%6d"),
        ("https://storage.googleapis.com/bucket/em", "gs://bucket/em2"),
    ] {
        assert!(!same(one, other), "{one} is not {other}");
    }
}

#[cfg(unix)]
#[test]
fn links_to_one_directory_are_the_same_place() {
    let root = std::env::temp_dir().join(format!("same-place-{}", std::process::id()));
    std::fs::create_dir_all(root.join("real/em")).expect("made");
    std::os::unix::fs::symlink(root.join("real"), root.join("link")).expect("a link");
    let at = |path: &str| VolumeUrl::local(root.join(path));
    assert!(at("real/em").is_same_place(&at("link/em")));
    assert!(at("real/em").is_same_place(&at("link/../real/em/")));
    assert!(!at("real/em").is_same_place(&at("link")));
    std::fs::remove_dir_all(&root).expect("ours");
}

#[cfg(feature = "remote")]
#[test]
fn identified_places_are_equal_for_equal_objects_without_secrets() {
    let place = |url: &str| super::identified(url, "0/1");
    for (url, same) in [
        ("http://host/v", "http://me:secret@HOST:80/v/"),
        ("https://host/v", "https://host:443/v"),
        ("https://host/v?key=1", "https://other:pass@host/v?key=1"),
        ("s3://bucket/v", "s3://bucket/v/"),
    ] {
        assert_eq!(place(url), place(same), "{url}");
    }
    let all = [
        "http://host/v",
        "https://host/v",
        "http://host:8080/v",
        "http://other/v",
        "http://host/w",
        "http://host/V",
        "http://host/v?key=1",
        "http://host/v?key=2",
        "http://host/v?",
        "http://other/v?key=1",
        "http://host/v%2Fw",
        "http://host/v/w",
        "s3://bucket/v",
        "s3://bucket/v?key=1",
        "gs://bucket/v",
    ];
    let places: std::collections::BTreeSet<String> = all.into_iter().map(place).collect();
    assert_eq!(places.len(), all.len(), "{places:?}");
    assert_eq!(super::identified("http://host/v", "w/0"), super::identified("http://host/v/w", "0"));
    assert_eq!(super::identified("http://host/v?k", "w/0"), super::identified("http://host/v/w?k", "0"));
    assert_eq!(super::identified("s3://bucket", ""), "\"s3://bucket\"");
    let text = place("https://me:password@host/v?signature=secret");
    assert!(["me", "password", "signature", "secret"].iter().all(|part| !text.contains(part)), "{text}");
    assert!(text.starts_with("\"https://host/v/0/1\" query "), "{text}");
}
