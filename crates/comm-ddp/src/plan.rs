//! The assignment of gradients to buckets.
//!
//! Small gradients are sent together in buckets, because the latency of a collective exceeds the
//! transfer time of a bias. A bucket is sent when all its gradients are ready, so buckets are
//! filled in the order in which backward computes gradients, and the first one is small, so that
//! communication starts early. (Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3.) All
//! gradients of a bucket have one type, because they are one buffer of one collective.

use std::ops::Range;

use comm_core::DType;

use crate::Parameter;

/// The sizes in bytes at which a bucket is full. All ranks use the limits of rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketLimits {
    /// The limit of the first bucket.
    pub first_bytes: usize,
    /// The limit of the other buckets.
    pub bytes: usize,
}

impl BucketLimits {
    /// 1 MiB, then 25 MiB, as in PyTorch.
    pub const DEFAULT: Self = Self { first_bytes: 1 << 20, bytes: 25 << 20 };

    comm_core::setters!(first_bytes: usize, bytes: usize);
}

impl Default for BucketLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Gradients of one type that are reduced together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    slots: Vec<usize>,
    len: usize,
    dtype: DType,
}

impl Bucket {
    /// Returns the slots of the parameters, in the order of their gradients in the bucket.
    #[must_use]
    pub fn slots(&self) -> &[usize] {
        &self.slots
    }

    /// Returns the type of the elements of all gradients.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements of all gradients together.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the gradients have no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The location of a gradient.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Location {
    /// The bucket.
    pub bucket: usize,
    /// The position among the parameters of the bucket.
    pub position: usize,
    /// The range of elements in the bucket.
    pub elements: Range<usize>,
}

impl Location {
    /// The location of a gradient that does not exist, in a bucket that does not exist.
    pub const NOWHERE: Self = Self { bucket: usize::MAX, position: 0, elements: 0..0 };
}

/// An assignment of gradients to buckets: a pure function of parameters, order and limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    buckets: Vec<Bucket>,
    locations: Vec<Location>,
}

impl BucketPlan {
    /// Creates a plan that fills buckets with `parameters` in this `order` of slots. Equal
    /// arguments give equal plans on every rank.
    ///
    /// A bucket holds parameters of one type and is closed when it is full; one bucket per type is
    /// open at a time. Buckets are sent in the order in which they were opened.
    ///
    /// Slots that are missing in `order` are appended, and repeated or unknown slots are ignored,
    /// so every parameter is in the plan, except for those that are frozen.
    #[must_use]
    pub fn new(parameters: &[Parameter], order: &[usize], limits: BucketLimits) -> Self {
        let mut plan = Self { buckets: Vec::new(), locations: vec![Location::NOWHERE; parameters.len()] };
        // The bucket of each type that is not full yet.
        let mut open: Vec<usize> = Vec::new();
        for slot in order.iter().copied().chain(0..parameters.len()) {
            let Some(parameter) = parameters.get(slot) else { continue };
            if parameter.is_frozen() || plan.locations[slot].bucket != usize::MAX {
                continue;
            }
            let dtype = parameter.dtype();
            let number = open.iter().copied().find(|&open| plan.buckets[open].dtype == dtype);
            let number = number.unwrap_or_else(|| {
                plan.buckets.push(Bucket { slots: Vec::new(), len: 0, dtype });
                open.push(plan.buckets.len() - 1);
                plan.buckets.len() - 1
            });
            let bucket = &mut plan.buckets[number];
            let (position, elements) = (bucket.slots.len(), bucket.len..bucket.len + parameter.len());
            bucket.len = elements.end;
            bucket.slots.push(slot);
            plan.locations[slot] = Location { bucket: number, position, elements };
            if bucket.len * dtype.size() >= limits.for_bucket(number) {
                open.retain(|open| *open != number);
            }
        }
        plan
    }

    /// Returns the buckets, in the order in which they are sent.
    #[must_use]
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Returns the location of the gradient of every slot: [`Location::NOWHERE`] for parameters
    /// that are frozen.
    #[must_use]
    pub fn locations(&self) -> &[Location] {
        &self.locations
    }
}

impl BucketLimits {
    const fn for_bucket(self, bucket: usize) -> usize {
        if bucket == 0 { self.first_bytes } else { self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(lengths: &[usize]) -> Vec<Parameter> {
        let named = |(slot, len): (usize, &usize)| Parameter::new::<f32>(format!("{slot:02}"), [*len]);
        lengths.iter().enumerate().map(named).collect()
    }

    fn slots(plan: &BucketPlan) -> Vec<&[usize]> {
        plan.buckets().iter().map(Bucket::slots).collect()
    }

    #[test]
    fn buckets_close_when_they_reach_their_limit() {
        let limits = BucketLimits { first_bytes: 8, bytes: 24 };
        let plan = BucketPlan::new(&parameters(&[1, 1, 4, 3, 50, 1]), &[0, 1, 2, 3, 4, 5], limits);
        assert_eq!(slots(&plan), [&[0, 1][..], &[2, 3], &[4], &[5]]);
        assert_eq!(plan.buckets()[1].len(), 7);
        assert_eq!(plan.locations()[3], Location { bucket: 1, position: 1, elements: 4..7 });
    }

    #[test]
    fn buckets_follow_the_given_order() {
        let limits = BucketLimits { first_bytes: 1, bytes: 1 };
        let plan = BucketPlan::new(&parameters(&[1, 1, 1]), &[2, 0, 1], limits);
        assert_eq!(slots(&plan), [&[2][..], &[0], &[1]]);
    }

    #[test]
    fn every_parameter_has_its_own_elements_whatever_the_order() {
        let parameters = parameters(&[3, 0, 5, 1, 2]);
        for order in [&[][..], &[4, 4, 9], &[3, 1], &[0, 1, 2, 3, 4]] {
            for bytes in [1, 8, 12, 1000] {
                let plan = BucketPlan::new(&parameters, order, BucketLimits { first_bytes: bytes, bytes });
                let total: usize = plan.buckets().iter().map(Bucket::len).sum();
                assert_eq!(total, 11);
                for (number, bucket) in plan.buckets().iter().enumerate() {
                    let mut end = 0;
                    for (position, &slot) in bucket.slots().iter().enumerate() {
                        let location = &plan.locations()[slot];
                        assert_eq!((location.bucket, location.position), (number, position));
                        assert_eq!(location.elements, end..end + parameters[slot].len());
                        end = location.elements.end;
                    }
                    assert_eq!(end, bucket.len());
                }
            }
        }
    }

    #[test]
    fn a_bucket_holds_gradients_of_one_type() {
        let dtypes = [DType::F32, DType::BF16, DType::F32, DType::BF16, DType::F64, DType::F32];
        let named = |(slot, dtype): (usize, &DType)| Parameter::with_dtype(format!("{slot}"), [4], *dtype);
        let parameters: Vec<Parameter> = dtypes.iter().enumerate().map(named).collect();
        let plan = BucketPlan::new(&parameters, &[], BucketLimits { first_bytes: 32, bytes: 1000 });
        assert_eq!(slots(&plan), [&[0, 2][..], &[1, 3], &[4], &[5]]);
        for bucket in plan.buckets() {
            assert!(bucket.slots().iter().all(|&slot| dtypes[slot] == bucket.dtype()));
        }
        assert_eq!(plan.locations()[3], Location { bucket: 1, position: 1, elements: 4..8 });
    }

    #[test]
    fn frozen_parameters_are_in_no_bucket() {
        let mut parameters = parameters(&[3, 4, 5]);
        parameters[1] = parameters[1].clone().frozen();
        let plan = BucketPlan::new(&parameters, &[1, 2, 1, 0], BucketLimits::DEFAULT);
        assert_eq!(slots(&plan), [[2, 0]]);
        assert_eq!((plan.buckets()[0].len(), &plan.locations()[1]), (8, &Location::NOWHERE));
    }

    #[test]
    fn a_model_without_parameters_has_no_buckets() {
        assert!(BucketPlan::new(&[], &[], BucketLimits::DEFAULT).buckets().is_empty());
    }
}
