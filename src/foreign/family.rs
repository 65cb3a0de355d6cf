//! Families: which program makes which names. A name is a hint for people and for choosing; it proves nothing.

/// The programs that make names of the same kind: one of [`families`].
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Family {
    /// Its short name, by which a program chooses it.
    pub name: &'static str,
    /// The names. `*` stands for any text, `?` for one character, and `#` for a digit; at the last of several `#` more
    /// digits may follow.
    pub patterns: &'static [&'static str],
    /// Whether such names live without a holder on purpose, so that no holder does not mean that the program is done.
    pub lives_unheld: bool,
    /// Whether the names are folders; each file in them is looked at by itself.
    pub is_folder: bool,
}

/// All families, the one of all other names last.
const FAMILIES: &[Family] = &[
    // aten/src/ATen/MapAllocator.cpp: `NewProcessWideShmHandle`, "/torch_" with process, random number and counter.
    family("torch", &["torch_#_*"]),
    // Lib/multiprocessing/shared_memory.py: `_SHM_NAME_PREFIX`. vLLM's rings and many other programs use it too.
    family("python", &["psm_*"]),
    // cloudvolume/cloudvolume.py: `generate_shared_memory_location`. A user asks for the arrays, and unlinks them.
    Family { lives_unheld: true, ..family("cloudvolume", &["cloudvolume-*"]) },
    // vllm/v1/kv_offload: "/dev/shm/vllm_offload_{instance_id}.mmap".
    family("vllm", &["vllm_offload_*"]),
    // sglang/srt/utils/stale_shm_cleanup.py: `_SGL_SHM_PREFIX` and `_ORPHAN_PREFIXES`.
    family("sglang", &["sgl_shm_*", "sglang_loads_*"]),
    // csrc/cpu/comm/shm.cpp: `SHM_BUFFER_NAME`, "deepspeed_allreduce_buffer", with user, port and rank.
    family("deepspeed", &["deepspeed_*"]),
    // python_backend/src/python_be.cc: `shared_memory_region_prefix`.
    family("triton", &["triton_python_backend_shm_region_*"]),
    // streaming/base/constant.py and shared/prefix.py: six digits and one of these words.
    family(
        "mosaicml",
        &[
            "######_locals",
            "######_barrier",
            "######_next_epoch",
            "######_cache_usage",
            "######_shard_states",
            "######_shard_access_times",
            "######_resume",
            "######_epoch_shape*",
            "######_epoch_data*",
        ],
    ),
    // ray/object_manager/plasma: the template "/dev/shm/plasmaXXXXXX" of `create_buffer`.
    family("ray", &["plasma??????"]),
    // nccl/src/misc/shmutils.cc: the template "/dev/shm/nccl-XXXXXX".
    family("nccl", &["nccl-*"]),
    // boost/interprocess/detail/shared_dir_helpers.hpp. Names in shared memory are those of its users, and stay for
    // them.
    Family { lives_unheld: true, ..family("boost", &["boost_interprocess*"]) },
    // src/backend/storage/ipc/dsm_impl.c: "/PostgreSQL.%u". Pinned segments wait for the next process.
    Family { lives_unheld: true, ..family("postgresql", &["PostgreSQL.*"]) },
    // joblib/_memmapping_reducer.py: `register_new_context`, with the process. A dumped file has no holder until a
    // worker opens it.
    Family { is_folder: true, ..family("joblib", &["joblib_memmapping_folder_#_*"]) },
    // sem_open(3): "sem." and the name; Lib/multiprocessing/synchronize.py: `_make_name`. Programs open and close them
    // as they need them.
    Family { lives_unheld: true, ..family("semaphore", &["sem.*", "mp-*"]) },
    family("other", &["*"]),
];

const fn family(name: &'static str, patterns: &'static [&'static str]) -> Family {
    Family { name, patterns, lives_unheld: false, is_folder: false }
}

/// Returns all families. The last one, `other`, is that of all names that no other has.
///
/// # Examples
///
/// ```
/// use ndarray_shm::foreign::families;
///
/// let python = families().iter().find(|family| family.name == "python").unwrap();
/// assert_eq!(python.patterns, ["psm_*"]);
/// ```
pub fn families() -> &'static [Family] {
    FAMILIES
}

/// Returns the family of a name.
pub(super) fn of(name: &str) -> &'static Family {
    let has = |family: &&Family| family.patterns.iter().any(|pattern| matches(pattern, name));
    // The last one has every name.
    FAMILIES.iter().find(has).unwrap_or(&FAMILIES[FAMILIES.len() - 1])
}

/// Returns the process in the name of a joblib folder.
pub(super) fn creator(folder: &str) -> Option<u32> {
    folder.strip_prefix("joblib_memmapping_folder_")?.split('_').next()?.parse().ok()
}

/// Whether a name matches a pattern of [`Family::patterns`].
fn matches(pattern: &str, name: &str) -> bool {
    let Some(first) = pattern.chars().next() else { return name.is_empty() };
    let rest = &pattern[first.len_utf8()..];
    let digits = name.len() - name.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    match first {
        '*' => name.char_indices().map(|(at, _)| at).chain([name.len()]).any(|at| matches(rest, &name[at..])),
        '#' if rest.starts_with('#') => digits > 0 && matches(rest, &name[1..]),
        '#' => digits > 0 && matches(rest, &name[digits..]),
        _ => match name.chars().next() {
            Some(letter) if first == '?' || first == letter => matches(rest, &name[letter.len_utf8()..]),
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_belong_to_the_family_of_their_program() {
        for (name, family) in [
            ("torch_1234_56789_0", "torch"),
            ("torch_x_1", "other"),
            ("torch_1234", "other"),
            ("psm_0badcafe", "python"),
            ("cloudvolume-shm-2f", "cloudvolume"),
            ("vllm_offload_7.mmap", "vllm"),
            ("sgl_shm_mm_1234_abcd1234", "sglang"),
            ("deepspeed_allreduce_buffer_0", "deepspeed"),
            ("triton_python_backend_shm_region_6", "triton"),
            ("000000_locals", "mosaicml"),
            ("1234567_barrier", "mosaicml"),
            ("00000_locals", "other"),
            ("plasmaAbC123", "ray"),
            ("plasma", "other"),
            ("nccl-vzIpS6", "nccl"),
            ("joblib_memmapping_folder_3714_d154_ca7e", "joblib"),
            ("sem.mp-x", "semaphore"),
            ("mp-8f", "semaphore"),
            ("PostgreSQL.1804289383", "postgresql"),
            ("é", "other"),
            ("", "other"),
        ] {
            assert_eq!(of(name).name, family, "{name}");
        }
        assert_eq!(FAMILIES.last().map(|family| family.name), Some("other"));
    }

    #[test]
    fn process_of_a_joblib_folder_is_read() {
        assert_eq!(creator("joblib_memmapping_folder_3714_d1_ca"), Some(3714));
        for other in ["joblib_memmapping_folder_", "joblib_memmapping_folder_x_1", "torch_1_2_3"] {
            assert_eq!(creator(other), None, "{other}");
        }
    }
}
