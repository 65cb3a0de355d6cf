//! Very many small arrays: created in an arena, sent to another process as 24 bytes each, attached and read there, and
//! kept by both.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use ndarray::Ix1;
use ndarray_shm::Arena;
use ndarray_shm::arena::{ArenaArray, ArenaHandle};
use serde_json::{Value, json};

use crate::segments::costs;
use crate::{Failable, fresh_name};

/// Creates and sends arrays: seconds per array for creating it, and for the whole way.
pub fn share(bytes: usize, count: usize) -> Failable<()> {
    crate::serve(|_| {
        let name = fresh_name();
        // Every block has a header beside its elements.
        let arena = Arena::create(name.as_str(), (count * (bytes + 512)) as u64)?;
        let words = ["arena-reader", &name, &count.to_string()].map(String::from);
        let program = std::env::current_exe()?;
        let mut reader = Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut send = BufWriter::new(reader.stdin.take().ok_or("piped above")?);
        let mut answers = BufReader::new(reader.stdout.take().ok_or("piped above")?).lines();
        answers.next().ok_or("the reader ended")??;
        let begin = Instant::now();
        let arrays = (0..count).map(|index| -> Failable<ArenaArray<f32, Ix1>> {
            let mut draft = arena.draft::<f32, _>(bytes / 4)?;
            draft.view_mut().fill(index as f32);
            Ok(draft.share()?)
        });
        let arrays = arrays.collect::<Failable<Vec<_>>>()?;
        let made = begin.elapsed().as_secs_f64();
        for array in &arrays {
            send.write_all(&array.handle().to_bytes())?;
        }
        send.flush()?;
        let there: Value = serde_json::from_str(&answers.next().ok_or("the reader ended")??)?;
        let whole = begin.elapsed().as_secs_f64();
        let (descriptors, mappings) = costs();
        drop((send, arrays));
        reader.wait()?;
        Ok(json!({
            "made": count,
            "seconds": made / count as f64,
            "whole": whole / count as f64,
            "descriptors": descriptors,
            "mappings": mappings,
            "there": there,
        }))
    })
}

/// Runs in the other process. Attaches to each array that arrives, reads and keeps it, and reports the cost.
pub fn read(name: &str, count: usize) -> Failable<()> {
    let arena = Arena::open(name)?;
    println!("ready");
    let mut receive = std::io::stdin().lock();
    let mut arrays = Vec::with_capacity(count);
    for index in 0..count {
        let mut handle = [0; ArenaHandle::BYTES];
        receive.read_exact(&mut handle)?;
        let array = arena.get::<f32, Ix1>(&ArenaHandle::from_bytes(handle)?)?;
        if array.view().iter().any(|value| *value != index as f32) {
            return Err(format!("array {index} is another").into());
        }
        arrays.push(array);
    }
    let (descriptors, mappings) = costs();
    println!("{}", json!({"descriptors": descriptors, "mappings": mappings}));
    // The arrays are kept until the first process closes the pipe.
    receive.read_to_end(&mut Vec::new())?;
    Ok(())
}
