//! Uploads: elements that arrive, refused uploads, concurrent uploads, killed uploads.
//!
//! This binary is also the processes that its tests start: with a role in the environment it plays the role instead of
//! running tests.

mod broken;
mod changed;
mod formats;
mod parts;
#[cfg(target_os = "linux")] // where CloudVolume has real shared memory
mod peers;
#[path = "../place/mod.rs"]
mod place;
mod processes;
mod raw;
mod regions;
#[cfg(feature = "s3")]
mod s3;
#[path = "../servers/mod.rs"]
mod servers;
#[path = "../../../tests/it/support/start.rs"]
mod start;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

macro_rules! trials {
    ($($module:ident :: $test:ident,)*) => {
        vec![$(Trial::test(concat!(stringify!($module), "::", stringify!($test)), || {
            $module::$test();
            Ok::<(), Failed>(())
        }),)*]
    };
}

fn main() -> ExitCode {
    if let Some(end) = processes::role() {
        return end;
    }
    #[allow(unused_mut)] // some builds add no further tests
    let mut tests = trials![
        regions::every_element_arrives_for_any_shape_and_order,
        regions::arrays_of_this_process_may_have_any_strides,
        regions::invalid_uploads_are_refused_before_anything_is_stored,
        regions::cutout_crops_an_array_to_the_volume,
        regions::background_objects_are_skipped_and_removed,
        regions::repeated_upload_stores_the_same_objects,
        regions::a_file_is_read_and_never_changed,
        regions::first_error_names_its_object_and_ends_all_threads,
        regions::upload_reports_progress_and_can_be_stopped,
        regions::remote_store_gets_concurrent_requests,
        regions::upload_waits_for_a_writer_of_the_array,
        regions::writers_wait_until_the_upload_ends,
        regions::location_with_a_path_is_refused,
        processes::processes_writing_halves_of_objects_lose_nothing,
        processes::without_a_common_lock_elements_are_lost,
        processes::whole_write_waits_for_a_partial_change,
        processes::killed_partial_change_blocks_no_other_upload,
        processes::same_call_finishes_a_killed_upload,
        processes::killed_lock_holder_releases_its_locks,
        parts::four_tasks_write_the_whole_array_in_any_order,
        changed::shard_stored_meanwhile_is_not_removed_as_background,
        changed::rewritten_description_keeps_the_same_locks,
        changed::new_chunk_removes_copies_of_other_compressions,
        changed::scale_with_several_chunk_sizes_is_not_writable,
        changed::precomputed_volume_is_not_created_over_other_files,
        formats::new_volume_is_filled_from_shared_memory,
        formats::concurrent_changes_of_the_same_shards_lose_nothing,
        formats::background_of_a_zarr_volume_is_not_stored,
    ];
    #[cfg(feature = "s3")]
    tests.extend::<Vec<Trial>>(trials![s3::parts_are_written_and_marked,]);
    #[cfg(target_os = "linux")]
    tests.extend::<Vec<Trial>>(trials![peers::cases_of_cloudvolumes_parallel_uploads_arrive,]);
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
