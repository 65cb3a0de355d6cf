//! Uploads: what arrives, what is refused, what many at once and the death of any of them come to.
//!
//! The binary is also the processes that its tests start: with a role in the environment it plays that instead of running tests.

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
    #[allow(unused_mut)] // where there are no more
    let mut tests = trials![
        regions::every_element_arrives_whatever_the_shapes_and_orders,
        regions::arrays_of_this_process_may_have_any_strides,
        regions::what_is_wrong_is_refused_before_anything_is_stored,
        regions::an_array_that_reaches_beyond_the_volume_is_cropped_by_a_cutout,
        regions::background_is_left_out_and_taken_away,
        regions::the_same_upload_again_stores_the_same_objects,
        regions::a_file_is_read_and_never_changed,
        regions::the_first_error_names_its_object_and_ends_all_threads,
        regions::an_upload_tells_how_far_it_is_and_can_be_stopped,
        regions::a_remote_store_gets_many_requests_at_a_time,
        regions::who_writes_to_the_array_is_waited_for,
        regions::writers_are_kept_out_until_the_end,
        regions::a_location_is_a_name_and_no_path,
        processes::two_processes_that_write_halves_of_the_same_objects_lose_nothing,
        processes::without_a_common_lock_they_would,
        processes::what_is_stored_whole_waits_for_who_changes_a_part,
        processes::who_is_killed_while_changing_a_part_keeps_nobody_waiting,
        processes::a_killed_upload_is_finished_by_the_same_call,
        processes::a_holder_of_locks_that_is_killed_leaves_them_free,
        parts::four_tasks_together_write_the_whole_in_any_order,
        changed::a_shard_that_another_stored_is_not_taken_away_as_background,
        changed::two_that_found_another_description_share_their_locks,
        changed::a_chunk_that_was_packed_otherwise_does_not_outlive_its_successor,
        changed::a_scale_of_several_chunk_sizes_is_not_written,
        changed::a_precomputed_volume_is_not_made_on_top_of_others,
        formats::a_new_volume_is_made_from_an_array_in_shared_memory,
        formats::two_that_change_the_same_shards_lose_nothing,
        formats::background_of_a_zarr_volume_is_not_stored,
    ];
    #[cfg(feature = "s3")]
    tests.extend::<Vec<Trial>>(trials![s3::parts_are_written_and_marked,]);
    #[cfg(target_os = "linux")]
    tests.extend::<Vec<Trial>>(trials![peers::what_cloudvolume_uploads_in_parallel_arrives,]);
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
