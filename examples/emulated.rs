//! The same program on real shared memory and on files: the semantics are the same, also where there is no `/dev/shm`.
//!
//! ```sh
//! cargo run --example emulated
//! EMULATE_SHM=1 cargo run --example emulated        # real shared memory is not tried
//! ```

use ndarray_shm::{CreateOptions, Directory, SharedArray, default_backend};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for directory in [default_backend()?, Directory::emulated()?] {
        let name = format!("emulated-{}", std::process::id());
        let array =
            CreateOptions::<SharedArray<u16, _>>::new().backend(directory.clone()).create(name.as_str(), (3, 4))?;
        array.write()?.fill(7);
        println!("{}: {} bytes in {}", directory.name(), array.len() * 2, directory.path().join(&name).display());

        assert!(directory.attached(&name)?);
        assert!(directory.unlink(&name)?);
        assert_eq!(array.raw_dim(), ndarray::Ix2(3, 4)); // attached processes keep the elements
    }
    Ok(())
}
