//! Filling memory that was filled before and is still mapped: the pools of this crate and of iceoryx2.

use std::time::Instant;

use ndarray_shm::pool::PoolOptions;
use serde_json::json;

use crate::Failable;
use crate::machine::Source;

pub fn fill(case: &str, bytes: usize) -> Failable<()> {
    let source = Source::new(bytes, 1)?;
    let mut once = recycler(case, bytes)?;
    once(&source)?;
    crate::serve(|_| {
        let begin = Instant::now();
        once(&source)?;
        Ok(json!({"seconds": begin.elapsed().as_secs_f64()}))
    })
}

type Once = Box<dyn FnMut(&Source) -> Failable<()>>;

/// Returns a function that takes memory, fills it and gives it back.
fn recycler(case: &str, bytes: usize) -> Failable<Once> {
    Ok(match case {
        #[cfg(feature = "iceoryx2")]
        "iceoryx2" => {
            let publisher = crate::messages::Iceoryx::new()?.publisher(&crate::fresh_name(), bytes)?;
            Box::new(move |source| {
                let mut sample = publisher.loan_slice_uninit(bytes)?;
                // SAFETY: the bytes are only written, and so need no initial value.
                source.copy_to(unsafe { &mut *(std::ptr::from_mut(sample.payload_mut()) as *mut [u8]) });
                Ok(())
            })
        }
        "ours" | "ours-published" => {
            let pool = PoolOptions::new().capacity(2 * bytes as u64).create()?;
            let is_published = case == "ours-published";
            Box::new(move |source| {
                let mut draft = pool.take::<u8, _>(bytes)?;
                source.copy_to(draft.view_mut().as_slice_mut().ok_or("in order")?);
                if is_published {
                    drop(draft.publish(crate::fresh_name())?);
                }
                Ok(())
            })
        }
        _ => return Err(format!("missing: {case} was not built").into()),
    })
}
