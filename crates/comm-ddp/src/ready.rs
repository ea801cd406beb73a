//! Determines the buckets that can be sent, given the gradients that are ready, without threads or
//! communication.

use std::ops::Range;

use crate::BucketPlan;

/// The state of one step: gradients become ready in any order, and buckets are released in the
/// plan's order.
///
/// Collectives must be called in the same order on every rank, but ranks may compute their
/// gradients in different orders. So a full bucket waits for those before it.
#[derive(Debug, Clone)]
pub(crate) struct ReadyQueue {
    /// The bucket of every slot.
    bucket_of: Vec<usize>,
    /// The number of parameters of every bucket.
    sizes: Vec<usize>,
    ready: Vec<bool>,
    /// The number of gradients for which every bucket still waits.
    pending: Vec<usize>,
    /// The first bucket that was not released.
    next: usize,
    /// Slots in the order in which they became ready.
    order: Vec<usize>,
}

/// The effect of a gradient that became ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The bucket that it filled.
    pub(crate) filled: Option<usize>,
    /// The buckets to send now.
    pub(crate) released: Range<usize>,
}

impl ReadyQueue {
    /// Creates a queue for the buckets of `plan`, at the start of a step.
    pub(crate) fn new(plan: &BucketPlan) -> Self {
        let bucket_of: Vec<usize> = plan.locations().iter().map(|location| location.bucket).collect();
        let sizes: Vec<usize> = plan.buckets().iter().map(|bucket| bucket.slots().len()).collect();
        let ready = vec![false; bucket_of.len()];
        let order = Vec::with_capacity(bucket_of.len());
        Self { ready, pending: sizes.clone(), next: 0, order, bucket_of, sizes }
    }

    /// Starts the next step.
    pub(crate) fn reset(&mut self) {
        self.ready.fill(false);
        self.pending.clone_from(&self.sizes);
        self.next = 0;
        self.order.clear();
    }

    /// Returns whether the gradient of this slot is ready; false for a slot that does not exist.
    pub(crate) fn is_ready(&self, slot: usize) -> bool {
        self.ready.get(slot).copied().unwrap_or(false)
    }

    /// Marks the gradient of a slot as ready. Returns `None` and changes nothing if it already is
    /// or does not exist.
    pub(crate) fn mark(&mut self, slot: usize) -> Option<Progress> {
        let ready = self.ready.get_mut(slot).filter(|ready| !**ready)?;
        *ready = true;
        self.order.push(slot);
        let bucket = self.bucket_of[slot];
        self.pending[bucket] -= 1;
        let filled = (self.pending[bucket] == 0).then_some(bucket);
        Some(Progress { filled, released: self.release() })
    }

    /// Ends the step and returns the buckets that remain to be sent, full or not.
    pub(crate) fn finish(&mut self) -> Range<usize> {
        let released = self.next..self.sizes.len();
        self.next = self.sizes.len();
        released
    }

    /// Returns whether any bucket of this step was released.
    pub(crate) const fn has_released(&self) -> bool {
        self.next > 0
    }

    /// Returns the ready slots, in the order in which they became ready.
    pub(crate) fn order(&self) -> &[usize] {
        &self.order
    }

    fn release(&mut self) -> Range<usize> {
        let first = self.next;
        while self.pending.get(self.next) == Some(&0) {
            self.next += 1;
        }
        first..self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BucketLimits, Parameter};

    /// Two parameters in the first bucket, then two, then one.
    fn plan() -> BucketPlan {
        let parameters: Vec<_> = (0..5).map(|slot| Parameter::new::<f32>(slot.to_string(), [1])).collect();
        BucketPlan::new(&parameters, &[4, 3, 2, 1, 0], BucketLimits { first_bytes: 8, bytes: 8 })
    }

    /// Returns every order of `items`.
    fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
        if items.is_empty() {
            return vec![Vec::new()];
        }
        let with_first = |at: usize| {
            let mut rest = items.to_vec();
            let first = rest.remove(at);
            permutations(&rest).into_iter().map(move |tail| [vec![first], tail].concat())
        };
        (0..items.len()).flat_map(with_first).collect()
    }

    /// Returns the number of buckets released once these slots are ready: the longest run of full
    /// buckets.
    fn expected(plan: &BucketPlan, ready: &[usize]) -> usize {
        let full = |slots: &[usize]| slots.iter().all(|slot| ready.contains(slot));
        plan.buckets().iter().take_while(|bucket| full(bucket.slots())).count()
    }

    #[test]
    fn buckets_are_released_once_and_in_order_whatever_order_gradients_come_in() {
        let plan = plan();
        let mut queue = ReadyQueue::new(&plan);
        let orders = permutations(&[0, 1, 2, 3, 4]);
        assert_eq!(orders.len(), 120);
        for order in &orders {
            queue.reset();
            let mut released = 0;
            for count in 1..=order.len() {
                let progress = queue.mark(order[count - 1]).unwrap();
                assert_eq!(progress.released.start, released, "{order:?}");
                released = progress.released.end;
                assert_eq!(released, expected(&plan, &order[..count]), "{order:?} after {count}");
            }
            assert_eq!(released, 3);
            assert!(queue.finish().is_empty());
            assert_eq!(queue.order(), order);
        }
    }

    #[test]
    fn every_subset_of_ready_gradients_leaves_the_rest_to_finish() {
        let plan = plan();
        for subset in 0_u32..32 {
            let ready: Vec<usize> = (0..5).filter(|slot| subset >> slot & 1 == 1).collect();
            let mut queue = ReadyQueue::new(&plan);
            for &slot in &ready {
                assert!(queue.mark(slot).is_some());
            }
            assert_eq!(queue.has_released(), expected(&plan, &ready) > 0);
            assert_eq!(queue.finish(), expected(&plan, &ready)..3);
        }
    }

    #[test]
    fn a_bucket_that_fills_out_of_order_is_not_released() {
        let mut queue = ReadyQueue::new(&plan());
        assert_eq!(queue.mark(0), Some(Progress { filled: Some(2), released: 0..0 }));
        assert_eq!(queue.mark(3), Some(Progress { filled: None, released: 0..0 }));
        assert_eq!(queue.mark(4), Some(Progress { filled: Some(0), released: 0..1 }));
    }

    #[test]
    fn a_gradient_is_ready_once_per_step() {
        let mut queue = ReadyQueue::new(&plan());
        assert!(queue.mark(1).is_some());
        assert!(queue.is_ready(1));
        assert_eq!(queue.mark(1), None);
        assert_eq!(queue.mark(5), None);
        queue.reset();
        assert!(queue.mark(1).is_some());
    }
}
