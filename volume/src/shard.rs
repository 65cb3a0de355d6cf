//! This machine's part of the work: given by the caller, or by the scheduler that started the process.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// One of several parts, counted from 0: written `0/4` to `3/4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// Returns part `index` of `count`.
    ///
    /// # Errors
    ///
    /// [`Shard`](Error::Shard) unless `index` is less than `count`.
    pub fn new(index: usize, count: usize) -> Result<Self> {
        if index < count {
            return Ok(Self { index, count });
        }
        Err(wrong(format!("{index}/{count}"), "the parts are 0/N to N-1/N"))
    }

    /// Returns the part of this process, from the environment variables of its scheduler.
    ///
    /// - A SLURM array task: `SLURM_ARRAY_TASK_ID`, `_MIN`, `_MAX`, `_COUNT` and, if it is set, `_STEP`. The array must
    ///   have no gaps, and as many tasks as `count`, if that is given.
    /// - A pod of a Kubernetes Indexed Job: `JOB_COMPLETION_INDEX`. No variable has the number of pods: `count` must be
    ///   given.
    ///
    /// # Errors
    ///
    /// [`Shard`](Error::Shard): neither scheduler's variables are set, or both are, or they do not determine the part.
    /// This never guesses: a part done twice costs time, a part left out costs data.
    pub fn from_environment(count: Option<usize>) -> Result<Self> {
        Self::from_variables(count, |name| std::env::var(name).ok())
    }

    /// Like [`from_environment`](Self::from_environment), with `variable` as the look-up of variables.
    ///
    /// # Errors
    ///
    /// Those of [`from_environment`](Self::from_environment).
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm_volume::Shard;
    ///
    /// let pod = |name: &str| (name == "JOB_COMPLETION_INDEX").then(|| "3".to_owned());
    /// assert_eq!(Shard::from_variables(Some(8), pod)?.to_string(), "3/8");
    /// # Ok::<(), ndarray_shm_volume::Error>(())
    /// ```
    pub fn from_variables(count: Option<usize>, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        // Some schedulers and scripts set unused variables to empty text.
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        match (variable(SLURM_ID), variable(KUBERNETES_INDEX)) {
            (Some(_), Some(_)) => Err(wrong(
                "auto",
                format!("both {SLURM_ID} and {KUBERNETES_INDEX} are set: say which part is meant, as INDEX/COUNT"),
            )),
            (None, None) => Err(wrong(
                "auto",
                format!(
                    "neither {SLURM_ID} (of a SLURM array) nor {KUBERNETES_INDEX} (of a Kubernetes Indexed Job) is set: say which \
                     part is meant, as INDEX/COUNT"
                ),
            )),
            (Some(id), None) => slurm(number(SLURM_ID, &id)?, count, &variable),
            (None, Some(index)) => {
                let index = number(KUBERNETES_INDEX, &index)?;
                let Some(count) = count else {
                    let reason = format!(
                        "{KUBERNETES_INDEX} is {index}, but of how many is in no variable: give the number of parts"
                    );
                    return Err(wrong("auto", reason));
                };
                Self::new(index, count).map_err(|_| {
                    wrong(
                        "auto",
                        format!(
                            "{KUBERNETES_INDEX} is {index}, but there are only {count} parts: is that `completions`?"
                        ),
                    )
                })
            }
        }
    }

    /// Returns the number of the part, counted from 0.
    pub fn index(self) -> usize {
        self.index
    }

    /// Returns the number of parts.
    pub fn count(self) -> usize {
        self.count
    }
}

const SLURM_ID: &str = "SLURM_ARRAY_TASK_ID";
const SLURM_MIN: &str = "SLURM_ARRAY_TASK_MIN";
const SLURM_MAX: &str = "SLURM_ARRAY_TASK_MAX";
const SLURM_COUNT: &str = "SLURM_ARRAY_TASK_COUNT";
const SLURM_STEP: &str = "SLURM_ARRAY_TASK_STEP";
const KUBERNETES_INDEX: &str = "JOB_COMPLETION_INDEX";

/// Returns the part of a SLURM task. The tasks of the array must be MIN, MIN + STEP, .., MAX: in an array with gaps a
/// task's position is unknown.
fn slurm(id: usize, given: Option<usize>, variable: &impl Fn(&str) -> Option<String>) -> Result<Shard> {
    let needed = |name: &str| -> Result<usize> {
        let value = variable(name).ok_or_else(|| wrong("auto", format!("{SLURM_ID} is set, but {name} is not")))?;
        number(name, &value)
    };
    let (min, max, count) = (needed(SLURM_MIN)?, needed(SLURM_MAX)?, needed(SLURM_COUNT)?);
    let step = variable(SLURM_STEP).map_or(Ok(1), |step| number(SLURM_STEP, &step))?;
    let described =
        format!("{SLURM_ID}={id} {SLURM_MIN}={min} {SLURM_MAX}={max} {SLURM_COUNT}={count} {SLURM_STEP}={step}");
    let whole =
        step > 0 && min <= id && id <= max && (id - min).is_multiple_of(step) && (max - min).is_multiple_of(step);
    if !whole || (max - min) / step + 1 != count {
        let reason = format!(
            "the array has gaps, so that the place of a task in it is not known ({described}): submit it as --array=0-N, or say \
             which part is meant, as INDEX/COUNT"
        );
        return Err(wrong("auto", reason));
    }
    if let Some(given) = given.filter(|given| *given != count) {
        let reason = format!(
            "{given} parts are wanted, but the array has {count} tasks ({described}): submit it as --array=0-{}, as often as you \
             like (parts that are marked done end at once), or say which part is meant, as INDEX/COUNT",
            given.saturating_sub(1)
        );
        return Err(wrong("auto", reason));
    }
    if count == 1 && given.is_none() {
        let reason = format!(
            "the array has one task only ({described}): if it is one of a larger array that is submitted again, say which part is meant, \
             as INDEX/COUNT; if it is to do everything, say that there is 1 part"
        );
        return Err(wrong("auto", reason));
    }
    Shard::new((id - min) / step, count)
}

fn number(name: &str, value: &str) -> Result<usize> {
    let value = value.trim();
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| value.parse().ok()).flatten();
    number.ok_or_else(|| wrong("auto", format!("{name} is `{value}`, which is no whole number")))
}

fn wrong(part: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::Shard { part: part.into(), reason: reason.into() }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = |part: &str| -> Option<usize> {
            // `parse` alone would accept "+5".
            part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok()).flatten()
        };
        match text.split_once('/').and_then(|(index, count)| Some((digits(index)?, digits(count)?))) {
            Some((index, count)) => Self::new(index, count),
            None => Err(wrong(text, "a part is written INDEX/COUNT: 0/4, 1/4, 2/4, 3/4")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(count: Option<usize>, variables: &[(&str, &str)]) -> Result<String> {
        let lookup =
            |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned());
        Shard::from_variables(count, lookup).map(|shard| shard.to_string())
    }

    fn array(id: &str, min: &str, max: &str, count: &str, step: &str, given: Option<usize>) -> Result<String> {
        let all = [(SLURM_ID, id), (SLURM_MIN, min), (SLURM_MAX, max), (SLURM_COUNT, count), (SLURM_STEP, step)];
        shard(given, &all)
    }

    #[test]
    fn part_parses_as_it_prints() {
        for text in ["0/1", "3/4", "15/16"] {
            assert_eq!(text.parse::<Shard>().expect(text).to_string(), text);
        }
        for text in ["", "/", "4/4", "1/0", "0/0", "-1/4", "+1/4", "1/4/4", "1", "1 / 4", "99999999999999999999/4"] {
            assert!(matches!(text.parse::<Shard>(), Err(Error::Shard { .. })), "{text}");
        }
    }

    #[test]
    fn slurm_task_knows_its_part() {
        assert_eq!(array("0", "0", "3", "4", "1", None).expect("the first"), "0/4");
        assert_eq!(array("3", "0", "3", "4", "", None).expect("the last, without a step"), "3/4");
        assert_eq!(array("7", "4", "7", "4", "1", Some(4)).expect("from 4 on"), "3/4");
        assert_eq!(array("13", "1", "13", "4", "4", None).expect("a step of 4"), "3/4");
        assert_eq!(array("5", "5", "5", "1", "1", Some(1)).expect("the only one"), "0/1");
    }

    #[test]
    fn ambiguous_environment_is_an_error() {
        let message = |found: Result<String>| match found.expect_err("it is not clear") {
            Error::Shard { part, reason } => format!("{part} {reason}"),
            error => panic!("{error}"),
        };
        assert!(message(shard(None, &[])).contains("neither SLURM_ARRAY_TASK_ID"));
        assert!(message(shard(Some(4), &[(SLURM_ID, " "), (KUBERNETES_INDEX, "")])).contains("neither"));
        assert!(message(shard(Some(4), &[(SLURM_ID, "1"), (KUBERNETES_INDEX, "1")])).contains("both"));
        assert!(message(shard(None, &[(SLURM_ID, "1")])).contains("SLURM_ARRAY_TASK_MIN is not"));
        assert!(message(shard(None, &[(SLURM_ID, "one")])).contains("`one`, which is no whole number"));
        assert!(message(shard(Some(4), &[(KUBERNETES_INDEX, "-1")])).contains("`-1`"));
        assert!(message(shard(None, &[(KUBERNETES_INDEX, "1")])).contains("give the number of parts"));
        assert!(message(shard(Some(4), &[(KUBERNETES_INDEX, "4")])).contains("only 4 parts"));
        assert!(message(array("5", "1", "7", "3", "1", None)).contains("gaps"), "--array=1,5,7");
        assert!(message(array("6", "1", "13", "4", "4", None)).contains("gaps"), "between two steps");
        assert!(message(array("8", "0", "7", "8", "1", None)).contains("gaps"), "beyond the last");
        assert!(message(array("0", "0", "7", "8", "0", None)).contains("gaps"), "a step of 0");
        assert!(message(array("0", "7", "0", "8", "1", None)).contains("gaps"), "backwards");
        // A single failed task that is submitted again must not take all parts.
        assert!(message(array("5", "5", "5", "1", "1", Some(16))).contains("--array=0-15"));
        assert!(message(array("5", "5", "5", "1", "1", None)).contains("one task only"));
        assert_eq!(shard(Some(8), &[(KUBERNETES_INDEX, "7")]).expect("the last pod"), "7/8");
    }
}
