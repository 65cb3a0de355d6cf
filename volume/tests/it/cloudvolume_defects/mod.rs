//! Defects of CloudVolume's shared memory that are visible in its source, each as a promise that is kept here. A comment gives the
//! defect's number in our survey.

mod download;
