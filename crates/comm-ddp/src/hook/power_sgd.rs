//! Gradients as products of matrices of low rank.
//!
//! Vogels, Karimireddy and Jaggi, PowerSGD: Practical Low-Rank Gradient Compression for Distributed
//! Optimization, NeurIPS 2019. One step of a power iteration approximates the average of the
//! gradients of all ranks; the next step starts from the result of the previous one.

use std::ops::Range;

use comm_core::{Comm, Host, Kernels, wire};

use super::host::{self, HostElements};
use super::matrix::MatrixShape;
use super::{CommHook, GradBucket, HookError};
use crate::{BucketPlan, Parameter};

/// Sends gradients of matrices as two factors of few columns: `PowerSGD`.
///
/// A parameter of shape `[n, ...]` is a matrix of `n` rows. It is sent as `rank * (rows + columns)`
/// elements instead of `rows * columns`, if that is at most half of them. All others, such as
/// biases, are averaged uncompressed in the same call. Each bucket takes two all-reduces.
///
/// The difference of a rank's gradient from the result is added to its gradient in the next step
/// (error feedback), and the first factor of a step is computed from the second factor of the
/// previous step. This takes 4 bytes per element of a matrix and of its second factor. If the loss
/// is scaled and the scale changes, the errors of the previous step still have the old scale.
///
/// The factors are computed in host memory in `f32`; gradients in other memory are copied there,
/// and those of other types converted. A matrix with an infinity or a NaN on any rank becomes NaN
/// on all, and its errors remain unchanged.
#[derive(Debug)]
pub struct PowerSgdHook<M: Kernels = Host> {
    rank: usize,
    start_step: u64,
    seed: u64,
    steps: u64,
    /// The gradients of each bucket of the plan.
    buckets: Vec<Vec<Member>>,
    /// The state of each slot, or `None` if it is not compressed.
    matrices: Vec<Option<Matrix>>,
    host: HostElements<M>,
    /// The left factors of a bucket, then the elements that are not compressed.
    lefts: Vec<f32>,
    rights: Vec<f32>,
    /// The memory in which the left and the right factors of each bucket are sent.
    sent: Vec<[Option<M::Buffer>; 2]>,
}

/// A gradient and its elements within its bucket.
#[derive(Debug)]
struct Member {
    slot: usize,
    elements: Range<usize>,
}

#[derive(Debug)]
struct Matrix {
    shape: MatrixShape,
    /// The difference of this rank's gradients from earlier results, for error feedback.
    error: Vec<f32>,
    /// The right factor of the previous step.
    right: Vec<f32>,
}

impl<M: Kernels> PowerSgdHook<M> {
    /// Approximates gradients by matrices of this rank, from the eleventh step on. Ranks of 1 to 4
    /// are usual. A rank of 0 compresses nothing.
    #[must_use]
    pub const fn new(rank: usize) -> Self {
        Self {
            rank,
            start_step: 10,
            seed: 0,
            steps: 0,
            buckets: Vec::new(),
            matrices: Vec::new(),
            host: HostElements::new(),
            lefts: Vec::new(),
            rights: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Sets the number of steps that are not compressed. Gradients change fast in the first steps,
    /// so errors do more harm there.
    #[must_use]
    pub const fn start_step(mut self, start_step: u64) -> Self {
        self.start_step = start_step;
        self
    }

    /// Sets the seed of the first right factors, the same on all ranks.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Adds the errors of earlier steps to the gradients of a bucket, and computes their left
    /// factors.
    fn compute_lefts(&mut self, bucket: usize) {
        self.lefts.clear();
        for (at, member) in self.buckets[bucket].iter().enumerate() {
            let Some(matrix) = self.matrices[member.slot].as_mut() else { continue };
            let elements = &mut self.host.elements[member.elements.clone()];
            elements.iter_mut().zip(&matrix.error).for_each(|(element, error)| *element += error);
            matrix.seed_zero_columns([self.seed, self.steps, bucket as u64, at as u64]);
            let left = append(&mut self.lefts, matrix.shape.left_len());
            matrix.shape.project(elements, &matrix.right, left);
        }
        for member in self.uncompressed(bucket) {
            self.lefts.extend_from_slice(&self.host.elements[member]);
        }
    }

    /// Computes the right factors of a bucket from the left ones, which become orthonormal, and
    /// stores the averages of the elements that are not compressed.
    fn compute_rights(&mut self, bucket: usize) {
        self.rights.clear();
        let mut start = 0;
        for member in &self.buckets[bucket] {
            let Some(matrix) = &self.matrices[member.slot] else { continue };
            let left = &mut self.lefts[start..start + matrix.shape.left_len()];
            start += left.len();
            let right = append(&mut self.rights, matrix.shape.right_len());
            if left.iter().all(|element| element.is_finite()) {
                matrix.shape.orthonormalize(left);
                matrix.shape.project_back(&self.host.elements[member.elements.clone()], left, right);
            } else {
                right.fill(f32::NAN);
            }
        }
        for member in self.uncompressed(bucket) {
            let end = start + member.len();
            self.host.elements[member].copy_from_slice(&self.lefts[start..end]);
            start = end;
        }
    }

    /// Stores the products of the factors, and the differences of this rank's gradients from them.
    fn expand(&mut self, bucket: usize) {
        let (mut lefts, mut rights) = (&self.lefts[..], &self.rights[..]);
        for member in &self.buckets[bucket] {
            let Some(matrix) = self.matrices[member.slot].as_mut() else { continue };
            let elements = &mut self.host.elements[member.elements.clone()];
            let (left, right);
            (left, lefts) = lefts.split_at(matrix.shape.left_len());
            (right, rights) = rights.split_at(matrix.shape.right_len());
            if right.iter().all(|element| element.is_finite()) {
                matrix.error.copy_from_slice(elements);
                matrix.shape.expand(left, right, elements);
                matrix.error.iter_mut().zip(elements).for_each(|(error, element)| *error -= *element);
                matrix.right.copy_from_slice(right);
            } else {
                elements.fill(f32::NAN);
            }
        }
    }

    /// Returns the elements of the gradients of a bucket that are not compressed.
    fn uncompressed(&self, bucket: usize) -> Vec<Range<usize>> {
        let members = self.buckets[bucket].iter().filter(|member| self.matrices[member.slot].is_none());
        members.map(|member| member.elements.clone()).collect()
    }
}

impl<M: Kernels> CommHook<M> for PowerSgdHook<M> {
    fn description(&self) -> String {
        let Self { rank, start_step, seed, .. } = self;
        format!("power_sgd rank={rank} start_step={start_step} seed={seed}")
    }

    fn average(&mut self, comm: &Comm<M>, bucket: &mut GradBucket<'_, M>) -> Result<(), HookError> {
        let index = bucket.index();
        // Every step averages all buckets in order.
        self.steps += u64::from(index == 0);
        let has_matrix = |member: &Member| self.matrices[member.slot].is_some();
        let is_compressed = self.buckets.get(index).is_some_and(|members| members.iter().any(has_matrix));
        if !is_compressed || self.steps <= self.start_step {
            return Ok(bucket.all_reduce(comm)?);
        }
        self.host.read(comm, bucket)?;
        self.compute_lefts(index);
        let [mut left, mut right] = self.sent.get_mut(index).map(std::mem::take).unwrap_or_default();
        host::average(comm, &mut left, &mut self.lefts)?;
        self.compute_rights(index);
        host::average(comm, &mut right, &mut self.rights)?;
        if let Some(sent) = self.sent.get_mut(index) {
            *sent = [left, right];
        }
        self.expand(index);
        Ok(self.host.write(comm, bucket)?)
    }

    fn set_plan(&mut self, parameters: &[Parameter], plan: &BucketPlan) {
        if self.matrices.is_empty() {
            self.matrices = parameters.iter().map(|parameter| Matrix::new(parameter, self.rank)).collect();
        }
        let member =
            |slot: &usize| Member { slot: *slot, elements: plan.locations()[*slot].elements.clone() };
        let members = plan.buckets().iter().map(|bucket| bucket.slots().iter().map(member).collect());
        self.buckets = members.collect();
        self.sent.clear();
        self.sent.resize_with(self.buckets.len(), Default::default);
    }

    fn rescale(&mut self, factor: f64) {
        let errors = self.matrices.iter_mut().flatten().flat_map(|matrix| &mut matrix.error);
        errors.for_each(|error| *error = (f64::from(*error) * factor) as f32);
    }
}

impl Matrix {
    /// Returns the state of a parameter, or `None` if it is not compressed.
    fn new(parameter: &Parameter, rank: usize) -> Option<Self> {
        let rows = *parameter.shape().first().filter(|_| parameter.shape().len() > 1)?;
        let columns = parameter.len().checked_div(rows)?;
        let shape = MatrixShape { rows, columns, rank: rank.min(rows).min(columns) };
        let is_worthwhile = 2 * (shape.left_len() + shape.right_len()) <= parameter.len();
        (shape.rank > 0 && is_worthwhile).then(|| Self {
            shape,
            error: vec![0.0; parameter.len()],
            right: vec![0.0; shape.right_len()],
        })
    }

    /// Replaces columns of the right factor that are zero by random ones: in the first step, and
    /// if gradients had a lower rank. All ranks draw the same ones.
    fn seed_zero_columns(&mut self, key: [u64; 4]) {
        let [seed, step, bucket, member] = key;
        for (number, column) in self.right.chunks_exact_mut(self.shape.columns).enumerate() {
            if column.iter().all(|element| *element == 0.0) {
                for (at, element) in column.iter_mut().enumerate() {
                    let bits = wire::digest([seed, step, bucket, member, number as u64, at as u64]);
                    *element = (bits >> 40) as f32 / 8_388_608.0 - 1.0;
                }
            }
        }
    }
}

/// Appends zeros, and returns them.
fn append(vector: &mut Vec<f32>, len: usize) -> &mut [f32] {
    let start = vector.len();
    vector.resize(start + len, 0.0);
    &mut vector[start..]
}
