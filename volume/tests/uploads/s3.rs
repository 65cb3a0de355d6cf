//! Uploads to a real S3 server, of arrays of this process and of shared ones.

use std::process::Command;

use ndarray::{ArrayD, IxDyn, ShapeBuilder as _, Slice};
use ndarray_shm::{Order, SharedArray, unlink};
use ndarray_shm_volume::markers::{self, Marker};
use ndarray_shm_volume::{
    Alignment, Bbox, Shard, UploadOptions, VolumeUrl, create_volume, open_volume, plan, upload_from_array,
    upload_from_shared_memory,
};

use crate::formats::{counted, downloaded, new_volume};
use crate::servers::{self, S3Server};

pub(crate) fn parts_are_written_and_marked() {
    if servers::python("uploads to S3").is_none() {
        return;
    }
    let server = S3Server::start();
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.envs(S3Server::environment(&server.endpoint())).env(crate::processes::ROLE, "s3");
    assert!(child.status().expect("its end").success());
}

/// The body of the test above, run in an environment in which `s3://test` is its server.
pub(crate) fn write_parts() {
    let url: VolumeUrl = "zarr://s3://test/volume".parse().expect("a URL");
    let place: VolumeUrl = "s3://test/markers".parse().expect("a URL");
    let mut array = counted([40, 24, 24]).into_dyn();
    let volume = create_volume(&url, &new_volume(&[40, 24, 24], false)).expect("a new volume");
    let all = volume.meta().domain();
    let work = format!("an array to {}", volume.identity());
    let parts = plan(volume.meta(), &all, 4).expect("a plan");
    for index in [2, 0, 0, 3] {
        let shard = Shard::new(index, 4).expect("a part");
        if markers::is_done(&place, shard, &work, &all).expect("an answer") {
            continue;
        }
        let part = parts[index].clone().expect("a part for each task");
        let done = upload_from_array(&*volume, &all, &array.view(), &UploadOptions::new().cutout(part.clone()));
        let done = done.expect("an upload");
        let (bbox, part, work) = (all.clone(), Some(part), work.clone());
        let marker = Marker { shard, work, bbox, part, chunks: done.stored as u64, bytes: done.bytes };
        markers::write(&place, &marker).expect("a marker");
    }
    let missing = markers::missing(&place, 4, &work, &all).expect("an answer");
    assert_eq!(missing, [Shard::new(1, 4).expect("a part")]);
    let part = parts[1].clone().expect("a part for each task");
    upload_from_array(&*volume, &all, &array.view(), &UploadOptions::new().cutout(part)).expect("the last part");
    assert_eq!(downloaded(&*open_volume(&url).expect("the volume"), &all), array);

    // From shared memory, in F order, with a region that cuts through chunks.
    let location = format!("upload-s3-{}", std::process::id());
    let shared =
        SharedArray::from_array(location.as_str(), &ArrayD::from_elem(IxDyn(&[9, 9, 9]).f(), 5_u32)).expect("an array");
    let options = UploadOptions::new().order(Order::F).alignment(Alignment::ReadModifyWrite).requests(4);
    let region: Bbox = "3:12,4:13,15:24".parse().expect("a box");
    let at = location.parse().expect("a location");
    let done = upload_from_shared_memory(&*volume, &region, &at, &options).expect("an upload");
    assert_eq!(done.stored, 2 * 2 * 2);
    array.slice_each_axis_mut(|axis| Slice::from([3..12, 4..13, 15..24][axis.axis.index()].clone())).fill(5);
    assert_eq!(downloaded(&*volume, &all), array);
    drop(shared);
    assert!(unlink(location.as_str()).expect("the array is still there"));
}
