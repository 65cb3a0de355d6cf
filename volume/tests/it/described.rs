//! Descriptions of downloaded arrays: type, shape, order and source, without secrets.

use ndarray_shm::array::Description;
use ndarray_shm::{DType, Directory, Order};
use ndarray_shm_volume::demo::DemoSpec;
use ndarray_shm_volume::{Bbox, ChunkSource, Missing, NewVolume, VolumeFormat, VolumeUrl, create_volume, open_volume};

use crate::place::Place;

fn described(place: &Place) -> Option<Description> {
    place.backend.description(&place.location).expect("a plain array")
}

/// Whether this directory stores descriptions of arrays; on Linux every directory of the tests does.
fn describes(directory: &Directory) -> bool {
    let describes = directory.can_describe().expect("a test file");
    assert_eq!(describes, cfg!(target_os = "linux"), "{directory:?}");
    describes
}

fn source_of(place: &Place, format: &str, path: &str) -> String {
    format!("{format}://{}", place.path(path).display())
}

#[test]
fn downloaded_array_describes_its_source() {
    for place in Place::of_each_kind() {
        let spec = DemoSpec::new(&[40, 30, 20], &[16, 16, 16], DType::U16);
        let volume = place.volume(&spec);
        let bbox = Bbox::parse("10:30,:,5:", &Bbox::whole(spec.shape())).expect("a region");
        place.download(&*volume, &bbox, &place.options().order(Order::F)).expect("a download");
        assert_eq!(described(&place).is_some(), describes(&place.backend));
        let Some(found) = described(&place) else { continue };
        assert_eq!((found.dtype(), found.shape(), found.order()), (DType::U16, &[20, 30, 15][..], Order::F));
        assert_eq!(found.note("source"), Some(source_of(&place, "zarr", "volume").as_str()));
        assert_eq!(found.note("bbox"), Some("10:30,0:30,5:20"));
    }
}

#[test]
fn description_contains_resolution_and_unit() {
    let place = Place::new();
    if !describes(&place.backend) {
        return; // without descriptions only the test above applies
    }
    for (format, name) in [(VolumeFormat::Precomputed, "precomputed"), (VolumeFormat::Zarr, "zarr")] {
        let mut new = NewVolume::new(format, &[8, 8, 8, 1], &[8, 8, 8, 1], DType::U8);
        new.resolution = if name == "zarr" { vec![4.0, 4.0, 40.5, 1.0] } else { vec![4.0, 4.0, 40.5] };
        let url = VolumeUrl::local(place.path(name)).format(format);
        create_volume(&url, &new).expect(name);
        let volume: Box<dyn ChunkSource> = open_volume(&url).expect(name);
        let options = place.options().replace(true).missing(Missing::Fill);
        place.download(&*volume, &volume.meta().domain(), &options).expect(name);
        let found = described(&place).expect(name);
        assert_eq!(found.note("source"), Some(source_of(&place, name, name).as_str()));
        let resolution = if name == "zarr" { "4 4 40.5 1" } else { "4 4 40.5" };
        assert_eq!((found.note("resolution"), found.note("unit")), (Some(resolution), Some("nm")), "{found:?}");
        assert_eq!(found.note("scale").is_some(), name == "precomputed");
    }
}

#[cfg(feature = "http")]
#[test]
fn description_omits_secrets_of_the_url() {
    let Some(_python) = crate::servers::python("description_omits_secrets_of_the_url") else {
        panic!("NDSHM_TEST_PYTHON is not set: run scripts/test")
    };
    let place = Place::new();
    let spec = DemoSpec::new(&[16, 16], &[16, 16], DType::U8);
    drop(place.volume(&spec));
    let server = crate::servers::HttpServer::plain(&place.path("volume"));
    let url = format!("{}?key=secret", server.url());
    let url = url.replace("http://", "http://me:word@");
    let volume = open_volume(&url).expect("a volume");
    place.download(&*volume, &volume.meta().domain(), &place.options()).expect("a download");
    let found = described(&place);
    assert_eq!(found.is_some(), describes(&place.backend));
    if let Some(found) = found {
        assert_eq!(found.note("source"), Some(format!("zarr://{}", server.url()).as_str()));
    }
}
