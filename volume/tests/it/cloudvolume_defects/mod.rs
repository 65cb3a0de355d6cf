//! Defects of CloudVolume's shared memory that are visible in its source. Each test checks that this crate lacks one of
//! them; a comment gives the defect's number in a survey.

mod download;
