//! Descriptions, indexes and chunks that are damaged, or made to harm: an error that names the file, no panic, bounded memory.
